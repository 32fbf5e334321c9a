import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="the Triton kernels need triton: pip install triton")

from qpsbgd.binary_map import binary_map
from qpsbgd.qubo import QuboFamily, binary_map_triton
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_qubo.solvers.search import kernels_torch, kernels_triton
from qpsbgd_qubo.solvers.search.descent import improved
from qpsbgd_qubo.solvers.search.landscape import Landscape, sign_start

from .conftest import plain_search

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
runs_kernels = pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="without a GPU, the last test runs this one")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")

SMALL = [(20, 3, 12), (1, 3, 2), (5, 3, 7)]
LARGE = [(50, 9, 40), (64, 128, 32), (300, 20, 100), (2000, 8, 50)]
SHAPES = SMALL + [pytest.param(shape, marks=needs_gpu) for shape in LARGE]


def rows(n, m, batch):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.relu(torch.randn(batch, n, generator=generator) + 0.5)
    grads = torch.randn(batch, m, generator=generator)
    if batch > 10:
        inputs[3], grads[5], grads[:, 1] = 0, 0, 0
        inputs[7] *= 1e-12
        inputs[8] *= 1e9
    return inputs, grads


def mapped(inputs, grads, *, gain=1.0, scale=1.0):
    """The family from the kernels, and whether they call the rows sound."""
    factor = None if scale == "literal" else scale
    directions, targets, offset, health = binary_map_triton.scaled_rows(
        inputs.to(DEVICE), grads.to(DEVICE), gain=gain, scale=factor
    )
    family = QuboFamily.trusted(directions.T @ directions, directions.T @ targets, offset)
    return family.to("cpu"), bool(health.isfinite().all())


@runs_kernels
@pytest.mark.parametrize("scale", [0.5, 8.0, "literal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_of_the_map_agree_with_plain_torch(shape, scale):
    inputs, grads = rows(*shape)
    expected = binary_map(inputs, grads, gain=0.3, scale=scale)
    family, sound = mapped(inputs, grads, gain=0.3, scale=scale)
    assert sound
    for name in ("quadratic", "linear", "offset"):
        reference = getattr(expected, name)
        tolerance = 2e-6 * reference.abs().max().item()
        torch.testing.assert_close(getattr(family, name), reference, rtol=1e-5, atol=tolerance)


@runs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, inside the interpreter
@pytest.mark.parametrize("size", [1e30, 1e38, 1e-30, torch.nan, torch.inf])
def test_the_kernels_of_the_map_call_rows_that_leave_single_precision_unsound(size):
    assert not mapped(size * torch.ones(40, 6), torch.ones(40, 2))[1]
    assert not mapped(size * torch.ones(40, 6), torch.ones(40, 2), scale="literal")[1]


@runs_kernels
def test_the_kernels_of_the_map_call_rows_without_input_or_gradient_sound():
    for inputs, grads in ((torch.zeros(3, 4), torch.ones(3, 2)), (torch.ones(3, 4), torch.zeros(3, 2))):
        family, sound = mapped(inputs, grads)
        assert sound and not family.quadratic.any() and not family.linear.any()


@runs_kernels
def test_the_kernel_starts_from_the_signs():
    linear = torch.tensor([[-0.5, 0.0, 2.0], [1.0, -0.0, -3.0]])
    family = QuboFamily(torch.eye(2), linear).to(DEVICE)
    assert kernels_triton.sign_start(family).tolist() == [[1, 1, -1], [-1, 1, 1]]


@runs_kernels
def test_the_kernel_makes_the_moves_of_the_reference(vector):
    expected = vector.start
    flips = plain_search(vector.family, expected, **vector.options())
    spins, energies, made = kernels_triton.search(vector.family.to(DEVICE), vector.start.to(DEVICE), **vector.options())
    assert torch.equal(spins.cpu(), expected)
    assert made.tolist() == flips.tolist()
    torch.testing.assert_close(energies.cpu(), vector.family.energies(expected), rtol=1e-5, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize(("patience", "tenure"), [(0, 2), (40, 2), (60, 15)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_makes_the_moves_of_the_torch_path(shape, patience, tenure):
    family = random_family(*shape, scale=0.5).to("cuda")
    fused = improved(family, sign_start(family), patience=patience, tenure=tenure, seed=3)
    plain = sign_start(family)
    limit = 100 * (shape[0] + patience) + 1000
    kernels_torch.search(Landscape.of(family), plain, max_flips=limit, patience=patience, tenure=tenure, seed=3)
    assert fused.stats["path"] == "triton"
    assert torch.equal(fused.spins, plain)
    torch.testing.assert_close(fused.energies, family.energies(plain), rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("name", ["auto", "descent", "exact", "bifurcation", "annealing"])
def test_solvers_answer_on_the_gpu(name):
    family = random_family(40, 6, 30).to("cuda")
    solution = make_solver(name, **({"node_limit": 1000} if name == "exact" else {})).solve(family)
    assert solution.spins.is_cuda and (solution.spins.abs() == 1).all()
    torch.testing.assert_close(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("place", ["inputs", "grads"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bad_rows_are_refused_on_the_gpu(place, value):
    inputs, grads = (t.cuda() for t in rows(6, 3, 8))
    (inputs if place == "inputs" else grads)[0, 0] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        binary_map(inputs, grads)


@needs_gpu
def test_double_precision_takes_the_torch_path():
    family = random_family(20, 3, 10, dtype=torch.float64).to("cuda")
    assert improved(family, sign_start(family)).stats["path"] == "torch"


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
