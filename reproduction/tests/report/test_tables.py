import math

import pytest

from qpsbgd_paper.report.tables import (
    claims_sentence,
    main_tables,
    mean_and_deviation,
    metric_tables,
    options_tables,
    options_text,
)


def column(table, name):
    place = table.head.index(name)
    return [row[place] for row in table.rows]


def test_cells_are_means_with_the_sample_deviation_over_seeds():
    # Mean 2, squared distances 1 + 0 + 1, over n - 1 = 2.
    assert mean_and_deviation([1.0, 2.0, 3.0]) == "2.000 ± 1.000"
    assert mean_and_deviation([0.5]) == "0.500"
    assert mean_and_deviation([]) == "–"


def test_a_figure_that_is_not_finite_is_a_run_that_diverged():
    assert mean_and_deviation([None]) == mean_and_deviation([math.nan, math.inf]) == "diverged"
    assert mean_and_deviation([0.5, None, 0.5]) == "1 of 3 diverged"


def test_methods_are_rows_and_the_papers_figures_stand_beside_ours(toy):
    (table,) = main_tables(toy)
    assert table.title == "test accuracy"
    assert table.head == ["method", "0/2", "in the paper"]
    assert table.rows == [
        ["QP-SBGD", "0.850 ± 0.071", "–"],
        ["QP-SBGD, as printed", "0.650 ± 0.071", "0.66"],
        ["BinaryConnect (SGD)", "0.750 ± 0.071", "0.7"],
    ]
    assert table.best == {(0, 1)}


def test_the_lowest_loss_is_the_best_and_what_diverged_never_is(make_row, make_experiment):
    rows = [
        make_row("one", "One", values=(2.0, 3.0)),
        make_row("two", "Two", values=(0.5, 0.6)),
        make_row("three", "Three", values=(math.nan, 0.1)),
    ]
    metric = {"key": "score", "label": "loss", "higher": False}
    (table,) = metric_tables(make_experiment({"a": rows}, metrics=[metric]), metric)
    assert table.best == {(1, 1)}
    assert column(table, "a")[2] == "1 of 2 diverged"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((250.0, 260.0), "255.0 ± 7.1"),
        ((12.5, 12.5), "12.50 ± 0.00"),
        ((0.02, 0.03), "0.0250 ± 0.0071"),
        ((2e-6, 4e-6), "3e-06 ± 1.41e-06"),
    ],
)
def test_decimals_follow_the_size_of_the_figures(make_row, make_experiment, values, text):
    (table,) = main_tables(make_experiment({"a": [make_row("one", "One", values=values)]}))
    assert table.rows[0][1] == text


def test_options_are_words(toy, study):
    assert not options_tables(study)
    (table,) = options_tables(toy)
    assert table.rows[0] == ["QP-SBGD", "lr 0.03, clip none"]
    solver = {"name": "quantum-annealing", "sweeps": 16}
    assert options_text({"solver": solver, "momentum": 0.0}) == "solver quantum-annealing (sweeps 16), momentum 0"


def test_options_say_by_which_rates_a_grid_was_extended(toy):
    row = toy["cases"][0]["rows"][0]
    row["grid"] = [[{"lr": 0.01}, {"lr": 0.03}], [{"lr": 0.09}, {"lr": 0.27}]]
    assert options_tables(toy)[0].rows[0][1] == "lr 0.03, clip none (grid extended by lr 0.09, 0.27)"
    row["options"] = {"lr": 0.27}
    assert options_tables(toy)[0].rows[0][1] == "lr 0.27 (grid extended by lr 0.09, 0.27, still at its edge)"
    row |= {"grid": [[{}], []], "options": {}}
    assert options_tables(toy)[0].rows[0][1] == "defaults"


def test_only_claims_of_the_paper_are_counted(toy, study):
    study["claims"] *= 2
    study["claims"].append({"text": "x", "source": "beyond", "verdict": "no"})
    study["claims"].append({"text": "x", "source": "paper", "verdict": "cannot tell"})
    found = claims_sentence([toy, study])
    assert found.endswith(
        "own form and setting, 3 hold here and 1 cannot be told apart from the controls or from noise."
    )
    assert found.startswith("Of 4 statements of the paper")
    assert claims_sentence([{**toy, "claims": []}]) == ""
