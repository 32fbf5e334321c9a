# ruff: noqa: E402
from lazy import Lazy, skip_without

skip_without("dimod", "dwave.system")

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from qpsbgd_qubo.annealers import tiles as tiles_module
from qpsbgd_qubo.annealers.chips import Chip, access_seconds
from qpsbgd_qubo.annealers.packing import chain_spins, embed, pack
from qpsbgd_qubo.annealers.tiles import CliqueEmbedding, largest_clique, tiles_of
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip
from qpsbgd_qubo.ising import Ising

mocks = Lazy("dwave_mocks")


def mock(topology="pegasus", size=4, *, broken=0.0, seed=0, **options):
    shape = [size] if topology == "pegasus" else [size, 4]
    whole = mocks.MockDWaveSampler(topology_type=topology, topology_shape=shape, parameter_warnings=False, **options)
    if not broken:
        return whole
    nodes = np.array(whole.nodelist)
    lost = nodes[np.random.default_rng(seed).random(len(nodes)) < broken].tolist()
    return mocks.MockDWaveSampler(
        topology_type=topology, topology_shape=shape, broken_nodes=lost, parameter_warnings=False, **options
    )


def assert_disjoint_cliques(tiles, chip, spins):
    """By the definition, on the chip's own list of couplers."""
    couplers, seen = set(chip.couplers), set()
    for tile in tiles:
        chains = tile.chains()
        assert len(chains) == spins
        for chain in chains:
            assert set(chain) <= set(chip.qubits)
            assert not seen & set(chain)
            seen |= set(chain)
            reached = {chain[0]}
            for _ in chain:
                reached |= {q for q in chain for p in reached if (min(p, q), max(p, q)) in couplers}
            assert reached == set(chain)
        for i, one in enumerate(chains):
            for two in chains[:i]:
                assert any((min(p, q), max(p, q)) in couplers for p in one for q in two)


@pytest.mark.parametrize(
    ("topology", "size", "broken", "spins", "least"),
    [
        pytest.param("pegasus", 16, 0.0, 16, 84, marks=pytest.mark.slow),
        pytest.param("pegasus", 8, 0.05, 16, 12, marks=pytest.mark.slow),
        ("pegasus", 4, 0.0, 1, 264),
        ("pegasus", 4, 0.0, 3, 60),
        ("pegasus", 4, 0.0, 10, 8),
        ("pegasus", 4, 0.0, 36, 1),
        ("zephyr", 4, 0.0, 4, 90),
        ("zephyr", 4, 0.0, 6, 24),
        pytest.param("zephyr", 4, 0.0, 8, 18, marks=pytest.mark.slow),
        pytest.param("zephyr", 4, 0.05, 16, 5, marks=pytest.mark.slow),
    ],
)
def test_a_chip_holds_that_many_disjoint_cliques(cache, topology, size, broken, spins, least):
    chip = Chip.of(mock(topology, size, broken=broken))
    tiles = tiles_of(chip, spins, folder=cache)
    assert len(tiles) >= least
    assert_disjoint_cliques(tiles, chip, spins)


def test_couplers_that_are_broken_are_not_used(tmp_path):
    edges = mock("pegasus", 3).edgelist
    broken = [edges[k] for k in np.random.default_rng(0).permutation(len(edges))[: len(edges) // 12]]
    chip = Chip.of(mock("pegasus", 3, broken_edges=broken))
    tiles = tiles_of(chip, 8, folder=tmp_path)
    assert tiles
    assert_disjoint_cliques(tiles, chip, 8)


def test_the_first_chains_of_a_tile_are_the_tile_of_these_chains(cache):
    chip = Chip.of(mock())
    tile = tiles_of(chip, 10, folder=cache)[0]
    for spins in range(1, 11):
        part, expected = tile.first(spins), CliqueEmbedding.of(tile.chains()[:spins], chip)
        for name, value in vars(expected).items():
            np.testing.assert_array_equal(getattr(part, name), value)


def test_tiles_are_searched_once_and_kept(cache, monkeypatch):
    chip = Chip.of(mock())
    first = tiles_of(chip, 10, folder=cache)

    def refuse(*_):
        raise AssertionError("searched again")

    monkeypatch.setattr(tiles_module, "_search_in_process", refuse)
    again = tiles_of(Chip.of(mock()), 10, folder=cache)
    assert [tile.chains() for tile in again] == [tile.chains() for tile in first]


def test_a_broken_file_of_tiles_or_one_whose_tiles_overlap_or_have_another_size_is_written_anew(tmp_path):
    first = [tile.chains() for tile in tiles_of(Chip.of(mock("pegasus", 2)), 3, folder=tmp_path)]
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    wrong = [json.dumps(tiles).encode() for tiles in ([first[0], first[0]], [tile[:2] for tile in first])]
    for content in (b"", b"{}", b"[[[1], [2]]]", b"\xff\xfe", b"[" * 100_000, *wrong):
        file.write_bytes(content)
        assert [tile.chains() for tile in tiles_of(Chip.of(mock("pegasus", 2)), 3, folder=tmp_path)] == first
        assert file.read_bytes() == good


def test_chips_with_other_graphs_have_other_keys():
    assert Chip.of(mock("pegasus", 2)).key == Chip.of(VirtualChip(size=2)).key
    keys = {Chip.of(mock("pegasus", 2)).key, Chip.of(mock("pegasus", 3)).key}
    keys |= {Chip.of(mock("pegasus", 3, broken=0.1, seed=seed)).key for seed in range(2)}
    assert len(keys) == 4


@pytest.mark.slow
def test_a_search_that_dies_is_begun_again_without_the_step_that_killed_it(monkeypatch):
    """The third step ends the process; the tiles of the others are found all the same."""
    chip = Chip.of(mock("zephyr", 3))
    whole, complete = tiles_module._search_in_process(chip, 16)
    assert complete
    deadly = (
        "import json, os, runpy, sys\n"
        "space = runpy.run_path(sys.argv[1])\n"
        "search = space['Search'](json.loads(request := sys.stdin.read()))\n"
        "find = search._find\n"
        "def dying(*arguments, **options):\n"
        "    if search._step == 3: os.abort()\n"
        "    return find(*arguments, **options)\n"
        "search._find = dying\n"
        "print(json.dumps(search.tiles(json.loads(request)['spins'])))\n"
    )
    monkeypatch.setattr(tiles_module, "_LAUNCH", deadly)
    found, complete = tiles_module._search_in_process(chip, 16)
    assert found
    assert not complete
    assert found != whole
    assert_disjoint_cliques([CliqueEmbedding.of(chains, chip) for chains in found], chip, 16)


def test_a_search_that_cannot_work_says_why(monkeypatch):
    monkeypatch.setattr(tiles_module, "_LAUNCH", "raise SystemExit('no such luck')")
    with pytest.raises(RuntimeError, match="no such luck"):
        tiles_module._search_in_process(Chip.of(mock("pegasus", 2)), 3)


def test_the_search_loads_neither_torch_nor_our_package():
    code = f"import runpy, sys; runpy.run_path({str(tiles_module._SCRIPT)!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_largest_clique_is_that_of_the_literature():
    """Boothby et al. 2020: K_{12(m−1)} on a Pegasus P_m; K_{16m−8} on a Zephyr Z_m with t = 4."""
    assert largest_clique(Chip.of(mock("pegasus", 4))) == 36
    assert largest_clique(Chip.of(mock("zephyr", 3))) == 40


def test_every_column_is_on_exactly_one_sheet_and_tiles_share_no_qubits(cache):
    chip = Chip.of(mock())
    tilings = {n: tiles_of(chip, n, folder=cache) for n in (3, 10, 16)}
    sizes = [10] * 13 + [16] * 5 + [3] * 40
    sheets = pack(sizes, tilings)
    assert sorted(column for sheet in sheets for column in sheet.columns) == list(range(len(sizes)))
    for sheet in sheets:
        assert len(set(sheet.qubits.tolist())) == len(sheet.qubits)
        assert all(len(tile.lengths) == sizes[c] for c, tile in zip(sheet.columns, sheet.tiles, strict=True))


def chip_energy(problem_fields, problem_couplings, edges, spins):
    return problem_fields @ spins + problem_couplings @ (spins[edges[:, 0]] * spins[edges[:, 1]])


def test_an_embedded_column_has_the_columns_energies_times_one_factor(cache):
    """With whole chains, differences of energies on the chip are those of the column, scaled."""
    chip = Chip.of(mock())
    tile = tiles_of(chip, 16, folder=cache)[0]
    generator = np.random.default_rng(0)
    couplings = generator.standard_normal((16, 16))
    couplings = couplings + couplings.T
    np.fill_diagonal(couplings, 0)
    ising = Ising(3 * generator.standard_normal(16), couplings)
    fields, values = embed(ising, tile, chip, chain_strength=1.0)
    edges = np.concatenate([tile.chain_edges, tile.cross_edges])
    vectors = 2 * generator.integers(0, 2, (6, 16)) - 1
    ours = np.array([ising.fields @ g + g @ couplings @ g / 2 for g in vectors])
    chips = np.array([chip_energy(fields, values, edges, g[tile.spin]) for g in vectors])
    ratios = (chips[1:] - chips[0]) / (ours[1:] - ours[0])
    assert ratios[0] > 0
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("h_size", "chain_strength", "qubit_range"),
    [(0.0, 0.1, (-18.0, 15.0)), (1.0, 10.0, (-1.0, 1.0)), (1e3, 0.1, (-1.0, 1.0)), (0.0, 10.0, (-18.0, 15.0))],
)
def test_coefficients_just_fill_the_chips_ranges(cache, h_size, chain_strength, qubit_range):
    sampler = mock()
    sampler.properties["per_qubit_coupling_range"] = list(qubit_range)
    chip = Chip.of(sampler)
    tile = tiles_of(chip, 16, folder=cache)[0]
    generator = np.random.default_rng(1)
    couplings = generator.standard_normal((16, 16))
    couplings = couplings + couplings.T
    ising = Ising(h_size * generator.standard_normal(16), couplings)
    fields, values = embed(ising, tile, chip, chain_strength=chain_strength)
    inner, cross = np.split(values, [len(tile.chain_edges)])
    edges = np.concatenate([tile.chain_edges, tile.cross_edges])
    sums = np.bincount(edges.ravel(), weights=np.repeat(values, 2))
    shares = [
        np.abs(fields).max() / 4,
        np.abs(cross).max() / 1,
        -inner.min() / 2,
        sums.max() / qubit_range[1],
        sums.min() / qubit_range[0],
    ]
    assert max(shares) == pytest.approx(1)


def test_broken_chains_follow_the_majority_and_ties_the_energy():
    """Three spins without couplings: chains of 3, 2 and 2; s asks for −, +, −."""
    linear = np.array([[1.0, -1.0, 1.0]])
    lengths = np.array([3, 2, 2])
    sums = np.array([[1, 0, 0]])  # two against one for +, and two ties
    free = {"quadratic": np.zeros((3, 3)), "linear": linear}
    assert chain_spins(sums, lengths, repair="majority", **free).tolist() == [[1, 1, -1]]
    assert chain_spins(sums, lengths, repair="energy", **free).tolist() == [[-1, 1, -1]]


@pytest.mark.parametrize("chains", [[[0], [0]], [[-5], [1]], [[], [1]]])
def test_chains_that_are_not_a_clique_are_refused(chains):
    with pytest.raises(ValueError, match="tile's"):
        CliqueEmbedding.of(chains, Chip.of(mock("pegasus", 2)))


def test_chains_in_pieces_or_without_a_coupler_are_refused():
    chip = Chip.of(mock("pegasus", 2))
    near = chip.neighbours
    a, b, c = next((a, b, c) for a in sorted(near) for b in sorted(near[a]) for c in sorted(near[b] - near[a] - {a}))
    assert len(CliqueEmbedding.of([[a, b], [c]], chip).lengths) == 2
    for chains in ([[a, c], [b]], [[a], [c]]):
        with pytest.raises(ValueError, match="must be connected, and every two of them coupled"):
            CliqueEmbedding.of(chains, chip)


def test_a_chip_states_its_times():
    """8.5 ms and 82 µs a read where the chip says nothing; the chip's own word where it has one."""
    sampler = mock()
    assert access_seconds(sampler, num_qubits=100, num_reads=100) == pytest.approx(8.5e-3 + 100 * 82e-6)
    longer = access_seconds(sampler, num_qubits=100, num_reads=100, annealing_time=120)
    assert longer == pytest.approx(8.5e-3 + 100 * 182e-6)

    class Own:
        properties: dict = {}  # noqa: RUF012

        class solver:
            @staticmethod
            def estimate_qpu_access_time(num_qubits, num_reads):
                return num_qubits + num_reads

    assert access_seconds(Own(), num_qubits=3, num_reads=4) == pytest.approx(7e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": 3}, "must have a name"),
        ({"topology": "torus"}, "one of the topologies"),
        ({"shape": [2.0]}, "must be integers"),
        ({"qubits": [0, -1]}, "must be integers"),
        ({"qubits": [0, 2**31]}, "must be integers"),
        ({"couplers": [[0, 10**6]]}, "must join its qubits"),
        ({"couplers": [[0, 1.0]]}, "must join its qubits"),
        *(({f"{name}_range": bounds}, "from a number up to 0") for name in "hj" for bounds in ([0.1, 1], [-1, -0.1])),
    ],
)
def test_a_description_of_no_chip_is_refused(changed, said):
    described = Chip.of(VirtualChip(size=2)).description()
    assert Chip.from_description(described | {"h_range": [0, 0]}).h_range == (0, 0)
    with pytest.raises(ValueError, match=said):
        Chip.from_description(described | changed)


def test_a_chip_is_read_from_what_its_sampler_says_and_has_the_usual_ranges_otherwise():
    topology = {"topology": {"type": "zephyr", "shape": [1, 4]}}
    sampler = SimpleNamespace(nodelist=[5, 3], edgelist=[(5, 3)], properties=topology)
    chip = Chip.of(sampler)
    assert (chip.name, chip.topology, chip.shape) == ("SimpleNamespace", "zephyr", (1, 4))
    assert (chip.qubits, chip.couplers, chip.neighbours) == ((3, 5), ((3, 5),), {3: {5}, 5: {3}})
    assert chip.key == "zephyr-1-4-cfdaf0d01a1de89d6321"  # the name of files that earlier versions wrote
    assert (chip.h_range, chip.j_range, chip.chain_range) == ((-1, 1),) * 3
    assert chip.qubit_range == chip.group_range == (-np.inf, np.inf)
    names = ("h", "j", "extended_j", "per_qubit_coupling", "per_group_coupling")
    given = {f"{name}_range": [-2 - place, 3 + place] for place, name in enumerate(names)}
    sampler.properties = topology | given | {"chip_id": "mine"}
    chip = Chip.of(sampler)
    found = (chip.h_range, chip.j_range, chip.chain_range, chip.qubit_range, chip.group_range)
    assert found == ((-2, 3), (-3, 4), (-4, 5), (-5, 6), (-6, 7)) and chip.name == "mine"
    sampler.properties = topology | {"j_range": [-3, 2]}
    assert Chip.of(sampler).chain_range == (-3, 2)
    assert Chip.of(SimpleNamespace(chip=chip)) is chip
    sampler.properties = {"topology": {"type": "torus", "shape": [3]}}
    with pytest.raises(ValueError, match=r"topology must be one of .*, got 'torus'"):
        Chip.of(sampler)
    for missing in ("nodelist", "edgelist", "properties"):
        with pytest.raises(TypeError, match=f"but SimpleNamespace has no {missing}; "):
            Chip.of(SimpleNamespace(**{key: one for key, one in vars(sampler).items() if key != missing}))
