"""A layer's QUBOs as one family with a shared quadratic part: the family, the map that makes it, and its files."""

from qpsbgd.binary_map import binary_map
from qpsbgd_qubo.family import QuboFamily, Solution

__all__ = ["QuboFamily", "Solution", "binary_map"]
