# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "triton")

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from sparse_problems import least_energy, random_sparse, torus

from qpsbgd_qubo import solve
from qpsbgd_qubo.kernels import kernels
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.search.chains_triton import Tiles, anneal
from qpsbgd_qubo.sparse import SparseIsing
from qpsbgd_qubo.testing import lowest_energies, random_family

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
runs_kernels = pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="without a GPU, the last test runs this one")

PROBLEMS = {
    "sparse": random_sparse(40, 80, seed=1),
    "dense": random_sparse(20, 600, seed=2),
    "grid": torus(6, 7),
    "no couplings": SparseIsing.from_edges(5, [], [], [], linear=np.arange(5.0)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_coupled_spins_differ_in_colour(name):
    rows, cols, _ = PROBLEMS[name].edges()
    problem = PROBLEMS[name]
    colours = np.empty(problem.num_spins, np.int64)
    kernels.colour(kernels.Rows(problem.indptr, problem.indices, problem.couplings), colours)
    assert (colours[rows] != colours[cols]).all()
    assert set(colours) == set(range(colours.max() + 1))


@pytest.mark.parametrize(("name", "tile"), [*zip(PROBLEMS, [8, 256, 1, 8], strict=True)])
def test_tiles_hold_every_coupling_once(name, tile):
    problem = PROBLEMS[name]
    tiles, matrix = Tiles.of(problem, tile), np.zeros((problem.num_spins + 1, problem.num_spins))
    block = tiles.height * tiles.width
    for number, (begin, steps) in enumerate(zip(tiles.begins, tiles.steps, strict=True)):
        spins = tiles.spins[number * tiles.height : (number + 1) * tiles.height]
        rows = np.tile(np.repeat(spins, tiles.width), steps)
        places = slice(begin, begin + steps * block)
        np.add.at(matrix, (rows, tiles.indices[places]), tiles.couplings[places])
    assert sorted(tiles.spins[tiles.spins < problem.num_spins]) == list(range(problem.num_spins))
    expected = 2 * problem.to_dense().quadratic
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(matrix[:-1], expected, rtol=1e-6)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU may round a logarithm in another way")
def test_chains_make_the_moves_that_they_always_made():
    problem = torus(3, 4, seed=1)
    _, energies = anneal(problem, [3.0, 2.0, 1.0], chains=64, seed=5, device="cpu")
    found = zlib.crc32(energies.astype(np.int64).tobytes())
    assert found == 57394300


@runs_kernels
@pytest.mark.parametrize("name", PROBLEMS)
def test_chains_report_the_energies_of_their_spins(name):
    problem = PROBLEMS[name]
    options = {"chains": 33, "seed": 1, "device": DEVICE}
    spins, energies = anneal(problem, np.linspace(2, 0, 4), **options)
    assert len(energies) == 64
    assert problem.energy(spins) - problem.offset == pytest.approx(energies.min(), rel=1e-5)
    again, _ = anneal(problem, np.linspace(2, 0, 4), **options)
    assert np.array_equal(spins, again)


@runs_kernels
@pytest.mark.parametrize("fields", [True, False])
def test_the_optimum_of_a_small_problem_is_found(fields):
    problem = random_sparse(12, 30, seed=3, fields=fields)
    solution = solve(problem, solver=make_solver("gpu-annealing", chains=64, sweeps=10))
    assert solution.energies.item() == pytest.approx(least_energy(problem))
    assert not solution.proven_optimal.any()


@runs_kernels
def test_a_family_is_solved_column_by_column():
    family = random_family(8, 2, 10, scale=0.3, dtype=np.float64)
    solution = make_solver("gpu-annealing", chains=32, sweeps=10).solve(family)
    np.testing.assert_allclose(solution.energies, lowest_energies(family))


@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="there is a GPU, or an interpreter")
def test_without_a_gpu_the_solver_says_so():
    with pytest.raises(RuntimeError, match=r'needs a CUDA GPU.*"auto"'):
        solve(PROBLEMS["sparse"], solver=make_solver("gpu-annealing"))


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="the tests above have run the kernels")
def test_the_chains_run_in_tritons_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
