"""Small networks that are not chains: what people train."""

import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, SignActivation, convert


def trained(model):
    """Parameters and statistics as after training: norms of any sign, biases that are not zero."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.3, 3)
                module.weight.normal_()
            if isinstance(module, nn.LayerNorm | nn.GroupNorm):
                module.weight.normal_(1, 0.3)
            if getattr(module, "bias", None) is not None:
                module.bias.normal_(std=0.3)
    return model


class ResidualBlock(nn.Module):
    def __init__(self, inputs, units, stride=1, activation=nn.ReLU):
        super().__init__()
        self.first = nn.Sequential(BinaryConv2d(inputs, units, 3, stride, 1), nn.BatchNorm2d(units), activation())
        self.second = nn.Sequential(BinaryConv2d(units, units, 3, padding=1), nn.BatchNorm2d(units))
        self.shortcut = None
        if stride > 1 or inputs != units:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, units, 1, stride, bias=False), nn.BatchNorm2d(units))

    def forward(self, x, scale=None):
        out = self.second(self.first(x))
        out += x if self.shortcut is None else self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(ResidualBlock(8, 8), ResidualBlock(8, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=1, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


class BinaryResNet(nn.Module):
    """Bits into every layer, real numbers along the shortcuts, which also come from sums of bits."""

    def __init__(self):
        super().__init__()
        self.stem = BinaryConv2d(3, 70, 3, padding=1)
        self.layers = nn.ModuleList([BinaryConv2d(70, 70, 3, padding=1) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(70) for _ in range(3)])
        self.sign = SignActivation()
        self.head = BinaryLinear(70, 4)

    def forward(self, x):
        x = self.norms[0](self.stem(self.sign(x)))
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = x + norm(layer(self.sign(x)))
        return self.head(self.sign(F.avg_pool2d(x, 8).flatten(1)))


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([BinaryConv2d(3 + 4 * at, 4, 3, padding=1) for at in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(3 + 4 * at) for at in range(3)])
        self.head = nn.Linear(15, 5)

    def forward(self, x):
        values = [x]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            joint = torch.cat(values, 1)
            values.append(layer(F.leaky_relu(norm(joint), 0.2)))
        return torch.tanh(self.head(torch.cat(values, dim=1).mean(dim=[-1, -2])))


class Attention(nn.Module):
    """As in nanoGPT, with a mask."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = BinaryLinear(width, 3 * width), BinaryLinear(width, width, bias=True)
        self.register_buffer("mask", torch.ones(length, length).tril().view(1, 1, length, length))

    def forward(self, x):
        rows, length, width = x.shape
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        query, key, value = (
            one.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for one in (query, key, value)
        )
        scores = (query @ key.transpose(-2, -1)) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ value
        return self.outputs(mixed.transpose(1, 2).contiguous().view(rows, length, width))


class Transformer(nn.Module):
    def __init__(self, width=12, heads=3, length=6):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, length, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width), nn.RMSNorm(width)])
        self.attention = Attention(width, heads, 8)
        self.widen, self.narrow = BinaryLinear(width, 2 * width, bits=2), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = x + self.positions
        x = x + self.attention(self.norms[0](x))
        x = x + self.narrow(F.gelu(self.widen(self.norms[1](x))))
        return self.head(self.norms[2](x)[:, -1])


class FlashTransformer(nn.Module):
    """torch's own attention, bits into the layers, and other functions."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.heads, self.sign = heads, SignActivation()
        self.inputs, self.outputs = BinaryLinear(width, 3 * width, bias=True), BinaryLinear(width, width)
        self.register_buffer("factors", torch.rand(width) + 0.5)

    def forward(self, x):
        heads = self.inputs(self.sign(x)).unflatten(-1, (3, self.heads, -1)).permute(0, 2, 3, 1, 4)
        query, key, value = heads.unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x * self.factors - self.outputs(self.sign(mixed.transpose(1, 2).flatten(2)))
        return (1 - x.clamp(-2, 0.5)).mean(1)


class Joined(nn.Module):
    """What else there is between layers."""

    def __init__(self):
        super().__init__()
        self.left, self.right = BinaryConv1d(3, 4, 3, padding=1), nn.Conv1d(3, 4, 1)
        self.matrix = nn.Parameter(torch.randn(6, 2))

    def forward(self, x):
        left, right = F.gelu(self.left(x), approximate="tanh"), torch.sigmoid(self.right(x))
        first, second = (left * right - 0.5 * left).split([1, 3], dim=1)
        both = first.squeeze(1).unsqueeze(1) + second
        return (-both).reshape(-1, 18)[:, 2:14].view(x.shape[0], 2, -1) @ self.matrix


class Numbers(nn.Module):
    """Numbers on both sides of an operator, a mask that fills in a number, and a gain that is one."""

    def __init__(self):
        super().__init__()
        self.layer, self.twice = BinaryLinear(6, 5), BinaryLinear(5, 4, gain=2)
        self.register_buffer("mask", torch.tensor([True, False, False, True, False]))

    def forward(self, x):
        x = self.layer(x) - 0.5
        x = (0.75 - x) * 1.5 + 0.25
        return self.twice(x.masked_fill(self.mask, 3.0)) / 4


class TakenTwice(nn.Module):
    """Sums of bits that a sign and an addition take, and bits that two layers take."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(BinaryLinear(n, m, gain=1) for n, m in ((6, 70), (70, 70), (70, 5), (70, 5)))
        self.sign = SignActivation()

    def forward(self, x):
        sums = self.layers[0](self.sign(x))
        bits = self.sign(sums)
        some = sums[:, :5]
        further = self.sign(self.layers[1](bits))
        return self.layers[2](further) + self.layers[3](bits) + some


class ConvertedAttention(nn.Module):
    """torch's own attention, converted."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.attention = convert(nn.MultiheadAttention(12, 3, batch_first=batch_first), first=True, last=True)
        self.layer = BinaryLinear(12, 4)

    def forward(self, x):
        mixed, _ = self.attention(x, x, x)
        return self.layer(x + mixed)


GRAPHS = {
    "resnet": ((3, 8, 8), ResNet),
    "binary resnet": ((3, 8, 8), BinaryResNet),
    "densenet": ((3, 8, 8), DenseNet),
    "transformer": ((6, 12), Transformer),
    "flash transformer": ((6, 12), FlashTransformer),
    "attention": ((6, 12), ConvertedAttention),
    "joined": ((3, 6), Joined),
    "numbers": ((6,), Numbers),
    "taken twice": ((6,), TakenTwice),
}
"""The shape of a sample, and the network."""
