import numpy as np
import pytest

from qpsbgd.analysis import ADVANTAGE, LINEAR, Schedule, load_schedule


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


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


def test_a_schedule_is_read_from_the_chips_file(tmp_path):
    text = "s,A(s) (GHz),B(s) (GHz),C (normalized)\n0,9.0,0.2,0\n0.5,1.0,4.0,0.3\n\n1,0.0,8.0,1\n"
    schedule = load_schedule(written(tmp_path / "chip.csv", "\ufeff" + text))
    assert (schedule.name, schedule.unit) == ("chip", "GHz")
    transverse, problem = schedule.at(0.25)
    assert (float(transverse), float(problem)) == (5.0, pytest.approx(2.1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names the columns"),
        ("0,9,0\n1,0,8\n", "names the columns"),
        ("s,A(s) (GHz)\n0,9\n1,0\n", "names the columns"),
        ("s,A(s),B(s)\n0,9,zero\n1,0,8\n", "numbers"),
        ("s,A(s),B(s)\n0,9\n1,0,8\n", "numbers"),
        ("s,A(s),B(s)\n0,9,0\n0.5,nan,4\n1,0,8\n", "NaN"),
        ("s,A(s),B(s)\n0,9,0\n0.6,3,4\n0.5,2,5\n1,0,8\n", "rise from 0 to 1"),
        ("s,A(s),B(s)\n0.1,9,0\n1,0,8\n", "rise from 0 to 1"),
        ("s,A(s),B(s)\n0,3,0\n0.5,4,4\n1,0,8\n", r"A rises before s = 0\.5"),
        ("s,A(s),B(s)\n0,3,1\n0.5,2,0\n1,0,8\n", r"B falls before s = 0\.5"),
        ("s,A(s),B(s)\n0,3,-1\n1,0,8\n", "negative"),
        ("s,A(s),B(s)\n", "one length"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused_with_its_name(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load_schedule(written(tmp_path / "wrong.csv", text))
    assert "wrong.csv" in str(error.value)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Schedule("mine", "", np.array([0.0, 1.0]), np.array([1.0, 0.5, 0.0]), np.array([0.0, 1.0]))
