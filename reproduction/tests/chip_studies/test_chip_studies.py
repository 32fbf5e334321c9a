import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("dwave.graphs")
pytest.importorskip("minorminer")

from qpsbgd.qubo import QuboFamily
from qpsbgd_paper.chip_studies.evolution import _measure as evolution_measured
from qpsbgd_paper.chip_studies.mnist_qubos import FIRST, FORMS, THIRD, live_columns, qubos, strongest_column, varying
from qpsbgd_paper.chip_studies.similarity import _measure as similarity_measured
from qpsbgd_paper.experiments import make_experiment, mnist
from qpsbgd_paper.report.figures import pictures
from qpsbgd_paper.report.page import page
from qpsbgd_qubo.solvers.exact.exact import Exact

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("embedding", "samples", "similarity")]


@pytest.fixture
def data(monkeypatch, tmp_path_factory):
    """Bits like those of two digits: every one agrees with the target more often than not; tiles are kept."""
    monkeypatch.setenv("QPSBGD_CACHE", str(tmp_path_factory.getbasetemp()))
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (4000,), generator=generator)
    agree = torch.rand(4000, 16, generator=generator) < torch.linspace(0.5, 0.75, 16)
    bits = torch.where(agree, 1.0, -1.0) * (2.0 * targets[:, None] - 1)
    monkeypatch.setattr(mnist, "_load", lambda pair: (bits, targets))


@pytest.mark.parametrize("name", ["evolution", *SLOW])
def test_every_study_runs_from_end_to_end_and_is_shown(name, data, tmp_path):
    study = make_experiment(name).quick()
    study.prepare()
    events = list(study.run(folder=tmp_path))
    assert events[-1][1] == events[-1][2] == len(study.jobs())
    summary = study.summary(folder=tmp_path)
    assert summary == study.summary(folder=tmp_path)
    assert {claim["verdict"] for claim in summary["claims"]} <= {"yes", "no", "cannot tell", "not run on hardware"}
    assert all(claim["detail"] and claim["source"] in ("paper", "beyond", "aim") for claim in summary["claims"])
    for table in summary["tables"]:
        assert all(len(row) == len(table["head"]) for row in table["body"])
    drawn = pictures(summary)
    assert len(drawn) == len(summary["figures"]) > 0
    assert all(len(picture.svg) < 400_000 for picture in drawn.values())
    shown = page([summary], title="T", drawn=[drawn])
    for figure in summary["figures"]:
        assert figure["title"] in shown


@pytest.mark.parametrize("form", FORMS)
def test_the_qubos_of_a_run_are_those_that_its_steps_solved(form, data):
    some, more = qubos(form, seed=1, updates=(0, 3)), qubos(form, seed=1, updates=(0, 3, 5))
    assert [family.linear.shape for family in some[0]] == [(16, 4), (4, 4), (4, 2)]
    # What later steps make of the momentum must not change what is kept.
    for number, layer in ((0, THIRD), (1, THIRD), (1, FIRST)):
        assert torch.equal(some[number][layer].quadratic, more[number][layer].quadratic)
        assert torch.equal(some[number][layer].linear, more[number][layer].linear)
    assert not torch.equal(some[1][THIRD].linear, more[2][THIRD].linear)  # spins keep their couplings for some steps
    assert live_columns(some[0][THIRD]) == [0, 1]


def family(linear):
    quadratic = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64)
    return QuboFamily(quadratic, torch.tensor(linear, dtype=torch.float64).T, torch.tensor([7.0] * len(linear)))


def test_density_counts_the_couplings_of_a_column_and_of_the_layer():
    found = evolution_measured(family([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    # One of the three pairs of a column is coupled, so two of the fifteen of both columns.
    assert found["density"] == pytest.approx(1 / 3)
    assert found["layer_density"] == pytest.approx(2 / 15)
    assert (found["largest"], found["live"], found["strongest"]) == (1.0, 1, 0)
    assert evolution_measured(family([[0.0, 0.0, 0.0]])) is None


def test_the_strongest_column_is_that_of_the_largest_field():
    found = strongest_column(family([[1.0, 0.0, 0.0], [0.0, -3.0, 0.0]]))
    assert found.linear[:, 0].tolist() == [0, -3, 0]
    assert strongest_column(family([[0.0, 0.0, 0.0]])) is None


def test_energies_are_without_what_is_the_same_for_all_spins():
    given = family([[1.0, 2.0, 3.0]])
    spins = torch.tensor([[1.0], [-1.0], [-1.0]])
    # 2 · 0.5 · (1 · −1) + 1 − 2 − 3
    assert varying(given, given.energies(spins)).tolist() == [-5.0]


def test_samples_of_a_layer_are_compared_over_all_its_columns():
    given = family([[5.0, 5.0, 5.0], [-5.0, -5.0, -5.0]])
    best = Exact().solve(given).spins
    other = best.clone()
    other[2, 1] = -1
    found = similarity_measured(torch.stack([other, best, best]), given, 10)
    # The optimum has the three spins of the second column up, the other sample two of them.
    assert found["matrix"] == [[1.0, 0.6667], [0.6667, 1.0]]
    assert (found["spins"], found["different"], found["below"]) == (6, 2, 0.0)
    assert found["largest"] == pytest.approx(2 / 3)
