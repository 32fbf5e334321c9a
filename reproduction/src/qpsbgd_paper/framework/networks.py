"""The usual networks for CIFAR-10, and its images as their inputs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
"""Mean and deviation of the training images' channels, from 0 to 255."""
MARGIN = 4  # black pixels around an image, from which a window of its size is cut


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with batch norm beside a shortcut without parameters (option A of He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, as many pixels as the stride leaves."""
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        if self.stride > 1 or self.added:
            sides = (self.added // 2, self.added - self.added // 2)
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *sides))
        return F.relu(x + y)


def resnet(depth: int = 20, classes: int = 10) -> nn.Sequential:
    """The ResNet for CIFAR of this depth, 6 k + 2: three stages of k blocks with 16, 32 and 64 channels."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6 k + 2, such as 20 or 56, got {depth}")
    blocks: list[nn.Module] = []
    inputs = 16
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range((depth - 2) // 6):
            blocks.append(BasicBlock(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def vgg_small(classes: int = 10) -> nn.Sequential:
    """Six 3 × 3 convolutions of 128, 256 and 512 channels with batch norm, and one linear layer."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, pooled in ((128, False), (128, True), (256, False), (256, True), (512, False), (512, True)):
        layers.append(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False))
        layers += [nn.MaxPool2d(2)] if pooled else []
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 16, classes))


def shift(images: Tensor) -> Tensor:
    """Images (N, 32, 32, 3), randomly shifted, with black edges, and mirrored."""
    count, size = images.shape[:2]
    images = F.pad(images, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
    shifts = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), device=images.device)
    pixels = torch.arange(size, device=images.device)
    mirrored = torch.rand(count, 1, device=images.device) < 0.5
    rows, columns = shifts[0] + pixels, shifts[1] + torch.where(mirrored, size - 1 - pixels, pixels)
    return images[torch.arange(count, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def augment(images: Tensor, *, plain: bool = False) -> Tensor:
    """Images (N, 32, 32, 3), uint8, as inputs (N, 3, 32, 32); unless `plain`, randomly shifted and mirrored."""
    images = images if plain else shift(images)
    # Channel by channel: constants on the CPU could not be part of a CUDA graph.
    parts = [(images[..., k].float() - MEAN[k]) / DEVIATION[k] for k in range(3)]
    return torch.stack(parts, -1).permute(0, 3, 1, 2)
