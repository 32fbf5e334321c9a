"""How many rows of a convolution does a step need? Accuracy and time against the rows that are recorded of a pass.

The small CNN of `training.py` on 10,000 images of MNIST, one epoch of batches of 100 (78,400 patches in the first
layer, 19,600 in the second), 2000 other images for the score, three seeds, ridge and spins at their defaults.

    python benchmarks/sampled_rows.py        writes benchmarks/results/sampled_rows.json
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import statistics
from functools import cache, partial
from pathlib import Path

import torch
from training import Images, convolutional, mnist

from qpsbgd import QPSBGD
from qpsbgd_paper.framework.result_files import environment, write_json

ROWS, SEEDS = (128, 512, 2048, 8192, None), 3


@cache
def few(choosing):
    inputs, targets, *_ = mnist(choosing)
    return inputs[:10000], targets[:10000], inputs[40000:42000], targets[40000:42000]


def main():
    torch.set_num_threads(1)
    task, results = Images(partial(convolutional, norm=False), few), []
    for projection in ("ridge", "spins"):
        for rows in ROWS:

            def make(model, steps, projection=projection, rows=rows):
                return QPSBGD(model, projection=projection, rows=rows, steps=steps)

            found = [task.run(make, budget=1, seed=seed, choosing=True) for seed in range(SEEDS)]
            scores = [result["score"] for result in found]
            milliseconds = 1e3 * statistics.median(result["seconds"] for result in found) / 100
            results.append({"projection": projection, "rows": rows, "scores": scores, "ms per step": milliseconds})
            print(projection, rows, round(statistics.mean(scores), 4), f"{milliseconds:.0f} ms", flush=True)
    target = Path(__file__).parent / "results" / "sampled_rows.json"
    write_json(target, {"made with": environment(), "settings": {"threads": 1, "seeds": SEEDS}, "results": results})


if __name__ == "__main__":
    main()
