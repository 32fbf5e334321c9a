"""What do pretrained ResNets lose when they become binary without training? CIFAR-10, ResNet-20 and -56.

    python benchmarks/training/binarize_pretrained.py [--depths 20 56] [--bits 1 2] [--methods METHOD …] [--images N]
                                                      [--tested N] [--again]

The weights are Yerlan Idelbayev's (github.com/akamaster/pytorch_resnet_cifar10, BSD-2-Clause), found in QPSBGD_RESNETS,
a copy of its folder `pretrained_models`; CIFAR-10 is found in QPSBGD_DATA. First and last layer and the norms stay
real. Calibration images are the first of the training set, tested are evenly spaced ones of the test set. Every cell is
written to benchmarks/results/binarize_pretrained.json at once; what is there is not measured again but with --again.
"distilled" is "float targets" and then `distill` on 2,000 images.
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
import itertools
import os
import time
from functools import cache
from pathlib import Path

import torch
from kept_rows import Rows

from qpsbgd import binarize
from qpsbgd.binarization import distill
from qpsbgd_paper.datasets.cifar import load_cifar10
from qpsbgd_paper.experiments.cifar import BasicBlock, resnet

RESULT = Path(__file__).parents[1] / "results" / "binarize_pretrained.json"
FILES = {20: "resnet20-12fca82f.th", 56: "resnet56-4bfd9763.th"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""With which these networks were trained."""
METHODS = {
    "rounding": {"solver": "rounding"},
    "feedback": {"solver": "feedback"},
    "own targets": {},
    "float targets": {"targets": "float"},
    "distilled": {"targets": "float"},
}
BATCH, DISTILLED = 128, 2000
STEPS = {20: 240, 56: 80}
"""Steps of `distill`."""


def network(depth):
    """The pretrained network: as in qpsbgd_paper, whose parameters come in the same order."""
    path = Path(os.environ["QPSBGD_RESNETS"]) / FILES[depth]
    saved = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = resnet(depth)
    ours, theirs = ([name for name in state if "num_batches" not in name] for state in (model.state_dict(), saved))
    with torch.no_grad():
        for name, other in zip(ours, theirs, strict=True):
            model.state_dict()[name].copy_(saved[other])
    return model.eval()


def inputs(images):
    pixels = torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    found = torch.cat([model(inputs(part)).argmax(1) for part in images.split(BATCH)])
    return (found == labels).double().mean().item()


data = cache(load_cifar10)


def binarized(job):
    model, bits = network(job["depth"]), job["bits"]
    if job["method"] == "float":
        return model
    batches = list(inputs(data().train_images[: job["images"]]).split(BATCH))
    made = binarize(model, batches, bits=bits, **METHODS[job["method"]]).model
    if job["method"] == "distilled":
        blocks = [name for name, module in model.named_modules() if isinstance(module, BasicBlock)]
        more = list(inputs(data().train_images[:DISTILLED]).split(100))
        distill(made, model, more, steps=STEPS[job["depth"]], layers=blocks, lr=0.003 if bits == 1 else 0.001)
    return made


def run(job):
    """The job, and its row."""
    begun = time.process_time()
    made = binarized(job)
    seconds = time.process_time() - begun
    stride = len(data().test_images) // job["tested"]
    tested = [part[::stride][: job["tested"]] for part in (data().test_images, data().test_labels)]
    return job, {"accuracy": accuracy(made, *tested), "processor seconds": seconds}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depths", type=int, nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--tested", type=int, default=10000)
    parser.add_argument("--again", action="store_true", help="measure these cells anew")
    options = parser.parse_args()
    jobs = []
    for depth in options.depths:
        shared = {"depth": depth, "tested": options.tested}
        jobs.append(shared | {"method": "float", "bits": 32, "images": 0})
        cells = itertools.product(options.bits, options.methods)
        jobs += [shared | {"method": method, "bits": bits, "images": options.images} for bits, method in cells]
    Rows(RESULT, lambda job: options.again and job in jobs).measured(run, jobs)


if __name__ == "__main__":
    main()
