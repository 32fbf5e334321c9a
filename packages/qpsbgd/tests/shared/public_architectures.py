"""Thirteen public architectures, written as their authors wrote them, with fewer channels and small inputs.

The first eleven follow torchvision's and two well-known repositories' forwards line by line where a line matters for
deployment; GPT-2 and BERT are those of transformers.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def conv(inputs, units, kernel=3, stride=1, groups=1, activation=nn.ReLU):
    """A convolution that keeps the image's size but for the stride, a batch norm, and an activation or none."""
    layers = [nn.Conv2d(inputs, units, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(units)]
    return nn.Sequential(*layers, *([activation(inplace=True)] if activation else []))


class BasicBlock(nn.Module):
    """Of ResNet-18 and of CIFAR's ResNets, whose shortcut is a convolution (B) or takes every other pixel (A)."""

    def __init__(self, inputs, units, stride, option="B"):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, units, 3, stride, 1, bias=False), nn.BatchNorm2d(units)
        self.conv2, self.bn2 = nn.Conv2d(units, units, 3, 1, 1, bias=False), nn.BatchNorm2d(units)
        self.relu = nn.ReLU(inplace=True)
        self.added = (units - inputs) // 2 if option == "A" and stride > 1 else None
        self.downsample = conv(inputs, units, 1, stride, activation=None) if option == "B" and stride > 1 else None

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        elif self.added is not None:
            identity = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added, self.added), "constant", 0)
        out += identity
        return self.relu(out)


def stages(widths, blocks, option="B"):
    pairs = [(widths[max(0, at - 1)], width, at) for at, width in enumerate(widths)]
    return nn.Sequential(
        *(
            nn.Sequential(
                BasicBlock(inputs, width, 2 if at else 1, option),
                *(BasicBlock(width, width, 1) for _ in range(blocks - 1)),
            )
            for inputs, width, at in pairs
        )
    )


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layers = stages((4, 8, 12, 16), 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 10)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        x = torch.flatten(x, 1)
        return self.fc(x)


class CifarResNet(nn.Module):
    def __init__(self, option):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.layers, self.linear = stages((4, 8, 16), 3, option), nn.Linear(16, 10)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layers(out)
        out = F.avg_pool2d(out, out.size()[3])
        out = out.view(out.size(0), -1)
        return self.linear(out)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeezed, activation, scale):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = activation(), scale()

    def forward(self, x):
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class StochasticDepth(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        keep = torch.empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(1 - self.p) / (1 - self.p)
        return x * keep


class InvertedResidual(nn.Module):
    """Of MobileNetV2, MobileNetV3 and, as MBConv, of EfficientNet."""

    def __init__(self, inputs, units, *, hidden, kernel=3, stride=1, activation=nn.ReLU6, excitation=None):
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == units
        self.conv = nn.Sequential(
            *([conv(inputs, hidden, 1, activation=activation)] if hidden != inputs else []),
            conv(hidden, hidden, kernel, stride, groups=hidden, activation=activation),
            *([excitation(hidden)] if excitation else []),
            conv(hidden, units, 1, activation=None),
        )
        self.stochastic_depth = StochasticDepth(0.2)

    def forward(self, x):
        if self.use_res_connect:
            return x + self.stochastic_depth(self.conv(x))
        return self.conv(x)


class MobileNet(nn.Module):
    def __init__(self, blocks, activation, last, pool):
        super().__init__()
        self.features = nn.Sequential(conv(3, 8, 3, 2, activation=activation), *blocks, last)
        self.pool, self.classifier = pool, nn.Sequential(nn.Dropout(0.2), nn.Linear(last[0].out_channels, 10))

    def forward(self, x):
        x = self.features(x)
        x = F.adaptive_avg_pool2d(x, (1, 1)) if self.pool else x.mean((2, 3), keepdim=True)
        x = torch.flatten(x, 1)
        return self.classifier(x)


def mobilenet_v2():
    block = InvertedResidual
    blocks = (block(8, 4, hidden=8), block(4, 6, hidden=24, stride=2), block(6, 6, hidden=36))
    return MobileNet(blocks, nn.ReLU6, conv(6, 20, 1, activation=nn.ReLU6), pool=True)


def mobilenet_v3():
    def squeeze(channels):
        return SqueezeExcitation(channels, 4, nn.ReLU, nn.Hardsigmoid)

    block = functools.partial(InvertedResidual, activation=nn.Hardswish)
    blocks = (
        InvertedResidual(8, 8, hidden=8, stride=2, activation=nn.ReLU, excitation=squeeze),
        block(8, 10, hidden=16, kernel=5, stride=2, excitation=squeeze),
        block(10, 10, hidden=20, kernel=5, excitation=squeeze),
    )
    return MobileNet(blocks, nn.Hardswish, conv(10, 20, 1, activation=nn.Hardswish), pool=True)


def efficientnet_b0():
    def squeeze(channels):
        return SqueezeExcitation(channels, 2, nn.SiLU, nn.Sigmoid)

    block = functools.partial(InvertedResidual, activation=nn.SiLU, excitation=squeeze)
    blocks = (
        block(8, 4, hidden=8),
        block(4, 6, hidden=24, stride=2),
        block(6, 6, hidden=36),
        block(6, 8, hidden=36, kernel=5, stride=2),
    )
    return MobileNet(blocks, nn.SiLU, conv(8, 20, 1, activation=nn.SiLU), pool=False)


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv1, self.norm2 = nn.Conv2d(inputs, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.relu2, self.conv2 = nn.ReLU(inplace=True), nn.Conv2d(8, growth, 3, padding=1, bias=False)

    def forward(self, input):
        prev_features = [input] if isinstance(input, torch.Tensor) else input
        concated_features = torch.cat(prev_features, 1)
        bottleneck_output = self.conv1(self.relu1(self.norm1(concated_features)))
        return self.conv2(self.relu2(self.norm2(bottleneck_output)))


class DenseBlock(nn.ModuleDict):
    def __init__(self, inputs, growth):
        super().__init__({f"denselayer{at + 1}": DenseLayer(inputs + at * growth, growth) for at in range(3)})

    def forward(self, init_features):
        features = [init_features]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        transition = [nn.BatchNorm2d(14), nn.ReLU(inplace=True), nn.Conv2d(14, 6, 1, bias=False), nn.AvgPool2d(2, 2)]
        self.features = nn.Sequential(
            *(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), DenseBlock(8, 2), *transition, DenseBlock(6, 4)),
            nn.BatchNorm2d(18),
        )
        self.classifier = nn.Linear(18, 10)

    def forward(self, x):
        features = self.features(x)
        out = F.relu(features, inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        out = torch.flatten(out, 1)
        return self.classifier(out)


def channel_shuffle(x, groups):
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, num_channels, height, width)


class ShuffleBlock(nn.Module):
    def __init__(self, inputs, units, stride):
        super().__init__()
        half, self.stride = units // 2, stride
        first = inputs if stride > 1 else half
        depthwise = functools.partial(conv, groups=first, activation=None)
        self.branch1 = nn.Sequential(depthwise(first, first, 3, 2), conv(first, half, 1)) if stride > 1 else None
        self.branch2 = nn.Sequential(
            *(conv(first, half, 1), conv(half, half, 3, stride, groups=half, activation=None), conv(half, half, 1))
        )

    def forward(self, x):
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.maxpool = conv(3, 8, 3, 2), nn.MaxPool2d(3, 2, 1)
        self.stage2 = nn.Sequential(ShuffleBlock(8, 12, 2), ShuffleBlock(12, 12, 1))
        self.stage3 = nn.Sequential(ShuffleBlock(12, 16, 2), ShuffleBlock(16, 16, 1))
        self.conv5, self.fc = conv(16, 20, 1), nn.Linear(20, 10)

    def forward(self, x):
        x = self.stage3(self.stage2(self.maxpool(self.conv1(x))))
        x = self.conv5(x)
        x = x.mean([2, 3])
        return self.fc(x)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return torch.permute(x, self.dims)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.block = nn.Sequential(
            *(nn.Conv2d(dim, dim, 7, padding=3, groups=dim), Permute([0, 2, 3, 1]), nn.LayerNorm(dim, eps=1e-6)),
            *(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), Permute([0, 3, 1, 2])),
        )
        self.layer_scale, self.stochastic_depth = nn.Parameter(torch.rand(dim, 1, 1)), StochasticDepth(0.1)

    def forward(self, input):
        result = self.layer_scale * self.block(input)
        result = self.stochastic_depth(result)
        result += input
        return result


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        norm = functools.partial(LayerNorm2d, eps=1e-6)
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 4, 4), norm(8), ConvNeXtBlock(8), norm(8), nn.Conv2d(8, 12, 2, 2), ConvNeXtBlock(12))
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(norm(12), nn.Flatten(1), nn.Linear(12, 10))

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)))


class EncoderBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.self_attention, self.dropout = nn.MultiheadAttention(dim, 2, batch_first=True), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))

    def forward(self, input):
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + input
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self, dim=16, patch=8, image=32):
        super().__init__()
        self.patch, self.dim = patch, dim
        self.conv_proj, self.class_token = nn.Conv2d(3, dim, patch, patch), nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim))
        self.layers, self.ln = nn.Sequential(EncoderBlock(dim), EncoderBlock(dim)), nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        n, _, h, w = x.shape
        n_h, n_w = h // self.patch, w // self.patch
        x = self.conv_proj(x)
        x = x.reshape(n, self.dim, n_h * n_w)
        x = x.permute(0, 2, 1)
        batch_class_token = self.class_token.expand(n, -1, -1)
        x = torch.cat([batch_class_token, x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        x = x[:, 0]
        return self.head(x)


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


class LastHiddenState(nn.Module):
    """A model of transformers as one input and one output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids).last_hidden_state


def gpt2():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return LastHiddenState(transformers.GPT2Model(transformers.GPT2Config(**sizes)))


def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=16)
    return LastHiddenState(transformers.BertModel(config, add_pooling_layer=False))


IMAGE, WORDS = (3, 32, 32), 40

ARCHITECTURES = {
    "ResNet-18": (IMAGE, ResNet18),
    "CIFAR ResNet-20, option A": (IMAGE, functools.partial(CifarResNet, "A")),
    "CIFAR ResNet-20, option B": (IMAGE, functools.partial(CifarResNet, "B")),
    "MobileNetV2": (IMAGE, mobilenet_v2),
    "MobileNetV3": (IMAGE, mobilenet_v3),
    "DenseNet": (IMAGE, DenseNet),
    "ShuffleNetV2": (IMAGE, ShuffleNetV2),
    "EfficientNet-B0": (IMAGE, efficientnet_b0),
    "ConvNeXt-T": (IMAGE, ConvNeXt),
    "ViT": (IMAGE, VisionTransformer),
    "GPT-2": ((9,), gpt2),
    "BERT": ((9,), bert),
    "DS-CNN, a keyword spotter": ((1, 49, 10), KeywordSpotter),
}
"""The shape of a sample, and the network; samples of one dimension are numbers of words below `WORDS`."""
