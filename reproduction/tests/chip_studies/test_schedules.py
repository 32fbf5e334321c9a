import numpy as np
import pytest

from qpsbgd_paper.chip_studies.spectrum import ADVANTAGE, LINEAR


def test_the_linear_schedule_is_linear():
    transverse, problem = LINEAR.at(np.array([0.0, 0.25, 1.0]))
    assert transverse.tolist() == [1.0, 0.75, 0.0]
    assert problem.tolist() == [0.0, 0.25, 1.0]


# Of the published file, at points that are not in our table.
@pytest.mark.parametrize(
    ("s", "transverse", "problem"),
    [(0.05, 8.802749, 0.2864872), (0.25, 4.328536, 0.5731411), (0.35, 1.66216, 1.243029), (0.33, 2.167258, 1.033356)],
)
def test_the_chips_schedule_is_the_published_one_between_its_points_too(s, transverse, problem):
    assert ADVANTAGE.at(s) == (pytest.approx(transverse, rel=6e-3), pytest.approx(problem, rel=6e-3))
    assert ADVANTAGE.unit == "GHz"
