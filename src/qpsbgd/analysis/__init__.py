"""The paper's theory as tools for a trained or training model."""

from qpsbgd.analysis.direction import DirectionTest, direction_test
from qpsbgd.analysis.fixed_points import FixedPoints, fixed_points
from qpsbgd.analysis.full_batch import FullBatch, full_batch

__all__ = ["DirectionTest", "FixedPoints", "FullBatch", "direction_test", "fixed_points", "full_batch"]
