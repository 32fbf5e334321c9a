import pickle

import numpy as np
import pytest
import torch
from lazy import Lazy
from small_networks import network_with_norm
from torch import nn

from qpsbgd import QPSBGD, ProxQuant, QuboDescent

model_selection, skorch = Lazy("sklearn.model_selection"), Lazy("skorch")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network_with_norm()

    def forward(self, x):
        return self.layers(x)


@pytest.fixture
def data():
    inputs = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    return inputs, (inputs[:, :4].sum(1) > 0).astype(np.int64)


def classifier(optimizer=QPSBGD, **options):
    torch.manual_seed(0)
    options = {"lr": None, "optimizer__real": {"lr": 1e-2}, "max_epochs": 5, "train_split": None, **options}
    return skorch.NeuralNetClassifier(
        Network, criterion=nn.CrossEntropyLoss, optimizer=optimizer, batch_size=32, verbose=0, **options
    )


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (QPSBGD, {"optimizer__projection": "spins"}),
        (QPSBGD, {"optimizer__param_groups": [("layers.1*", {"lr": 0.05})]}),
        (QuboDescent, {"lr": 0.05}),
        (ProxQuant, {"lr": 0.1, "optimizer__steps": 65}),
    ],
)
def test_a_classifier_learns(optimizer, options, data):
    net = classifier(optimizer, **options).fit(*data)
    assert net.score(*data) > 0.8
    assert all(p.grad is None or p in net.optimizer_.state for p in net.module_.parameters())


def test_scikit_learn_clones_it(data):
    assert model_selection.cross_val_score(classifier(max_epochs=3), *data, cv=2).mean() > 0.8


def test_a_pickled_classifier_goes_on_where_it_was(data):
    net = classifier(max_epochs=2).fit(*data)
    copied = pickle.loads(pickle.dumps(net))
    states = []
    for each in (net, copied):
        torch.manual_seed(1)
        each.partial_fit(*data)
        states.append(list(each.module_.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
