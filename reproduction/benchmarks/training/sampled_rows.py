"""How many rows of a convolution does a step need? Accuracy and time against the rows that are recorded of a pass.

The small CNN of `training.py` on 10,000 images of MNIST, one epoch of batches of 100 (78,400 patches in the first
layer, 19,600 in the second), 2000 other images for the score, five seeds, ridge and spins at their defaults.

    python benchmarks/training/sampled_rows.py [FILE]        writes results/sampled_rows.json, or FILE
"""

import statistics
from functools import cache, partial
from itertools import product

import torch
from benchmarks.training.training import Images
from benchmarks.training.training_parts import DEVICE_NAME, convolutional, mnist

from qpsbgd import QPSBGD
from qpsbgd.projections import PROJECTIONS
from qpsbgd_paper.framework.measurements import publish, shown

ROWS, SEEDS = (128, 512, 2048, 8192, None), 5


@cache
def few(choosing):
    inputs, targets, *_ = mnist(choosing)
    return inputs[:10000], targets[:10000], inputs[40000:42000], targets[40000:42000]


def optimizer(projection, model, steps):
    return QPSBGD(model, projection=projection, steps=steps)


def measured():
    task = Images(partial(convolutional, norm=False), few)
    task.run(partial(optimizer, "spins"), budget=1, seed=0, choosing=True)  # to warm up
    for projection, rows in product(("ridge", "spins"), ROWS):
        make = partial(optimizer, PROJECTIONS[projection](rows=rows))
        found = [task.run(make, budget=1, seed=seed, choosing=True) for seed in range(SEEDS)]
        milliseconds = 1e3 * statistics.median(result["clock"] for result in found) / 100
        scores = [result["score"] for result in found]
        yield {"projection": projection, "rows": rows, "scores": scores, "ms per step": milliseconds}


if __name__ == "__main__":
    torch.set_num_threads(1)
    publish(__file__, settings={"device": DEVICE_NAME, "seeds": SEEDS}, results=shown(measured()))
