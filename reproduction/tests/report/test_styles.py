import math

import pytest

from qpsbgd_paper.report.scales import exits, y_range
from qpsbgd_paper.report.styles import COOL, KNOWN, PALETTE, RED, WARM, line_styles, styles_of


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


def test_a_colour_belongs_to_one_method_and_ours_never_have_a_peers():
    known = [style.colour for style in KNOWN.values()]
    assert len(set(known)) == len(known)
    assert not set(known) & {*WARM, *COOL} and not set(WARM) & set(COOL)
    baselines = {style.colour for line, style in KNOWN.items() if not line.startswith("qpsbgd")} | {"#17a589"}
    assert not baselines & {*PALETTE, *WARM}
    assert len(set(PALETTE)) == len(PALETTE)


def test_solvers_have_their_own_colours_ours_warm_and_peers_cool():
    styles = styles_of({"auto": "ours", "descent": "ours", "tabu": "baseline", "annealing": "baseline"})
    assert [styles[name].colour for name in ("auto", "descent")] == [RED, WARM[0]]
    assert {styles[name].colour for name in ("tabu", "annealing")} <= set(COOL)


def test_a_line_that_leaves_the_scale_is_found_where_it_crosses_the_edge():
    assert exits([0, 1, 2], [1.0, 3.0, 9.0], low=0, high=2) == [(0.5, True, 9.0)]
    assert exits([0, 1, 2], [5.0, None, -4.0], low=0, high=2) == [(0.0, True, 5.0), (2.0, False, -4.0)]
    assert exits([0, 1, 2], [1.0, None, 2.0], low=0, high=2) == []
