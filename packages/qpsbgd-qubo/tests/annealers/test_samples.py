# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd", "dimod", "dwave.system", "dwave.graphs", "minorminer")

from types import SimpleNamespace

import dimod
import numpy as np
import pytest
import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd.testing import random_family
from qpsbgd_qubo.annealers import submissions
from qpsbgd_qubo.annealers.budget import BudgetSpent
from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU


def test_sampling_gives_all_reads_of_every_column_and_solving_the_best_of_them(cache):
    family = random_family(8, 3, 12)
    family = QuboFamily(family.quadratic, family.linear, torch.tensor([3.0, -1.0, 5.0]))
    solver = VirtualQPU(size=4, cache=cache, num_reads=20, descent=False, sweeps=4)
    found = solver.sample(family)
    assert found.spins.shape == (20, 8, 3)
    assert bool((found.spins.abs() == 1).all())
    assert torch.allclose(found.energies, torch.stack([family.energies(spins) for spins in found.spins]))
    best = solver.solve(family)
    assert torch.allclose(found.energies.amin(0), best.energies)
    assert best.stats["chip_energy"] == pytest.approx(float(best.energies.mean()), rel=1e-5)
    assert best.stats["read_energy"] == pytest.approx(float(found.energies.mean()), rel=1e-5)
    assert len(found.spins.unique(dim=0)) > 1
    assert found.stats["reads"] == 20 and found.stats["submissions"] == 1 and solver.submissions == 2


def test_descent_improves_every_read(cache):
    family = random_family(8, 2, 12)
    plain, lowered = (
        VirtualQPU(size=4, cache=cache, num_reads=10, sweeps=2, descent=descent).sample(family).energies
        for descent in (False, True)
    )
    assert bool((lowered <= plain + 1e-6).all()) and bool((lowered < plain - 1e-6).any())


def test_what_is_too_wide_or_too_expensive_is_refused_before_anything_is_sent(cache):
    solver = VirtualQPU(size=2, cache=cache)
    with pytest.raises(ValueError, match="clique"):
        solver.sample(random_family(60, 1, 8))
    solver = VirtualQPU(size=2, cache=cache, max_qpu_seconds=1e-3)
    with pytest.raises(BudgetSpent):
        solver.sample(random_family(4, 1, 8))
    assert solver.submissions == 0


def test_bits_of_a_sampler_become_spins():
    samples = dimod.SampleSet.from_samples(([[0, 1], [1, 1]], [7, 3]), "BINARY", energy=[0, 0], num_occurrences=[1, 2])
    found, _ = submissions._read(samples, SimpleNamespace(qubits=np.array([3, 7])))
    assert found.tolist() == [[1, -1], [1, 1], [1, 1]]
