"""Optimisers of binary layers."""

from qpsbgd.optim.baselines import BinaryConnect, Bop, ProxQuant, StraightThrough
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.optim.qubo_descent import QuboDescent
from qpsbgd.optim.real_part import real_optimizer
from qpsbgd.optim.recommend import Recommendation, recommend

__all__ = [
    "QPSBGD",
    "BinaryConnect",
    "Bop",
    "ProxQuant",
    "QuboDescent",
    "Recommendation",
    "StraightThrough",
    "real_optimizer",
    "recommend",
]
