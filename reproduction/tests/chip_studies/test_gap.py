import json

import numpy as np
import pytest
import torch

from qpsbgd_paper.chip_studies.gap import measure
from qpsbgd_paper.experiments import make_experiment


@pytest.fixture
def adult(published):
    published("adult/a1a.t")


def test_a_small_run_shows_figures_tables_and_claims(adult, tmp_path):
    experiment = make_experiment("gap").quick()
    experiment.prepare()
    list(experiment.run(folder=tmp_path))
    summary = json.loads(json.dumps(experiment.summary(folder=tmp_path), allow_nan=False))
    assert summary["experiment"] == "gap"
    for figure in summary["figures"]:
        assert {"name", "title", "caption", "kind", "panels"} <= set(figure)
        for panel in figure["panels"]:
            assert all(len(line["x"]) == len(line["y"]) for line in panel["lines"])
    for table in summary["tables"]:
        assert all(
            len(row) == len(table["head"]) and all(isinstance(cell, str) for cell in row) for row in table["body"]
        )
    for claim in summary["claims"]:
        assert claim["verdict"] in ("yes", "no", "cannot tell")
        assert claim["detail"]


def test_a_layers_gap_can_be_repeated_from_its_seed(adult):
    job = {"neurons": 2, "scale": "literal", "gain": "1", "seed": 0, "steps": 2}
    first = measure(**job)
    torch.manual_seed(99)
    assert measure(**job) == first
    own = first["gaps"]["own"]
    low, high = first["bar"]
    assert high - low == pytest.approx(own["smallest"])
    lowest = np.array(first["levels"])
    assert (np.diff(lowest, axis=0) >= 0).all()
    nearest = round(100 * own["position"])
    assert lowest[0, nearest] == pytest.approx(low, abs=0.02)


def test_at_scale_1_a_single_row_gives_every_neuron_the_same_gap(adult):
    gaps = {
        measure(neurons=2, scale=1.0, gain="1", seed=seed, steps=1)["gaps"]["chip"]["smallest"] for seed in range(3)
    }
    assert max(gaps) - min(gaps) < 1e-9
