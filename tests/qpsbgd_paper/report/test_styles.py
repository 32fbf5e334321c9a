import math

import pytest

from qpsbgd_paper.report.scales import y_range
from qpsbgd_paper.report.styles import RED, line_styles


def test_well_known_methods_look_the_same_in_every_experiment(toy, make_row, make_experiment):
    other = make_experiment(
        {"a": [make_row("new", "New"), make_row("bc-sgd", "BC"), make_row("qpsbgd", "Q", kind="ours")]}
    )
    for line in ("qpsbgd", "bc-sgd"):
        assert line_styles(toy)[line] == line_styles(other)[line]
    assert line_styles(toy)["qpsbgd"].colour == RED
    assert line_styles(toy)["qpsbgd-printed"].dash


def test_all_lines_of_a_case_have_different_colours(make_row, make_experiment):
    names = ["qpsbgd", "qpsbgd-printed", "qpsbgd-annealed", "qpsbgd-dimod", "bc-sgd", "bc-sign", "bc-adam", "proxquant"]
    rows = [make_row(name, name, kind="ours" if name.startswith("q") else "baseline") for name in [*names, "x", "y"]]
    styles = line_styles(make_experiment({"a": rows}))
    assert len({style.colour for style in styles.values()}) == len(rows)


def test_where_all_lines_are_ours_none_stands_out(make_row, make_experiment):
    rows = [make_row(f"lr {rate}", f"lr {rate}", kind="ours") for rate in range(5)]
    styles = line_styles(make_experiment({"a": rows}))
    assert len({style.colour for style in styles.values()}) == 5
    assert len({style.width for style in styles.values()}) == 1


def test_an_axis_covers_all_lines_that_are_alike():
    low, high, log = y_range([[1.0, 0.5], [1.2, 0.4]], may_be_log=True)
    assert low < 0.4 and high > 1.2 and not log
    assert high - low == pytest.approx(0.8 * 1.1)


@pytest.mark.parametrize("may_be_log", [True, False])
def test_one_exploding_line_does_not_flatten_the_others(may_be_log):
    alike = [[1.0, 0.8, 0.6], [1.1, 0.8, 0.5], [1.0, 0.7, 0.6], [1.2, 0.9, 0.5]]
    low, high, log = y_range([*alike, [1.0, 1e3, 1e9]], may_be_log=may_be_log)
    assert not log
    assert low < 0.5 and 1.2 < high < 3


def test_a_loss_over_decades_is_logarithmic_and_an_accuracy_is_not():
    falling = [[100.0, 1.0, 0.001], [90.0, 2.0, 0.01]]
    low, high, log = y_range(falling, may_be_log=True)
    assert log and 0 < low < 0.001 and high > 100
    assert not y_range(falling, may_be_log=False)[2]
    assert not y_range([[100.0, 0.0]], may_be_log=True)[2]


def test_what_is_not_finite_is_left_out():
    assert y_range([[math.nan, None, math.inf]], may_be_log=True) == (0.0, 1.0, False)
    low, high, _ = y_range([[0.5, math.inf, 0.6], [None, 0.5, 0.7]], may_be_log=True)
    assert 0.4 < low < 0.5 and 0.7 < high < 0.8


def test_a_constant_line_has_room_around_it():
    low, high, _ = y_range([[0.5, 0.5]], may_be_log=True)
    assert low < 0.5 < high
