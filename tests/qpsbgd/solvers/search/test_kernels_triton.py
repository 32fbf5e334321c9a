import pytest
import torch

from qpsbgd.qubo.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd.solvers.search.descent import Landscape, improved, search_torch, sign_start
from qpsbgd.testing import random_family

pytest.importorskip("triton", reason="the GPU kernels need triton")
if not torch.cuda.is_available():
    pytest.skip("the GPU kernels need a GPU", allow_module_level=True)

SHAPES = [(50, 9, 40), (64, 128, 32), (300, 20, 100), (2000, 8, 50), (1, 3, 2), (5, 3, 7)]


def rows(n, m, batch):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.relu(torch.randn(batch, n, generator=generator) + 0.5)
    grads = torch.randn(batch, m, generator=generator)
    if batch > 10:
        inputs[3], grads[5], grads[:, 1] = 0, 0, 0
        inputs[7] *= 1e-12
    return inputs, grads


@pytest.mark.parametrize("scale", [0.5, 8.0, "literal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_of_the_map_agree_with_plain_torch(shape, scale):
    inputs, grads = rows(*shape)
    expected = binary_map(inputs, grads, gain=0.3, scale=scale)
    family = binary_map(inputs.cuda(), grads.cuda(), gain=0.3, scale=scale)
    for name in ("quadratic", "linear", "offset"):
        reference = getattr(expected, name)
        tolerance = 2e-6 * reference.abs().max().item()
        torch.testing.assert_close(getattr(family, name).cpu(), reference, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(("patience", "tenure"), [(0, 2), (40, 2), (60, 15)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_makes_the_moves_of_the_torch_path(shape, patience, tenure):
    family = random_family(*shape, scale=0.5).to("cuda")
    fused = improved(family, sign_start(family), patience=patience, tenure=tenure, seed=3)
    plain = sign_start(family)
    limit = 100 * shape[0] + 1000
    search_torch(Landscape.of(family), plain, max_flips=limit, patience=patience, tenure=tenure, seed=3)
    assert fused.stats["path"] == "triton"
    assert torch.equal(fused.spins, plain)
    torch.testing.assert_close(fused.energies, family.energies(plain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["auto", "descent", "exact", "bifurcation", "annealing"])
def test_solvers_answer_on_the_gpu(name):
    family = random_family(40, 6, 30).to("cuda")
    solution = make_solver(name, **({"node_limit": 1000} if name == "exact" else {})).solve(family)
    assert solution.spins.is_cuda and (solution.spins.abs() == 1).all()
    torch.testing.assert_close(solution.energies, family.energies(solution.spins), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", ["inputs", "grads"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bad_rows_are_refused_on_the_gpu(place, value):
    inputs, grads = (t.cuda() for t in rows(6, 3, 8))
    (inputs if place == "inputs" else grads)[0, 0] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        binary_map(inputs, grads)


def test_double_precision_takes_the_torch_path():
    family = random_family(20, 3, 10, dtype=torch.float64).to("cuda")
    assert improved(family, sign_start(family)).stats["path"] == "torch"
