# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "triton")

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.search import kernels_triton, single_flips
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.tensor_descent import local_search
from qpsbgd_qubo.testing import random_family

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
runs_kernels = pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="without a GPU, the last test runs this one")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")

SMALL = [(20, 3, 12), (1, 3, 2), (5, 3, 7)]
LARGE = [(50, 9, 40), (64, 128, 32), (300, 20, 100), (2000, 8, 50)]
SHAPES = SMALL + [pytest.param(shape, marks=needs_gpu) for shape in LARGE]


@runs_kernels
def test_the_kernel_makes_the_moves_of_the_compiled_one_in_whole_numbers(vector):
    expected = single_flips.local_search(vector.family, vector.start, **vector.options())
    family = vector.family.to(DEVICE)
    quadratic, linear, start = family.quadratic, family.linear.T, torch.from_numpy(vector.start.T).to(DEVICE)
    # Beside another family, whose quadratic part is twice as large: both have the same moves.
    several = torch.stack([quadratic, 2 * quadratic]), torch.stack([linear, 2 * linear]), torch.stack([start, start])
    spins, energies, made = kernels_triton.search(*several, **vector.options())
    assert np.array_equal(spins.cpu().numpy(), np.stack([expected.spins.T, expected.spins.T]))
    assert made.sum(1).tolist() == [expected.stats["flips"]] * 2
    once = vector.family.without_offset().energies(expected.spins)
    np.testing.assert_allclose(energies.cpu().numpy(), np.stack([once, 2 * once]), rtol=1e-5, atol=1e-5)


def test_the_kernels_take_what_they_can_number():
    assert [kernels_triton.fits(torch.empty(0), spins) for spins in (1, 8192, 8193)] == [True, True, False]
    assert not kernels_triton.fits(torch.empty(0, dtype=torch.float64), 16)


@needs_gpu
@pytest.mark.parametrize(("patience", "tenure"), [(0, 2), (40, 2), (60, 15)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_makes_the_moves_of_the_compiled_one(shape, patience, tenure):
    family = random_family(*shape, scale=0.5)
    options = {"patience": patience, "tenure": tenure, "seed": 3}
    compiled = single_flips.local_search(family, sign_start(family), **options)
    there = family.to("cuda")
    fused = local_search(there, sign_start(there), **options)
    assert "flips" not in fused.stats  # which Triton alone does not tell
    assert np.array_equal(fused.spins.cpu().numpy(), compiled.spins)
    np.testing.assert_allclose(fused.energies.cpu().numpy(), compiled.energies, rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("name", ["auto", "descent", "exact", "annealing"])
def test_solvers_answer_on_the_gpu(name):
    family = random_family(40, 6, 30).to("cuda")
    solution = make_solver(name, **({"node_limit": 1000} if name == "exact" else {})).solve(family)
    assert solution.spins.is_cuda and (solution.spins.abs() == 1).all()
    torch.testing.assert_close(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("patience", [0, 20])
def test_double_precision_is_solved_on_the_cpu(patience):
    family = random_family(20, 3, 10, dtype=np.float64).to("cuda")
    found = local_search(family, sign_start(family), patience=patience)
    assert "flips" in found.stats
    assert found.spins.is_cuda and found.energies.is_cuda and found.proven_optimal.is_cuda


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="the tests above have run the kernels")
def test_every_kernel_runs_in_tritons_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
