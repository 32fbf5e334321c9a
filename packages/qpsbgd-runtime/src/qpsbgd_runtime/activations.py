"""The smooth functions of `Activation`, as torch computes them in float32."""

from collections.abc import Callable

import numpy as np

from qpsbgd_runtime.operations import Array


@np.errstate(over="ignore")
def _sigmoid(x: Array) -> Array:
    """As torch computes it: positive until exp overflows."""
    return 1 / (1 + np.exp(-x))


@np.errstate(over="ignore")
def _silu(x: Array) -> Array:
    """As torch computes it: negative until exp overflows."""
    return x / (1 + np.exp(-x))


def _hard_sigmoid(x: Array) -> Array:
    return (x + np.float32(3)).clip(0, 6) / np.float32(6)


@np.errstate(over="ignore")
def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    share: Array = np.float32(0.5) * (1 + np.tanh(inner))
    return x * share


# erf(x) for |x| ≤ 4 as x · P(x²) / Q(x²), to the precision of float32; the polynomials of Eigen and XLA.
_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)


def _erf(x: Array) -> Array:
    x = x.clip(-4, 4)
    square = x * x
    above, below = np.full_like(x, _P[0]), np.full_like(x, _Q[0])
    for number in _P[1:]:
        above = above * square + np.float32(number)
    for number in _Q[1:]:
        below = below * square + np.float32(number)
    ratio: Array = above / below
    return x * ratio


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: np.float32(0.5) * x * (1 + _erf(np.float32(np.sqrt(0.5)) * x)),
    "gelu tanh": _gelu_tanh,
    "hard sigmoid": _hard_sigmoid,
    "hard swish": lambda x: x * _hard_sigmoid(x),
    "sigmoid": _sigmoid,
    "silu": _silu,
    "tanh": np.tanh,
}
"""By name; "leaky relu", which has a slope, is not among them."""
