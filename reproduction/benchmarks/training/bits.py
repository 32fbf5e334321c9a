"""What do more bits per weight bring? Test accuracy on MNIST of a 784-64-10 network with 1 to 4 bits per weight.

The ridge and BinaryConnect with Adam at their default rates, and the same network with float weights, trained by Adam
at the best of three rates on validation data with another seed. Batches of 100, a cosine to zero for all. Runs with the
same seed share batches.

    python benchmarks/training/bits.py [FILE]    writes results/bits.json, or FILE; data through QPSBGD_DATA
"""

from functools import partial

import torch
from benchmarks.training.training import Images, with_cosine
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd.nn import BinaryLinear
from qpsbgd_paper.framework.measurements import publish, shown

BITS, SEEDS, EPOCHS = (1, 2, 3, 4), 3, 2
FLOAT_RATES = (0.001, 0.003, 0.01)
METHODS = {
    "ridge": lambda model, steps: QPSBGD(model, steps=steps),
    "bc-adam": lambda model, steps: BinaryConnect(model, steps=steps),
}


def binary(bits):
    return nn.Sequential(BinaryLinear(784, 64, bits=bits), nn.Hardtanh(), BinaryLinear(64, 10, bits=bits))


def real():
    return nn.Sequential(nn.Linear(784, 64, bias=False), nn.Hardtanh(), nn.Linear(64, 10, bias=False))


def score(build, make, seed, *, choosing=False):
    return Images(build).run(make, budget=EPOCHS, seed=seed, choosing=choosing)["score"]


def measured():
    for method, make in METHODS.items():
        for bits in BITS:
            scores = [score(partial(binary, bits), make, seed) for seed in range(SEEDS)]
            yield {"method": method, "bits": bits, "scores": scores}

    def adam(lr):
        return lambda model, steps: with_cosine(torch.optim.Adam(model.parameters(), lr=lr), steps)

    best = max(FLOAT_RATES, key=lambda lr: score(real, adam(lr), 1000, choosing=True))
    scores = [score(real, adam(best), seed) for seed in range(SEEDS)]
    yield {"method": "adam", "bits": 32, "scores": scores, "lr": best}


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = {"network": "784-64-10", "epochs": EPOCHS, "batch": 100, "seeds": SEEDS, "float rates": FLOAT_RATES}
    publish(__file__, settings=settings, rows=shown(measured()))
