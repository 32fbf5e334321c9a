"""What do pretrained ResNets lose when they become binary without training? CIFAR-10, ResNet-20 and -56.

    python benchmarks/training/binarize_pretrained.py        writes results/binarize_pretrained.json

The weights are Yerlan Idelbayev's (github.com/akamaster/pytorch_resnet_cifar10, BSD-2-Clause), found in QPSBGD_RESNETS,
a copy of its folder `pretrained_models`; CIFAR-10 as in networks.py. First and last layer and the norms stay
real. Calibration images are the first of the training set. "distilled" is "float targets" and then `distill` on 2,000
images with crops and flips, at its default rate, on a GPU where there is one. Rows that are there already are kept.
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import os
from pathlib import Path

import torch
from benchmarks.study import study
from benchmarks.training.training_parts import DEVICE, DEVICE_NAME, accuracy, cifar, clock

from qpsbgd import binarize
from qpsbgd.binarization import distill
from qpsbgd_paper.framework.networks import BasicBlock, resnet, shift

FILES = {20: "resnet20-12fca82f.th", 56: "resnet56-4bfd9763.th"}
IMAGES = {20: 2048, 56: 512}
"""Calibration images by depth."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""With which these networks were trained."""
OWN = {"targets": "own"}
OPTIONS = {"feedback": OWN | {"solver": "feedback"}, "search": OWN, "float targets": {}, "distilled": {}}
CELLS = [(32, "float"), *((1, method) for method in OPTIONS), *((2, method) for method in list(OPTIONS)[:3])]
BATCH, DISTILLED, STEPS = 128, 2000, 600


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
    mean, deviation = (pixels.new_tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (pixels - mean) / deviation


class Augmented:
    """Batches of the images, cropped, flipped and in another order in every pass."""

    def __init__(self, images):
        self.images = images
        torch.manual_seed(0)

    def __iter__(self):
        for part in self.images[torch.randperm(len(self.images))].split(BATCH):
            yield inputs(shift(part))


def binarized(depth, bits, method, images):
    """The network with so many bits per weight, `images` being those of training, and seconds spent on it by part."""
    model = network(depth)
    if method == "float":
        return model, {}
    batches, begun = list(inputs(images[: IMAGES[depth]]).split(BATCH)), clock()
    made = binarize(model, batches, bits=bits, **OPTIONS[method]).model
    spent = {"binarize": clock() - begun}
    if method == "distilled":
        blocks = [name for name, module in model.named_modules() if isinstance(module, BasicBlock)]
        shown = Augmented(images[:DISTILLED].to(DEVICE))
        begun = clock()
        distill(made.to(DEVICE), model.to(DEVICE), shown, steps=STEPS, layers=blocks)
        spent[f"distill, {DEVICE_NAME}"] = clock() - begun
    return made, spent


def run(job):
    images, _, test_images, test_labels = cifar()
    made, spent = binarized(**job, images=images)
    used = 0 if job["method"] == "float" else IMAGES[job["depth"]]
    made.to(DEVICE).eval()
    with torch.no_grad():
        score = accuracy(lambda x: made(inputs(x)), test_images.to(DEVICE), test_labels.to(DEVICE))
    return job | {"images": used, "seconds": spent, "accuracy": score}


if __name__ == "__main__":
    jobs = [{"depth": depth, "bits": bits, "method": method} for depth in FILES for bits, method in CELLS]
    study("binarize_pretrained", run, jobs)
