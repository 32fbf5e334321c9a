"""The networks of families.py: what people bring, small enough for CIFAR-10, with torch's own initial weights."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """x + body(x), or shortcut(x) + body(x), and an activation behind the sum."""

    def __init__(self, body, shortcut=None, activation=None):
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut or nn.Identity(), activation or nn.Identity()

    def forward(self, x):
        return self.activation(self.shortcut(x) + self.body(x))


def convolution(n, m, size=3, stride=1, groups=1, activation=None):
    """A convolution and batch norm, with an activation behind them if there is one."""
    layers = [nn.Conv2d(n, m, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(m)]
    return nn.Sequential(*layers, *([activation] if activation else []))


def head(n, classes=10):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, classes)]


def vgg16():
    layers, n = [], 3
    for m, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers, n = [*layers, convolution(n, m, activation=nn.ReLU())], m
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *head(512))


def resnet18():
    layers, n = [convolution(3, 64, activation=nn.ReLU())], 64
    for m, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        body = nn.Sequential(convolution(n, m, stride=stride, activation=nn.ReLU()), convolution(m, m))
        shortcut = None if n == m and stride == 1 else convolution(n, m, 1, stride)
        layers, n = [*layers, Residual(body, shortcut, nn.ReLU())], m
    return nn.Sequential(*layers, *head(512))


class DenseLayer(nn.Module):
    def __init__(self, n, growth):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm2d(n), nn.Conv2d(n, growth, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.layer(F.relu(self.norm(x)))], 1)


def densenet(growth=24, length=6):
    layers, n = [nn.Conv2d(3, 48, 3, padding=1, bias=False)], 48
    for stage in range(3):
        for _ in range(length):
            layers, n = [*layers, DenseLayer(n, growth)], n + growth
        if stage < 2:
            layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n // 2, 1, bias=False), nn.AvgPool2d(2)]
            n //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(n), nn.ReLU(), *head(n))


def mobilenet_v2():
    """Inverted residuals of depthwise convolutions, with strides for images of 32 pixels."""
    layers, n = [convolution(3, 32, activation=nn.ReLU6())], 32
    for expansion, m, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for k in range(count):
            step, wide = stride if k == 0 else 1, n * expansion
            body = [convolution(n, wide, 1, activation=nn.ReLU6())] if expansion > 1 else []
            body += [convolution(wide, wide, 3, step, wide, nn.ReLU6()), convolution(wide, m, 1)]
            layers.append(Residual(nn.Sequential(*body)) if step == 1 and n == m else nn.Sequential(*body))
            n = m
    return nn.Sequential(*layers, convolution(n, 640, 1, activation=nn.ReLU6()), *head(640))


class ChannelNorm(nn.Module):
    """Layer norm over the channels of images."""

    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext():
    layers, n = [nn.Conv2d(3, 64, 2, 2), ChannelNorm(64)], 64
    for m, count in ((64, 2), (128, 2), (256, 4)):
        if m != n:
            layers += [ChannelNorm(n), nn.Conv2d(n, m, 2, 2)]
            n = m
        for _ in range(count):
            body = [nn.Conv2d(n, n, 7, padding=3, groups=n), ChannelNorm(n), nn.Conv2d(n, 4 * n, 1), nn.GELU()]
            layers.append(Residual(nn.Sequential(*body, nn.Conv2d(4 * n, n, 1))))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(n), nn.Linear(n, 10))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.mixed, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.mixed(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def feed_forward(width, inner):
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Patches(nn.Module):
    """Patches of 4 × 4 pixels as rows, with a place of their own."""

    def __init__(self, width, places=True):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width)) if places else 0

    def forward(self, x):
        return self.patches(x).flatten(2).transpose(1, 2) + self.places


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def vit(width=192, depth=6):
    layers = [Patches(width)]
    for _ in range(depth):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, 6))))
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), feed_forward(width, 4 * width))))
    return nn.Sequential(*layers, nn.LayerNorm(width), Mean(), nn.Linear(width, 10))


class Transposed(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x.transpose(1, 2)).transpose(1, 2)


def mixer(width=256, depth=6):
    layers = [Patches(width, places=False)]
    for _ in range(depth):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), Transposed(feed_forward(64, 128)))))
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), feed_forward(width, 4 * width))))
    return nn.Sequential(*layers, nn.LayerNorm(width), Mean(), nn.Linear(width, 10))


def mlp(widths, norm=None):
    """A dense network on the pixels of images; `norm` is a class of norms behind every layer."""
    layers, n = [nn.Flatten()], 3072
    for m in widths:
        layers += [nn.Linear(n, m), *([norm(m)] if norm else []), nn.ReLU()]
        n = m
    return nn.Sequential(*layers, nn.Linear(n, 10))
