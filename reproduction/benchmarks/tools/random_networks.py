"""Random networks, and whether they give the same outputs in torch, packed, as C and as ONNX."""

import copy

import numpy as np
import torch
from graph_networks import trained
from targets import outputs_on
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation

ACTIVATIONS = nn.ReLU, nn.Hardtanh, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, SignActivation, QuantActivation
POOLS = (
    nn.Identity,
    lambda: nn.MaxPool2d(2, ceil_mode=True),
    lambda: nn.AvgPool2d(2, ceil_mode=True),
    lambda: nn.AdaptiveAvgPool2d(1),
)
ROUNDING = 1e-6  # of the largest number: what sums in single precision may be off by


class Shortcut(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def random_network(source):
    """A network and inputs: perhaps convolutions, poolings and shortcuts, then dense layers."""
    pick, layers = source.choice, []
    image = (pick((1, 3)), pick((6, 8, 9)), pick((6, 8)))
    shape = image if source.random() < 0.5 else (pick((5, 16, 33)),)
    if source.random() < 0.3:
        layers.append(SignActivation())

    def options():
        return {
            "bits": pick((1, 1, 2)),
            "scale": pick((None, None, "learned", "magnitude")),
            "bias": pick((True, False)),
        }

    def with_norm_and_shortcut(layer, units, norms, like):
        layers.extend([layer, pick(norms)(units), pick(ACTIVATIONS)()])
        if source.random() < 0.3:
            layers.append(Shortcut(nn.Sequential(like(), norms[0](units), pick(ACTIVATIONS)())))

    units = shape[0]
    for _ in range(pick((1, 2, 3)) if shape is image else 0):
        wide, kernel, stride = pick((2, 4, 6)), pick((1, 2, 3)), pick((1, 2)) if not layers else 1
        place = {"stride": stride, "padding": pick((0, 1)) if kernel > 1 else 0}
        if source.random() < 0.8:
            layer = BinaryConv2d(units, wide, kernel, **place, **options())
        else:
            layer = nn.Conv2d(units, wide, kernel, **place)
        norms = nn.BatchNorm2d, nn.BatchNorm2d, nn.Identity
        with_norm_and_shortcut(
            layer, wide, norms, lambda wide=wide: BinaryConv2d(wide, wide, 3, padding=1, **options())
        )
        units = wide
    if shape is image:
        layers += [pick(POOLS)(), nn.Flatten()]
        try:
            with torch.no_grad():
                units = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
        except RuntimeError:  # a kernel larger than what is left of the image
            return random_network(source)
    for _ in range(pick((0, 1, 2))):
        wide = pick((3, 8, 17))
        layer = BinaryLinear(units, wide, **options()) if source.random() < 0.8 else nn.Linear(units, wide)
        norms = nn.BatchNorm1d, nn.BatchNorm1d, nn.LayerNorm, nn.Identity
        with_norm_and_shortcut(layer, wide, norms, lambda wide=wide: BinaryLinear(wide, wide, **options()))
        units = wide
    layers.append(BinaryLinear(units, pick((2, 5)), **options()))
    return trained(nn.Sequential(*layers)), torch.randn(9, *shape)


def deployed_alike(model, rows, folder):
    """Whether all three targets give torch's outputs, up to rounding; inputs at ties are left out."""
    with torch.no_grad():
        expected, ties = model(rows).numpy().reshape(len(rows), -1), at_ties(model, rows)
    if ties.any():
        print(f"{ties.sum()} of {len(rows)} inputs are at ties", flush=True)
    packed, inputs = pack(model, input_shape=rows.shape[1:]), rows.numpy()
    answers = [outputs_on(target, packed, inputs, folder, "-O0") for target in ("packed", "ONNX", "C")]
    size = np.abs(expected).max()
    close = [np.allclose(answer[~ties], expected[~ties], rtol=1e-3, atol=1e-3 * size) for answer in answers]
    if not all(close):
        print("packed, ONNX and C are close:", close, model, flush=True)
    return all(close)


def at_ties(model, rows):
    """Which inputs come within rounding of a step of an activation, but not exactly onto it, in either precision.

    So do sums of two vectors with scales of 2:1, which cancel, and numbers before an 8-bit activation now and then.
    """
    ties = np.zeros(len(rows), dtype=bool)

    def look(module, inputs, output):
        x = inputs[0].double()
        steps = x / module.scale.double() - 0.5 if isinstance(module, QuantActivation) else x
        away = (steps - steps.round()).abs() if isinstance(module, QuantActivation) else steps.abs()
        near = (away > 0) & (away < ROUNDING * steps.abs().max())
        ties[near.flatten(1).any(1).numpy()] = True

    for network, inputs in ((model, rows), (copy.deepcopy(model).double(), rows.double())):
        activations = [each for each in network.modules() if isinstance(each, SignActivation | QuantActivation)]
        hooks = [each.register_forward_hook(look) for each in activations]
        network(inputs)
        for hook in hooks:
            hook.remove()
    return ties
