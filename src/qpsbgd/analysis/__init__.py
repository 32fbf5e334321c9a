"""The paper's theory and statistics as tools for a trained or training model."""

from qpsbgd.analysis.direction import DirectionTest, direction_test
from qpsbgd.analysis.diversity import jaccard, lowest
from qpsbgd.analysis.fixed_points import FixedPoints, fixed_points
from qpsbgd.analysis.full_batch import FullBatch, full_batch
from qpsbgd.analysis.schedules import ADVANTAGE, LINEAR, Schedule, load_schedule
from qpsbgd.analysis.spectrum import SpectralGap, levels, spectral_gap

__all__ = [
    "ADVANTAGE",
    "LINEAR",
    "DirectionTest",
    "FixedPoints",
    "FullBatch",
    "Schedule",
    "SpectralGap",
    "direction_test",
    "fixed_points",
    "full_batch",
    "jaccard",
    "levels",
    "load_schedule",
    "lowest",
    "spectral_gap",
]
