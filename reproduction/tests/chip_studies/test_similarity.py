import torch

from qpsbgd_paper.chip_studies.similarity import jaccard, lowest


def spins(*rows):
    return torch.tensor([[1.0 if letter == "+" else -1.0 for letter in row] for row in rows])


def test_similarity_is_that_of_the_sets_of_up_spins():
    # {0, 1}, {1, 2}, {0, 1, 2, 3}, {3}
    found = jaccard(spins("++--", "-++-", "++++", "---+"))
    expected = [[1, 1 / 3, 1 / 2, 0], [1 / 3, 1, 1 / 2, 0], [1 / 2, 1 / 2, 1, 1 / 4], [0, 0, 1 / 4, 1]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))


def test_two_empty_sets_are_equal_and_one_is_unlike_all_others():
    assert jaccard(spins("---", "---", "+--")).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_the_lowest_are_different_and_equal_energies_come_in_the_order_of_their_spins():
    reads = spins("++", "+-", "--", "+-", "-+", "++")
    energies = torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0 + 1e-12, 3.0], dtype=torch.float64)
    found, energy = lowest(reads, energies, count=3)
    assert found.tolist() == spins("-+", "+-", "--").tolist()
    assert torch.allclose(energy, torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))
    order = torch.tensor([5, 3, 1, 4, 0, 2])
    assert torch.equal(lowest(reads[order], energies[order], count=3)[0], found)
    assert len(lowest(reads, energies, count=10)[0]) == 4
