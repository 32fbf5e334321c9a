"""Optimisers of binary layers, and P-SBGD for plain functions."""

from qpsbgd.optim.baselines import BinaryConnect, Bop, ProxQuant, StraightThrough
from qpsbgd.optim.checkpoint import Checkpoint
from qpsbgd.optim.minimize import Minimum, minimize
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.optim.qubo_descent import QuboDescent
from qpsbgd.optim.real_part import real_optimizer
from qpsbgd.optim.recommend import Recommendation, recommend

__all__ = [
    "QPSBGD",
    "BinaryConnect",
    "Bop",
    "Checkpoint",
    "Minimum",
    "ProxQuant",
    "QuboDescent",
    "Recommendation",
    "StraightThrough",
    "minimize",
    "real_optimizer",
    "recommend",
]
