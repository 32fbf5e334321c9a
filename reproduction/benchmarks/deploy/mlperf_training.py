"""How accurate is MLPerf Tiny's ResNet-8 on CIFAR-10 with 1, 2 and 4 bits per weight and activations of 8 bits?

The float network, as the suite defines it, is trained first, by SGD with momentum and a cosine, on crops and mirror
images. Networks with few bits per weight in every layer are then trained side by side by QP-SBGD at its defaults, on
the same images, towards the labels and the float network's outputs. Accuracies are those of all test images after the
last step. microcontrollers.py measures the packed networks in C.

    python benchmarks/deploy/mlperf_training.py [bits=1 …] [--epochs N] [--into FILE] [--packed DIR]

Data as networks.py. The float network is a row of its own, of 0 bits. Writes results/mlperf_training.json; DIR, by
default results/mlperf_training, gets resnet8-BITS.safetensors, 0 for float.
"""

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.study import RESULTS, arguments
from benchmarks.training.networks import BATCH, classification, epochs_of, float_optimizer, images, train
from benchmarks.training.training_parts import DEVICE, DEVICE_NAME
from qpsbgd import QPSBGD
from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation

TEMPERATURE = 4.0


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


def resnet8(bits, ends=None):
    """MLPerf Tiny's ResNet-8 for pixels from 0 to 1, with so many bits per weight; 0 for float.

    Its first and last layer, 1.4 % of the weights, can have `ends` bits instead.
    """
    ends = bits if ends is None else ends
    first = [BinaryConv2d(3, 16, 3, padding=1, bits=ends) if bits else nn.Conv2d(3, 16, 3, padding=1)]
    first = [*([QuantActivation(scale=1 / 256, learned=False)] if bits else []), *first, nn.BatchNorm2d(16)]
    blocks = [residual(16, 16, 1, bits=bits), residual(16, 32, 2, bits=bits), residual(32, 64, 2, bits=bits)]
    last = [nn.AdaptiveAvgPool2d(1), *([QuantActivation()] if bits else []), nn.Flatten()]
    last += [BinaryLinear(64, 10, bits=ends, bias=True) if bits else nn.Linear(64, 10)]
    return nn.Sequential(*first, QuantActivation() if bits else nn.ReLU(), *blocks, *last)


def pixels(images, plain=False):
    """Pixels from 0 to 1 of images, or of random crops of padded images, half of them mirrored, as channels first."""
    if plain:
        return images.permute(0, 3, 1, 2).float() / 256
    count = len(images)
    padded = F.pad(images, (0, 0, 4, 4, 4, 4))
    rows, columns = (
        torch.randint(9, (count, 1), device=images.device) + torch.arange(32, device=images.device) for _ in range(2)
    )
    columns = torch.where(torch.rand(count, 1, device=images.device) < 0.5, columns.flip(1), columns)
    every = torch.arange(count, device=images.device)[:, None, None]
    return padded[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).float() / 256


def distillation_loss(teacher):
    """A loss half by the labels, half by the outputs of another network."""

    def loss(model, x, y):
        outputs = model(x).float()
        with torch.no_grad():
            wanted = F.softmax(teacher(x).float() / TEMPERATURE, 1)
        softened = F.kl_div(F.log_softmax(outputs / TEMPERATURE, 1), wanted, reduction="batchmean")
        return 0.5 * F.cross_entropy(outputs, y) + 0.5 * TEMPERATURE**2 * softened

    return loss


def measure(job, *, folder):
    """The row of a network that is trained; the folder gets it packed."""
    bits, epochs = job["bits"], job["epochs"]
    name = f"resnet8-{bits}" + (f"-{job['ends']}" if "ends" in job else "")
    data, weights = images("cifar-10", False), folder / "resnet8-0.pt"
    steps, draw, loss, score = classification(data, epochs_of(len(data[0]), BATCH, epochs, 0), pixels)
    torch.manual_seed(0)
    model = resnet8(bits, job.get("ends")).to(DEVICE)
    if bits:
        teacher = resnet8(0).to(DEVICE).eval()
        teacher.load_state_dict(torch.load(weights, map_location=DEVICE, weights_only=True))
        loss, optimizer = distillation_loss(teacher), QPSBGD(model, steps=steps, real=True)
    else:
        optimizer = float_optimizer("sgd", model, steps, 0.1)
    row = train(model, optimizer, (steps, draw, loss, score))
    with torch.inference_mode():  # in float32, as in C
        row |= {"score": score(model), "test images": len(data[2]), "device": DEVICE_NAME}
    pack(model, folder / f"{name}.safetensors", input_shape=(3, 32, 32))
    if not bits:
        torch.save(model.state_dict(), weights)
    return job | row


def main():
    packed = {"type": Path, "default": RESULTS / "mlperf_training"}
    options, rows = arguments("mlperf_training", processes=4, epochs={"type": int, "default": 200}, packed=packed)
    options.packed.mkdir(parents=True, exist_ok=True)
    run, same = partial(measure, folder=options.packed), {"epochs": options.epochs}
    rows.measured(run, [same | {"bits": 0}])
    wanted = [{"bits": 1}, {"bits": 1, "ends": 4}, {"bits": 2}, {"bits": 4}]
    rows.measured(run, options.only(same | job for job in wanted))


if __name__ == "__main__":
    main()
