"""Train neural networks with weights ±1 by QP-SBGD, on a quantum annealer or without one."""

from qpsbgd.optim import QPSBGD, BinaryConnect, Checkpoint, ProxQuant, check_claimed, minimize, real_optimizer

__version__ = "0.1.0"

__all__ = [
    "QPSBGD",
    "BinaryConnect",
    "Checkpoint",
    "ProxQuant",
    "__version__",
    "check_claimed",
    "minimize",
    "real_optimizer",
]
