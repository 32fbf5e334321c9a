"""Public architectures with fewer channels and small inputs.

The first three are written as in torchvision and two well-known repositories, line by line where a line matters for
deployment; the others are those of transformers.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Of CIFAR's ResNets, whose shortcut takes every other pixel (option A)."""

    def __init__(self, inputs, units, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, units, 3, stride, 1, bias=False), nn.BatchNorm2d(units)
        self.conv2, self.bn2 = nn.Conv2d(units, units, 3, 1, 1, bias=False), nn.BatchNorm2d(units)
        self.relu, self.stride, self.added = nn.ReLU(inplace=True), stride, (units - inputs) // 2

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride > 1:
            identity = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added, self.added), "constant", 0)
        out += identity
        return self.relu(out)


class CifarResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        blocks = [(4, 4, 1), (4, 4, 1), (4, 8, 2), (8, 8, 1), (8, 16, 2), (16, 16, 1)]
        self.layers, self.linear = nn.Sequential(*(BasicBlock(*sizes) for sizes in blocks)), nn.Linear(16, 10)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layers(out)
        out = F.avg_pool2d(out, out.size()[3])
        out = out.view(out.size(0), -1)
        return self.linear(out)


def conv(inputs, units, kernel=3, stride=1, groups=1, activation=nn.ReLU):
    """A convolution that keeps the image's size but for the stride, a batch norm, and an activation or none."""
    layers = [nn.Conv2d(inputs, units, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(units)]
    return nn.Sequential(*layers, *([activation(inplace=True)] if activation else []))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x):
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class InvertedResidual(nn.Module):
    def __init__(self, inputs, units, *, hidden, kernel=3, stride=1, activation=nn.Hardswish):
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == units
        self.conv = nn.Sequential(
            *([conv(inputs, hidden, 1, activation=activation)] if hidden != inputs else []),
            conv(hidden, hidden, kernel, stride, groups=hidden, activation=activation),
            SqueezeExcitation(hidden, 4),
            conv(hidden, units, 1, activation=None),
        )

    def forward(self, x):
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class MobileNetV3(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv(3, 8, 3, 2, activation=nn.Hardswish),
            InvertedResidual(8, 8, hidden=8, stride=2, activation=nn.ReLU),
            InvertedResidual(8, 10, hidden=16, kernel=5, stride=2),
            InvertedResidual(10, 10, hidden=20, kernel=5),
            conv(10, 20, 1, activation=nn.Hardswish),
        )
        self.avgpool, self.classifier = nn.AdaptiveAvgPool2d(1), nn.Sequential(nn.Dropout(0.2), nn.Linear(20, 10))

    def forward(self, x):
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


class KeywordSpotter(nn.Module):
    """DS-CNN: depthwise separable convolutions over 49 frames of 10 coefficients."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(16), nn.ReLU())
        blocks = [nn.Sequential(conv(16, 16, groups=16), conv(16, 16, 1)) for _ in range(3)]
        self.blocks, self.dropout = nn.Sequential(*blocks), nn.Dropout(0.4)
        self.pool, self.classifier = nn.AvgPool2d((25, 5)), nn.Linear(16, 12)

    def forward(self, x):
        x = self.pool(self.dropout(self.blocks(self.first(x))))
        return self.classifier(x.squeeze(-1).squeeze(-1))


class OneOutput(nn.Module):
    """A model of transformers as one input and one of its outputs."""

    def __init__(self, model, output):
        super().__init__()
        self.model, self.output = model, output

    def forward(self, x):
        return getattr(self.model(x), self.output)


def of_transformers(name, part="ForImageClassification", **sizes):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, f"{name}{part}")(getattr(transformers, f"{name}Config")(**sizes))
    return OneOutput(model, "last_hidden_state" if part == "Model" else "logits")


IMAGE, WORDS = (3, 32, 32), 40
WIDTHS = {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1]}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDED = {"vocab_size": WORDS, "max_position_embeddings": 16}
TRANSFORMERS = {
    "ResNet-18": (IMAGE, {"name": "ResNet", "embedding_size": 4, "layer_type": "basic", **WIDTHS}),
    "MobileNetV2": (IMAGE, {"name": "MobileNetV2", "image_size": 32, "depth_multiplier": 0.1}),
    "ConvNeXt": (IMAGE, {"name": "ConvNext", **WIDTHS}),
    "ViT": (IMAGE, {"name": "ViT", "image_size": 32, "patch_size": 8, **ENCODER}),
    "GPT-2": ((9,), {"name": "GPT2", "part": "Model", **WORDED, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "BERT": ((9,), {"name": "Bert", "part": "Model", **WORDED, **ENCODER}),
}
ARCHITECTURES = {
    "CIFAR ResNet": (IMAGE, CifarResNet),
    "MobileNetV3": (IMAGE, MobileNetV3),
    "DS-CNN, a keyword spotter": ((1, 49, 10), KeywordSpotter),
    **{name: (shape, functools.partial(of_transformers, **options)) for name, (shape, options) in TRANSFORMERS.items()},
}
"""The shape of a sample, and the network; samples of one dimension are numbers of words below `WORDS`."""
