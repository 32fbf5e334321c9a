import numpy as np
import pytest

pytest.importorskip("dwave.graphs")
pytest.importorskip("minorminer")

from qpsbgd_paper.chip_studies.embedding import places, tiling
from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.tiles import tiles_of
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip


@pytest.fixture(autouse=True)
def _tiles_elsewhere(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("QPSBGD_CACHE", str(tmp_path_factory.getbasetemp()))


@pytest.mark.parametrize("topology", ["pegasus", "zephyr"])
def test_every_working_qubit_has_a_place_of_its_own(topology):
    chip = Chip.of(VirtualChip(topology=topology, size=3, broken=0.1))
    found = places(chip)
    assert set(found) == set(chip.qubits)
    assert len(set(found.values())) == len(chip.qubits)
    points = np.array(list(found.values()))
    assert points.min() == 0 and points.max() == 1


def test_a_tiling_counts_what_the_tiles_take():
    chip = Chip.of(VirtualChip(size=3))
    tiles = tiles_of(chip, 6)
    found = tiling(chip, 6)
    qubits = sum(len(tile.qubits) for tile in tiles)
    assert found["tiles"] == len(tiles) > 0
    assert found["mean_chain"] == pytest.approx(qubits / (6 * len(tiles)))
    assert found["longest_chain"] == max(int(tile.lengths.max()) for tile in tiles)
    assert found["used"] == pytest.approx(qubits / len(chip.qubits))


def test_where_nothing_fits_there_are_no_tiles():
    assert tiling(Chip.of(VirtualChip(size=2)), 60)["tiles"] == 0
