import itertools

import numpy as np
import pytest

from qpsbgd_paper.chip_studies.released_qubo import LAYERS, embedded, released_qubo, size


@pytest.mark.parametrize(("inputs", "rows"), [(1, 3), (2, 2), (3, 2)])
def test_its_minimum_has_the_weights_whose_signs_agree_best(inputs, rows):
    generator = np.random.default_rng(inputs)
    data, targets = generator.integers(0, 2, (rows, inputs)).tolist(), generator.random(rows).tolist()
    qubo = released_qubo(data, targets)
    bits, couplings = size(inputs, rows)
    assert bits == 1 + max(max(key) for key in qubo)
    assert couplings == sum(a != b for a, b in qubo)

    def energy(values):
        return sum(factor * values[a] * values[b] for (a, b), factor in qubo.items())

    def error(weights):
        products = [sum((2 * x - 1) * (2 * w - 1) for x, w in zip(row, weights, strict=True)) for row in data]
        return sum((target - (product >= 0)) ** 2 for target, product in zip(targets, products, strict=True))

    best = min(itertools.product((0, 1), repeat=bits), key=energy)
    assert error(best[:inputs]) == pytest.approx(min(map(error, itertools.product((0, 1), repeat=inputs))))


def test_mnists_third_layer_has_74_bits_instead_of_4():
    assert size(*LAYERS["MNIST, third layer"])[0] == 74


def test_a_column_with_more_bits_than_qubits_is_not_embedded():
    pytest.importorskip("dwave.graphs")
    from qpsbgd_qubo.annealers.chips import Chip
    from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip

    found = embedded(Chip.of(VirtualChip(size=2)), inputs=10, rows=2708, seconds=1.0)
    assert (found["bits"], found["qubits"]) == (37922, None)
