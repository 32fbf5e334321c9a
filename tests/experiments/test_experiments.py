import pytest
import torch

from qpsbgd.experiments import digits, logreg
from qpsbgd.experiments.methods import METHODS
from qpsbgd.report import demo

SMALL = digits.Digits(hidden=16, budgets=(1,), seeds=2, choosing_seeds=1, methods=("qpsbgd", "bc-sign"))
SHORT = logreg.LogReg(points=20, batch=8, steps=12, seeds=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_can_be_repeated_from_its_seed(method):
    job = {"hidden": 16, "batch": 64, "epochs": 1, "method": method, "options": METHODS[method].grid[0]}
    first = digits.train(**job, seed=1, score_on="test")
    assert digits.train(**job, seed=1, score_on="test") == first
    assert digits.train(**job, seed=2, score_on="test") != first


@pytest.mark.parametrize("line", logreg.LINES)
def test_a_run_of_logistic_regression_can_be_repeated(line):
    job = {"points": 20, "batch": 8, "steps": 10, "line": line, "seed": 3}
    assert logreg.train(**job) == logreg.train(**job)


def test_options_are_never_chosen_on_test_data():
    (train, _), (validation, _) = digits._load("validation")
    (_, _), (test, _) = digits._load("test")
    seen = {tuple(row) for row in torch.cat([train, validation]).tolist()}
    assert not seen & {tuple(row) for row in test.tolist()}
    assert all(job["score_on"] == "validation" for job in SMALL.choosing_jobs())
    with pytest.raises(ValueError, match="score_on"):
        digits._load("train")


def test_the_best_options_are_those_of_best_mean_validation_accuracy():
    from qpsbgd.experiments.runs import Finished

    grid = METHODS["bc-sign"].grid
    scores = {0: [0.5, 0.9], 1: [0.8, 0.8], 2: [0.1, 0.2], 3: [0.8, 0.8], 4: [0.0, 0.9]}
    finished = [
        Finished({"method": "bc-sign", "epochs": 2, "options": grid[i]}, {"accuracy": [0.0, value]}, False)
        for i, values in scores.items()
        for value in values
    ]
    assert digits._choose(finished) == {("bc-sign", 2): grid[1]}


def test_digits_learns_and_is_reported(tmp_path):
    events = list(digits.run(SMALL, folder=tmp_path, workers=1))
    assert events[-1][1] == events[-1][2] == len(events) - 1
    summary = digits.summary(SMALL, folder=tmp_path)
    head, body = demo.digits_table(summary)
    assert head == ["method", "1 epochs", "options"]
    assert [row[0] for row in body] == ["QP-SBGD", "BC (signSGD)"]
    assert all(min(row["accuracies"]) > 0.3 for row in summary["rows"])


def test_logistic_regression_is_reported_with_its_verdict(tmp_path):
    list(logreg.run(SHORT, folder=tmp_path, workers=1))
    summary = logreg.summary(SHORT, folder=tmp_path)
    assert [row["label"] for row in summary["rows"]] == list(logreg.LINES.values())
    assert len(summary["rows"][0]["mean"]) == 12
    assert "QP-SBGD (exact)" in demo.verdicts({"rows": []}, summary)[0]


def test_blobs_are_linearly_separable():
    for seed in range(5):
        inputs, targets = logreg.blobs(100, seed=seed)
        assert inputs.shape == (200, 3)
        difference = inputs[targets == 1].mean(0) - inputs[targets == 0].mean(0)
        score = inputs @ difference
        assert score[targets == 1].min() > score[targets == 0].max()


def test_verdicts_tell_losses_and_ties_too():
    def summary(ours, other):
        rows = [
            {"method": "qpsbgd", "label": "QP-SBGD", "epochs": 2, "accuracies": ours},
            {"method": "bc-sgd", "label": "BC (SGD)", "epochs": 2, "accuracies": other},
        ]
        return {"rows": rows}

    lines = [
        {"line": "exact", "label": "QP-SBGD (exact)", "late_mean": 0.5, "late_standard_error": 0.1},
        {"line": "bc-sign", "label": "BC (signSGD)", "late_mean": 0.3, "late_standard_error": 0.1},
    ]
    first, second = demo.verdicts(summary([0.8, 0.81], [0.9, 0.91]), {"rows": lines})
    assert "is behind the best baseline, BC (SGD)" in first
    assert "is higher than that of the best other line, BC (signSGD)" in second
    assert "is ahead of" in demo.verdicts(summary([0.9, 0.91], [0.8, 0.81]), {"rows": []})[0]
    assert "ties with" in demo.verdicts(summary([0.7, 0.9], [0.72, 0.9]), {"rows": []})[0]
