"""A layer's QUBOs as one family with a shared quadratic part: what they are, where they come from, files of them."""

from qpsbgd.binary_map import binary_map
from qpsbgd_qubo.family import QuboFamily, Solution

__all__ = ["QuboFamily", "Solution", "binary_map"]
