import pytest
import torch

from qpsbgd.qubo import binary_map_sums
from qpsbgd.qubo.binary_map import binary_map


def in_parts(inputs, grads, cuts, *, gain=0.3, scale=1.0):
    """The family of rows that lie in several places."""
    rows = [(inputs[a:b], grads[a:b]) for a, b in zip([0, *cuts], [*cuts, len(inputs)], strict=True)]
    measures = torch.stack([binary_map_sums.measured(x, v, scale=scale) for x, v in rows])
    assert not measures[:, 0].any()
    whole = binary_map_sums.joined(measures)
    sums = [binary_map_sums.sums(x, v, whole, gain=gain, scale=scale) for x, v in rows]
    total = [torch.stack(parts).sum(0) for parts in zip(*sums, strict=True)]
    return binary_map_sums.family(total, scale=scale)


def assert_close(found, expected, **tolerances):
    for name in ("quadratic", "linear", "offset"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **tolerances)


ROWS = {
    "plain": lambda x, v: (x, v),
    "zero inputs": lambda x, v: (torch.where(torch.arange(20)[:, None] % 3 == 0, 0, x), v),
    "rows without gradient": lambda x, v: (x, torch.where(torch.arange(20)[:, None] < 8, 0, v)),
    "a column without gradient": lambda x, v: (x, torch.where(torch.arange(4) == 1, 0, v)),
    "noise": lambda x, v: (torch.where(torch.arange(20)[:, None] < 3, 1e-18 * x, x), v),
    "small gradients": lambda x, v: (x, 1e-200 * v),
    "all zero": lambda x, v: (0 * x, v),
}


@pytest.mark.parametrize("scale", [1.0, 3.0, "literal"])
@pytest.mark.parametrize("cuts", [[], [10], [3, 3, 17], [20]])
@pytest.mark.parametrize("name", ROWS)
def test_rows_in_several_places_make_the_family_of_all_of_them(name, cuts, scale):
    x, v = torch.randn(20, 6, dtype=torch.float64), torch.randn(20, 4, dtype=torch.float64)
    x, v = ROWS[name](x, v)
    expected = binary_map(x, v, gain=0.3, scale=scale)
    assert_close(in_parts(x, v, cuts, scale=scale), expected, rtol=1e-12, atol=1e-300)


def test_single_precision_is_close_to_the_map_too():
    x, v = torch.randn(64, 16), 1e-30 * torch.randn(64, 8)
    assert_close(in_parts(x, v, [20, 40]), binary_map(x, v, gain=0.3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda x, v: x[3].fill_(torch.nan), "inputs hold NaN"),
        (lambda x, v: v[3, 1:].fill_(torch.inf), "output_grads hold NaN"),
        (lambda x, v: x.fill_(3e38), "inputs are too large"),
    ],
)
def test_faulty_rows_are_told_apart(spoil, fault):
    x, v = torch.randn(8, 4), torch.randn(8, 2)
    spoil(x, v)
    found = binary_map_sums.measured(x, v, scale=1.0)
    assert binary_map_sums.FAULTS[int(found[0])].startswith(fault)


@pytest.mark.parametrize(("size", "message"), [(1e-30, "too small"), (1e25, "too large")])
def test_inputs_that_leave_the_floating_type_raise(size, message):
    x, v = size * torch.randn(8, 4), torch.randn(8, 2)
    with pytest.raises(ValueError, match=f"inputs are {message}"):
        in_parts(x, v, [4])
    with pytest.raises(ValueError, match=f"inputs are {message}"):
        binary_map(x, v, gain=0.3)
