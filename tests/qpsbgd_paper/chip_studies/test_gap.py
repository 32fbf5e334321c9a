import json

import numpy as np
import pytest
import torch

pytest.importorskip("dimod")
pytest.importorskip("dwave.graphs")
pytest.importorskip("minorminer")

from qpsbgd.nn.tape import LayerRecord
from qpsbgd.testing import random_family
from qpsbgd_paper.chip_studies import gap_options
from qpsbgd_paper.chip_studies.gap import measure
from qpsbgd_paper.chip_studies.gap_forms import BASE, COLUMNS, Sent, forms_of, minima, sampled
from qpsbgd_paper.chip_studies.gap_options import GapOptions
from qpsbgd_paper.experiments import make_experiment
from qpsbgd_qubo.ising import ising_columns
from qpsbgd_qubo.solvers.exact.exact import Exact


@pytest.fixture
def adult(published):
    published("adult/a1a.t")


def records(count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (8, 4), (8, COLUMNS)
    return [LayerRecord(*(torch.randn(shape, generator=generator) for shape in shapes)) for _ in range(count)]


@pytest.mark.parametrize("name", ["gap", pytest.param("gap-options", marks=pytest.mark.slow)])
def test_a_small_run_shows_figures_tables_and_claims(adult, tmp_path, name):
    experiment = make_experiment(name).quick()
    experiment.prepare()
    list(experiment.run(folder=tmp_path))
    summary = json.loads(json.dumps(experiment.summary(folder=tmp_path), allow_nan=False))
    assert summary["experiment"] == name
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
    job = {"inputs": 3, "neurons": 2, "batch": 1, "scale": "literal", "gain": "1", "seed": 0, "steps": 2}
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
        measure(inputs=3, neurons=2, batch=1, scale=1.0, gain="1", seed=seed, steps=1)["gaps"]["chip"]["smallest"]
        for seed in range(3)
    }
    assert max(gaps) - min(gaps) < 1e-9


def test_forms_that_only_differ_in_the_diagonal_are_the_same_problem():
    forms = forms_of(records(), 1.0, seed=0)
    for one, two in zip(*(ising_columns(forms[n].family) for n in (BASE, "with another diagonal")), strict=True):
        assert (one.fields == two.fields).all()
        assert (one.couplings == two.couplings).all()
    assert (forms["with another diagonal"].family.quadratic != forms[BASE].family.quadratic).any()


def test_problems_taken_over_bits_have_the_energies_of_bits():
    forms = forms_of(records(), 1.0, seed=0)
    base, bits = forms[BASE].family, forms["taken over bits by mistake"].family
    zeros = -torch.ones(4, COLUMNS).double()
    spins = zeros.clone()
    spins[1] = 1
    # From all bits 0 to one bit 1 the energy bᵀQb + sᵀb rises by Q₁₁ + s₁.
    rise = bits.energies(spins) - bits.energies(zeros)
    torch.testing.assert_close(rise, base.quadratic[1, 1] + base.linear[1])


def test_momentum_weighs_the_last_update_most():
    seen = records(2)
    mean = forms_of(seen, 1.0, seed=0)["momentum 0.9"].family
    parts = [forms_of([record], 1.0, seed=0)[BASE].family for record in seen]
    torch.testing.assert_close(mean.linear, 0.09 * parts[0].linear + 0.1 * parts[1].linear)


def test_no_form_is_sent_larger_than_the_ranges_allow():
    for sent in forms_of(records(), 1.0, seed=0).values():
        assert (sent.shrink > 0).all()
        assert (sent.shrink <= 1).all()


def test_minima_are_those_of_the_exact_solver():
    family = random_family(5, COLUMNS, 8).to(torch.float64)
    torch.testing.assert_close(minima(family), Exact().solve(family).energies)


def test_reads_of_a_chip_without_errors_are_mostly_minima_in_their_columns():
    family = random_family(6, COLUMNS, 16).to(torch.float64)
    spins = sampled(Sent(family), errors=(0.0, 0.0), reads=40, seed=0)
    assert spins.shape == (40, 6, COLUMNS)
    assert set(spins.unique().tolist()) == {-1.0, 1.0}
    assert (family.energies(spins) <= minima(family)).double().mean() > 0.5
    assert torch.equal(spins, sampled(Sent(family), errors=(0.0, 0.0), reads=40, seed=0))


def test_equal_values_share_their_rank():
    assert gap_options._ranks([3.0, 1.0, 3.0]).tolist() == [2.5, 1.0, 2.5]


def test_every_form_of_training_is_run_on_the_chip():
    jobs = [job["options"] for job in GapOptions().jobs() if job["kind"] == "training"]
    on_chip = {options["form"] for options in jobs if options["solver"] == "virtual-qpu"}
    assert on_chip == set(gap_options.TRAINING)
