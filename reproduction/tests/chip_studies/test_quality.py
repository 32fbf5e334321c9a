import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.testing import random_family
from qpsbgd_paper.chip_studies.quality import SOLVERS, Quality, _Flipped, energy_gaps
from qpsbgd_qubo.solvers.exact.exact import Exact


def test_the_gap_is_0_for_an_optimum_1_on_average_over_random_spins_and_2_at_most_for_fields_alone():
    """By hand: E = 3 g₁ + g₂ has energies −4, −2, 2, 4 and mean 0."""
    family = QuboFamily(torch.zeros(2, 2), torch.tensor([[3.0], [1.0]]), torch.zeros(1))
    best = Exact().solve(family)
    for spins, gap in (([-1, -1], 0.0), ([-1, 1], 0.5), ([1, -1], 1.5), ([1, 1], 2.0)):
        solution = Solution.of(family, torch.tensor(spins, dtype=torch.float32)[:, None])
        assert energy_gaps(family, solution, best=best).tolist() == [gap]


def test_random_spins_have_a_mean_gap_of_1_and_columns_without_gradient_do_not_count():
    family = random_family(8, 400, 20)
    best = Exact().solve(family)
    spins = torch.where(torch.rand(8, 400, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)
    gaps = energy_gaps(family, Solution.of(family, spins), best=best)
    assert 0.93 < gaps.mean() < 1.07
    silent = QuboFamily(family.quadratic, family.linear * (torch.arange(400) < 100), family.offset)
    assert len(energy_gaps(silent, Solution.of(silent, spins), best=best)) == 100


def test_flipped_answers_are_exact_but_for_the_flips():
    family = random_family(10, 200, 20)
    best = Exact().solve(family).spins
    for rate in (0.0, 0.2, 1.0):
        spins = _Flipped(rate, 0).solve(family).spins
        assert abs((spins != best).double().mean() - rate) < 0.04


def test_results_become_a_figure_a_table_and_verdicts():
    study = Quality(seeds=3, steps=1)
    results = [
        {"gap": 0.0 if job["label"] == "exact" else 0.5, "train": 0.8 - 0.3 * ("50%" in job["label"]), "test": 0.7}
        for job in study.jobs()
    ]
    for at, result in enumerate(results):
        result["train"] += 0.001 * (at % 3)
    results[-1]["gap"] = None  # not finite
    shown = study.shown(results)
    assert [row[0] for row in shown["tables"][0]["body"]] == list(SOLVERS)
    assert len(shown["figures"][0]["panels"]) == 4
    verdicts = {claim["text"]: claim["verdict"] for claim in shown["claims"]}
    assert not any("50%" in text for text in verdicts), "coin tosses are the control"
    assert set(verdicts.values()) == {"not run on hardware"}
    (detail,) = (claim["detail"] for claim in shown["claims"] if "× 1 " in claim["text"])
    assert detail.startswith("on the virtual QPU cannot tell: ")
