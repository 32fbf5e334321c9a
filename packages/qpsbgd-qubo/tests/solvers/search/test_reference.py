import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd_qubo.kernels import reference
from qpsbgd_qubo.solvers.search.descent import improved

from .conftest import plain_search


def family_of(coupling, linear):
    """E = 2 · coupling · g₁g₂ + linear · g."""
    quadratic = torch.tensor([[0.0, coupling], [coupling, 0.0]])
    return QuboFamily(quadratic, torch.tensor([linear]).T)


def test_the_reference_descends_as_worked_out_by_hand():
    # Gains at (−1, −1) are 1 and 1.5, so the second spin flips; then both are negative.
    spins = torch.tensor([[-1.0], [-1.0]])
    flips = plain_search(family_of(1.0, [1.0, 0.5]), spins, max_flips=9, patience=0)
    assert spins[:, 0].tolist() == [-1.0, 1.0]
    assert flips.tolist() == [1]


def test_the_reference_goes_back_to_the_lowest_spins_as_worked_out_by_hand():
    # From there the second spin (−1.5) and then the first (+1) flip, the third move finds both tabu.
    spins = torch.tensor([[-1.0], [-1.0]])
    flips = plain_search(family_of(1.0, [1.0, 0.5]), spins, max_flips=9, patience=3)
    assert spins[:, 0].tolist() == [-1.0, 1.0]
    assert flips.tolist() == [3]


def test_the_reference_climbs_out_of_a_local_minimum_as_worked_out_by_hand():
    # (+1, +1) has gains −1.5, −1.5. The first of equals flips; the second then gains 2.5, to the optimum (−1, −1).
    spins = torch.tensor([[1.0], [1.0]])
    flips = plain_search(family_of(-1.0, [0.5, 0.5]), spins, max_flips=2, patience=9)
    assert spins[:, 0].tolist() == [-1.0, -1.0]
    assert flips.tolist() == [2]


def test_a_flip_is_tabu_for_its_tenure_and_up_to_half_as_many_moves_more():
    for tenure, most in ((2, 2 + 5), (10, 10 + 5), (40, 40 + 19)):
        drawn = {reference.tenure_of(move, 3, 7, tenure) for move in range(1000)}
        assert (min(drawn), max(drawn)) == (tenure, most)


def test_the_compiled_kernel_makes_the_moves_of_the_reference(vector):
    expected = vector.start
    flips = plain_search(vector.family, expected, **vector.options())
    found = improved(vector.family, vector.start, **vector.options())
    assert found.stats["path"] == "compiled"
    assert torch.equal(found.spins, expected)
    assert found.stats["flips"] == flips.sum()
