import torch

from qpsbgd_qubo.solvers.search.landscape import Landscape


def test_a_gain_counts_if_it_is_more_than_couplings_and_linear_terms_may_round():
    found = Landscape.thresholds(torch.tensor(1.0), torch.tensor([0.0, 4.0]))
    torch.testing.assert_close(found, 8 * torch.finfo(torch.float32).eps * torch.tensor([1.0, 5.0]), rtol=1e-6, atol=0)
