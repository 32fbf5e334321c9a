"""Which learning rate should the real parameters have by default? (`REAL_RATE` in optim/real_part.py)

Short trainings by QP-SBGD (ridge, its default rate) of three networks whose norms, biases, embeddings or heads AdamW
trains at rates from 1e-3 to 0.1, both with a cosine to zero: accuracy or, for text, minus the loss per character, on
data held out from the training part. No test data is used.

    python benchmarks/real_rates.py [FILE]        writes benchmarks/results/real_rates.json, or FILE
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import statistics
import sys
from functools import cache
from pathlib import Path

import characters
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from qpsbgd import QPSBGD
from qpsbgd.nn import convert
from qpsbgd_paper.datasets import load_mnist
from qpsbgd_paper.framework.result_files import environment, write_json

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SEEDS = 3


@cache
def images(name):
    """Images and labels for training, and to score with."""
    if name == "digits":
        pixels, labels = load_digits(return_X_y=True)
        inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
        return inputs[order[:1200]], targets[order[:1200]], inputs[order[1200:]], targets[order[1200:]]
    mnist = load_mnist()
    inputs, targets = mnist.train_images.reshape(-1, 1, 28, 28)[:10000], mnist.train_labels[:10000]
    inputs = inputs.float() / inputs.max()
    return inputs[:8000], targets[:8000], inputs[8000:], targets[8000:]


def convolutional(channels, side):
    """The first convolution and the head stay real-valued, as `convert` is mostly used."""
    layers = []
    for n, m, stride in zip((1, *channels[:-1]), channels, (1, 2, 2), strict=True):
        layers += [nn.Conv2d(n, m, 3, stride, 1), nn.BatchNorm2d(m), nn.ReLU()]
    return convert(nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side**2, 10)), first=False, last=False)


def classified(name, rate, seed):
    inputs, targets, others, wanted = images(name)
    torch.manual_seed(seed)
    model = convolutional((16, 32, 32), 2) if name == "digits" else convolutional((8, 16, 32), 7)
    epochs, batch = (4, 60) if name == "digits" else (1, 80)
    optimizer = QPSBGD(model, steps=epochs * len(inputs) // batch, real={"lr": rate})
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model.eval()(others).argmax(1) == wanted).float().mean().item()


def written(rate, seed, steps=120):
    model = characters.network(seed)
    characters.trained(model, QPSBGD(model, steps=steps, real={"lr": rate}), steps=steps, seed=seed)
    return -characters.score(model, characters.text()[0], 2)


TASKS = {
    "digits, CNN with batch norm": lambda rate, seed: classified("digits", rate, seed),
    "MNIST, CNN with batch norm": lambda rate, seed: classified("mnist", rate, seed),
    "characters, GPT": written,
}


def main():
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "real_rates.json"
    rows = []
    for task, train in TASKS.items():
        for rate in RATES:
            scores = [train(rate, seed) for seed in range(SEEDS)]
            rows.append({"task": task, "rate": rate, "scores": scores})
            print(task, rate, round(statistics.mean(scores), 4), flush=True)
        write_json(target, {"made with": environment(), "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
