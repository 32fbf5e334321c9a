import numpy as np
import pytest

from qpsbgd_paper.chip_studies.schedules import ADVANTAGE, LINEAR, Schedule


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


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 9, 0), (0.5, np.nan, 4), (1, 0, 8)], "NaN"),
        ([(0, 9, 0), (0.6, 3, 4), (0.5, 2, 5), (1, 0, 8)], "rise from 0 to 1"),
        ([(0.1, 9, 0), (1, 0, 8)], "rise from 0 to 1"),
        ([(0, 3, 0), (0.5, 4, 4), (1, 0, 8)], r"A rises before s = 0\.5"),
        ([(0, 3, 1), (0.5, 2, 0), (1, 0, 8)], r"B falls before s = 0\.5"),
        ([(0, 3, -1), (1, 0, 8)], "negative"),
    ],
)
def test_what_is_no_schedule_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Schedule("mine", "", *np.array(rows).T)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Schedule("mine", "", np.array([0.0, 1.0]), np.array([1.0, 0.5, 0.0]), np.array([0.0, 1.0]))
