"""Train neural networks with weights ±1 by QP-SBGD, with or without a quantum annealer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qpsbgd.analysis.minimize import minimize
    from qpsbgd.analysis.monitor import Monitor
    from qpsbgd.binarization import binarize
    from qpsbgd.checkpoint import Checkpoint
    from qpsbgd.nn import summary
    from qpsbgd.nn.saving import load
    from qpsbgd.optim import (
        QPSBGD,
        BinaryConnect,
        Bop,
        ProxQuant,
        QuboDescent,
        StraightThrough,
        real_optimizer,
        recommend,
    )

__version__ = "0.1.0"

__all__ = [
    "QPSBGD",
    "BinaryConnect",
    "Bop",
    "Checkpoint",
    "Monitor",
    "ProxQuant",
    "QuboDescent",
    "StraightThrough",
    "__version__",
    "binarize",
    "load",
    "minimize",
    "real_optimizer",
    "recommend",
    "summary",
]


_PACKAGES = ("analysis", "binarization", "deploy", "nn", "optim", "qubo", "solvers", "testing")


def __getattr__(name: str) -> Any:
    # Not at the top: the command line must set OpenMP's wait policy before torch is loaded.
    if name in __all__:
        homes = {
            "summary": "qpsbgd.nn",
            "load": "qpsbgd.nn.saving",
            "binarize": "qpsbgd.binarization",
            "Checkpoint": "qpsbgd.checkpoint",
            "Monitor": "qpsbgd.analysis.monitor",
            "minimize": "qpsbgd.analysis",
        }
        return getattr(import_module(homes.get(name, "qpsbgd.optim")), name)
    if name in _PACKAGES:
        return import_module(f"qpsbgd.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_PACKAGES]
