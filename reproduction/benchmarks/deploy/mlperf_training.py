"""How accurate is MLPerf Tiny's ResNet-8 on CIFAR-10 with 1, 2 and 4 bits per weight and activations of 8 bits?

The float network, as the suite defines it, is trained first, by SGD with momentum and a cosine, on crops and mirror
images. Networks with few bits per weight in every layer are then trained side by side by QP-SBGD at its defaults, on
the same images, towards the labels and the float network's outputs. Accuracies are those of all test images after the
last step. microcontrollers.py measures the packed networks in C.

    python benchmarks/deploy/mlperf_training.py [bits=1 …] [--limit S | --epochs N] [--into FILE] [--packed DIR]

QPSBGD_DATA names a folder with CIFAR-10. Training is over after S seconds, by default 280, a fifth of them for the
float network: each times some steps, then schedules as many epochs as fit with a margin. The float network is a row of
its own, of 0 bits. Writes results/mlperf_training.json; DIR, by default results/mlperf_training, gets
resnet8-BITS.safetensors, 0 for float.
"""

import math
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.study import RESULTS, arguments
from benchmarks.training.training_parts import DEVICE, DEVICE_NAME, clock
from qpsbgd import QPSBGD
from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation
from qpsbgd_paper.datasets.cifar import load_cifar10

BATCH, TEMPERATURE, TRIAL = 128, 4.0, 50


class Residual(nn.Module):
    """activation(body(x) + shortcut(x))."""

    def __init__(self, body, shortcut, activation):
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x):
        return self.activation(self.body(x) + self.shortcut(x))


def residual(n, m, stride, *, bits=1):
    """ResNet-8's block from n to m channels, in float where there are no bits per weight.

    With bits, both summands are rounded to 8 bits, so that C adds integers, and shortcuts have a norm too.
    """
    activation = QuantActivation if bits else nn.ReLU

    def layer(n, m, window, stride=1):
        options = {"stride": stride, "padding": window // 2}
        if bits:
            return [BinaryConv2d(n, m, window, bits=bits, **options), nn.BatchNorm2d(m)]
        return [nn.Conv2d(n, m, window, **options), *([nn.BatchNorm2d(m)] if window > 1 else [])]

    rounded = [QuantActivation(signed=True)] if bits else []
    body = nn.Sequential(*layer(n, m, 3, stride), activation(), *layer(m, m, 3), *rounded)
    shortcut = nn.Identity() if stride == 1 else nn.Sequential(*layer(n, m, 1, stride), *rounded)
    return Residual(body, shortcut, activation())


def resnet8(bits):
    """MLPerf Tiny's ResNet-8 for pixels from 0 to 1, with so many bits per weight; 0 for float."""
    first = [BinaryConv2d(3, 16, 3, padding=1, bits=bits) if bits else nn.Conv2d(3, 16, 3, padding=1)]
    first = [*([QuantActivation(scale=1 / 256, learned=False)] if bits else []), *first, nn.BatchNorm2d(16)]
    blocks = [residual(16, 16, 1, bits=bits), residual(16, 32, 2, bits=bits), residual(32, 64, 2, bits=bits)]
    last = [nn.AdaptiveAvgPool2d(1), *([QuantActivation()] if bits else []), nn.Flatten()]
    last += [BinaryLinear(64, 10, bits=bits, bias=True) if bits else nn.Linear(64, 10)]
    return nn.Sequential(*first, QuantActivation() if bits else nn.ReLU(), *blocks, *last)


def augmented(images):
    """Pixels from 0 to 1 of crops of padded images (B, 3, 32, 32) of bytes, half of them mirrored."""
    count = len(images)
    padded = F.pad(images, (4, 4, 4, 4))
    rows, columns = (
        torch.randint(9, (count, 1), device=images.device) + torch.arange(32, device=images.device) for _ in range(2)
    )
    columns = torch.where(torch.rand(count, 1, device=images.device) < 0.5, columns.flip(1), columns)
    every = torch.arange(count, device=images.device)[:, None, None]
    crops = padded.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]]
    return crops.permute(0, 3, 1, 2).float() / 256


def trained(bits, steps, data, *, teacher=None, until=None, end=math.inf):
    """ResNet-8 after a schedule of so many steps, or before step `until` of it or the time `end`, and its steps."""
    images, labels = data
    torch.manual_seed(0)
    model = resnet8(bits).to(DEVICE)
    if bits:
        optimizer = QPSBGD(model, steps=steps, real=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, nesterov=True, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps if until is None else until):
        if time.time() > end:
            return model.eval(), step
        at = step % (len(images) // BATCH) * BATCH
        if at == 0:
            order = torch.randperm(len(images), device=DEVICE)
        rows = order[at : at + BATCH]
        inputs = augmented(images[rows])
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, labels[rows])
        if bits:
            with torch.no_grad():
                wanted = F.softmax(teacher(inputs) / TEMPERATURE, 1)
            softened = F.log_softmax(outputs / TEMPERATURE, 1)
            loss = 0.5 * loss + 0.5 * TEMPERATURE**2 * F.kl_div(softened, wanted, reduction="batchmean")
        loss.backward()
        optimizer.step()
        if not bits:
            schedule.step()
        if step % 500 == 0:
            print(f"{bits} bits: step {step} of {steps}, loss {loss.item():.4f}", flush=True)
    return model.eval(), steps


def epochs_until(end, data, bits, teacher):
    """How many epochs fit until the time `end`, with a margin, at the speed of a trial's later steps."""
    times = [clock()]
    for until in (TRIAL, 3 * TRIAL):
        trained(bits, 10000, data, teacher=teacher, until=until)
        times.append(clock())
    started, first, second = times
    step = (second - first - (first - started)) / (2 * TRIAL)
    return max(1, int(0.8 * (end - time.time()) / (step * (len(data[0]) // BATCH))))


def measured(job, *, ends, folder):
    """The row of a network that is trained until its end; the folder gets it packed."""
    bits = job["bits"]
    torch.backends.cudnn.benchmark = True
    cifar = load_cifar10()
    images, test_images = (part.permute(0, 3, 1, 2).to(DEVICE) for part in (cifar.train_images, cifar.test_images))
    data, test_labels = (images, cifar.train_labels.to(DEVICE)), cifar.test_labels.to(DEVICE)
    teacher, weights = resnet8(0).to(DEVICE).eval(), folder / "resnet8-0.pt"
    if bits:
        teacher.load_state_dict(torch.load(weights, map_location=DEVICE, weights_only=True))
    end = math.inf if "epochs" in job else ends[bool(bits)]
    epochs = job.get("epochs") or epochs_until(end, data, bits, teacher)
    began, scheduled = clock(), epochs * (len(images) // BATCH)
    model, steps = trained(bits, scheduled, data, teacher=teacher, end=end)
    seconds = clock() - began
    with torch.inference_mode():
        parts = zip(test_images.split(1000), test_labels.split(1000), strict=True)
        right = sum((model(part.float() / 256).argmax(1) == wanted).sum().item() for part, wanted in parts)
    pack(model, folder / f"resnet8-{bits}.safetensors", input_shape=(3, 32, 32))
    if not bits:
        torch.save(model.state_dict(), weights)
    found = {"test accuracy": right / len(test_labels), "test images": len(test_labels)}
    found |= {"scheduled steps": scheduled, "steps": steps, "seconds": seconds, "device": DEVICE_NAME}
    return job | {"epochs": epochs} | found


def main():
    limit, packed = {"type": float, "default": 280}, {"type": Path, "default": RESULTS / "mlperf_training"}
    options, rows = arguments("mlperf_training", processes=3, limit=limit, epochs={"type": int}, packed=packed)
    options.packed.mkdir(parents=True, exist_ok=True)
    now = time.time()
    run = partial(measured, ends=(now + options.limit / 5, now + options.limit), folder=options.packed)
    same = {"network": "ResNet-8"} | ({"epochs": options.epochs} if options.epochs else {})
    rows.measured(run, [same | {"bits": 0}])
    rows.measured(run, options.only(same | {"bits": bits} for bits in (1, 2, 4)))


if __name__ == "__main__":
    main()
