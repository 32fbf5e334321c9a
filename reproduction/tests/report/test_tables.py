import math

import pytest

from qpsbgd_paper.report.tables import (
    Table,
    claims_sentence,
    claims_table,
    main_tables,
    mean_and_deviation,
    metric_tables,
    options_tables,
    options_text,
    other_tables,
    table_of,
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


def test_without_reported_figures_there_is_no_column_for_them(make_row, make_experiment):
    (table,) = main_tables(make_experiment({"a": [make_row("one", "One")], "b": [make_row("one", "One")]}))
    assert table.head == ["method", "a", "b"]


def test_a_case_that_is_called_paper_is_not_taken_for_the_papers_figures(make_row, make_experiment):
    (table,) = main_tables(
        make_experiment({"paper": [make_row("one", "One", reported=0.3)], "b": [make_row("one", "One")]})
    )
    assert table.head == ["method", "paper", "in the paper, paper", "b"]
    assert table.rows[0][2] == "0.3"


def test_reported_words_stay_as_they_are(make_row, make_experiment):
    (table,) = main_tables(
        make_experiment({"a": [make_row("one", "One", reported="about 0.7"), make_row("two", "Two")]})
    )
    assert column(table, "in the paper") == ["about 0.7", "–"]


def test_the_papers_figures_belong_to_the_first_metric_only(toy):
    toy["metrics"].append({"key": "last", "label": "last accuracy", "higher": True})
    for row in toy["cases"][0]["rows"]:
        row["values"]["last"] = [0.1, 0.2]
    (other,) = other_tables(toy)
    assert (other.title, other.head) == ("last accuracy", ["method", "0/2"])


def test_equal_means_as_printed_are_all_marked(make_row, make_experiment):
    rows = [
        make_row("one", "One", values=(0.7001, 0.7001)),
        make_row("two", "Two", values=(0.7004, 0.7004)),
        make_row("three", "Three", values=(0.6, 0.6)),
    ]
    (table,) = main_tables(make_experiment({"a": rows}))
    assert table.best == {(0, 1), (1, 1)}


def test_nothing_is_marked_where_all_are_the_same_or_alone(make_row, make_experiment):
    same = make_experiment({"a": [make_row("one", "One"), make_row("two", "Two")], "b": [make_row("one", "One")]})
    assert not main_tables(same)[0].best


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


def test_cases_of_one_setting_share_a_table(make_row, make_experiment):
    labels = [(pair, setting) for setting in ("paper", "long, slow") for pair in ("0/2", "1/2")]
    summary = make_experiment({label: [make_row("one", "One")] for label in labels})
    found = main_tables(summary)
    assert [table.title for table in found] == ["test accuracy (paper)", "test accuracy (long, slow)"]
    assert all(table.head == ["method", "0/2", "1/2"] for table in found)


def test_a_comma_alone_makes_no_settings(make_row, make_experiment):
    summary = make_experiment({label: [make_row("one", "One")] for label in ("a, b", "c, b", "e, b")})
    (table,) = main_tables(summary)
    assert table.head == ["method", "a, b", "c, b", "e, b"]


def test_cases_without_a_common_method_have_their_own_main_tables(make_row, make_experiment):
    summary = make_experiment({"rate": [make_row("lr 1", "lr 1")], "batch": [make_row("8", "8"), make_row("9", "9")]})
    assert [table.head for table in main_tables(summary)] == [["method", "rate"], ["method", "batch"]]
    assert [len(table.rows) for table in main_tables(summary)] == [1, 2]


def test_a_method_that_is_missing_from_a_case_leaves_a_dash(make_row, make_experiment):
    one, two = make_row("one", "One"), make_row("two", "Two")
    (table,) = main_tables(make_experiment({"a": [one, two], "b": [one]}))
    assert column(table, "b")[1] == "–"


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


def test_an_experiments_own_tables_come_after_the_main_one(toy):
    toy["tables"] = [{"title": "Every run", "head": ["run", "k"], "body": [["1", "412"]]}]
    assert main_tables(toy)[1] == Table("Every run", ["run", "k"], [["1", "412"]])
    assert [table.title for table in main_tables({**toy, "metrics": [], "cases": []})] == ["Every run"]


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


def test_claims_name_methods_by_their_labels_and_say_whose_they_are(toy):
    table = claims_table(toy)
    assert table.head == ["claim", "verdict", "here", "says"]
    detail = "0.85 against 0.75 (BinaryConnect (SGD)), two standard errors 0.05"
    assert table.rows[0] == ["QP-SBGD is best", "yes", detail, "the paper"]
    assert table.rows[1][3] == "our aim"
    toy["claims"][0]["number"] = "0.9"
    assert claims_table(toy).head == ["claim", "verdict", "the paper", "here", "says"]
    assert claims_table(toy, sources=["paper"]).rows == [["QP-SBGD is best", "yes", "0.9", detail]]


def test_a_claim_on_one_case_says_which_unless_it_does_already(toy):
    toy["claims"] = [
        {"text": "A is best", "source": "paper", "verdict": "yes", "cases": ["gain 1"]},
        {"text": "A is best (gain 1)", "source": "paper", "verdict": "yes", "cases": ["gain 1"]},
    ]
    assert [row[0] for row in claims_table(toy).rows] == ["A is best (gain 1)", "A is best (gain 1)"]


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


def test_rows_without_a_cell_have_a_dash():
    assert table_of("T", [{"a": "1"}, {"b": "2"}]) == Table("T", ["a", "b"], [["1", "–"], ["–", "2"]])


def test_baselines_are_written_out(toy):
    assert main_tables(toy)[0].rows[2][0] == "BinaryConnect (SGD)"
