"""Find the communities of Zachary's karate club by graph convolutions with weights ±1.

Needs the extra `graph` and, for the data, `pip install ./reproduction`.
"""

import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryGCNConv
from qpsbgd_paper.datasets.graphs import load_karate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 16)  # real weights, trained by AdamW
        self.first = BinaryGCNConv(16, 32)
        self.second = BinaryGCNConv(32, 4)

    def forward(self, x, edges):
        x = self.first(self.encoder(x), edges)
        return self.second(F.hardtanh(x), edges)


torch.manual_seed(0)
graph = load_karate(seed=0)
model = Net()
optimizer = QPSBGD(model, steps=201, real={"lr": 0.01})  # `real` trains the encoder
for step in range(201):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(graph.features, graph.edge_index)[graph.train], graph.labels[graph.train])
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        model.eval()
        with torch.no_grad():
            right = model(graph.features, graph.edge_index).argmax(1) == graph.labels
        train, test = (right[nodes].float().mean() for nodes in (graph.train, graph.test))
        print(
            f"step {step:3d}: loss {loss.item():.3f}, accuracy {train:.2f} on training nodes, {test:.2f} on the others"
        )
