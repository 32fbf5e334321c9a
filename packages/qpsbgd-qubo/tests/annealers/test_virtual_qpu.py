# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd", "dimod", "dwave.system", "dwave.graphs", "minorminer")


import dimod
import numpy as np
import pytest

from qpsbgd.qubo import QuboFamily
from qpsbgd.testing import random_family
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip, VirtualQPU
from qpsbgd_qubo.solvers.exact.exact import Exact


@pytest.mark.parametrize(
    ("topology", "broken"),
    [("pegasus", 0.0), ("zephyr", 0.05)],
)
def test_its_answers_are_nearly_optimal(cache, topology, broken):
    family = random_family(16, 8, 32)
    solver = VirtualQPU(topology=topology, size=4, broken=broken, cache=cache, num_reads=20, descent=False)
    best = Exact().solve(family).energies
    assert (solver.solve(family).energies - best).mean() < 0.01 * best.abs().mean()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"sweeps": 8, "num_reads": 4, "spin_reversals": 2, "copies": 3, "annealing_time": 15, "slices": 5},
            (-206.166666667, -236.2, 0.190104167, 0.034616, -246.0, -217.0, -243.0, -242.0, -235.0),
        ),
        (
            {"sweeps": 8, "num_reads": 2, "repair": "energy", "chain_strength": 0.5, "descent": False, "seed": 3},
            (-178.6, -204.2, 0.10625, 0.017328, -222.0, -189.0, -189.0, -234.0, -187.0),
        ),
        (
            {"sweeps": 9, "num_reads": 5, "share_reads": False, "h_error": 0.2, "j_error": 0.1},
            (-196.12, -226.2, 0.2225, 0.01782, -242.0, -233.0, -243.0, -240.0, -277.0),
        ),
        (
            {"topology": "zephyr", "broken": 0.05, "field": 2.0, "temperature": 0.5, "num_reads": 3, "sweeps": 6},
            (-175.0, -198.6, 0.370833333, 0.008746, -246.0, -223.0, -213.0, -234.0, -231.0),
        ),
    ],
)
def test_reads_are_as_good_as_they_always_were(cache, options, expected):
    """What changes them, in their quality alone, is seen here; new numbers are in the message."""
    generator = np.random.default_rng(0)
    half = np.triu(generator.integers(-9, 10, (16, 16)), 1).astype(float)
    family = QuboFamily((half + half.T) / 2, generator.integers(-9, 10, (16, 5)).astype(float))
    solution = VirtualQPU(size=4, cache=cache, **options).solve(family)
    stats = [solution.stats[name] for name in ("read_energy", "chip_energy", "chain_break_fraction", "qpu_seconds")]
    assert [*stats, *solution.energies.tolist()] == pytest.approx(expected)


def test_the_chip_has_the_ranges_of_a_real_one():
    ranges = {"h_range": [-4, 4], "j_range": [-1, 1], "extended_j_range": [-2, 1], "num_reads_range": [1, 10000]}
    ranges |= {"per_qubit_coupling_range": [-18, 15], "annealing_time_range": [0.5, 2000]}
    chip = VirtualChip(size=2, topology="zephyr")
    assert {name: chip.properties[name] for name in ranges} == ranges
    assert chip.properties["topology"] == {"type": "zephyr", "shape": [2, 4]}
    assert VirtualChip(size=2).properties["topology"] == {"type": "pegasus", "shape": [2]}


def test_what_the_solver_cannot_take_is_named():
    with pytest.raises(TypeError, match="label must be a text or None, got 3"):
        VirtualQPU(label=3)
    with pytest.raises(ValueError, match=r"cannot go on from \['steps'\]; was the solver changed"):
        VirtualQPU().load_state_dict({"steps": 3})


@pytest.mark.parametrize("auto_scale", [True, False])
def test_the_chip_samples_a_model_over_its_qubits(auto_scale):
    """Three coupled qubits; the ground state by hand: a up against its field's sign, b opposite to a, c free to h."""
    chip = VirtualChip(size=2, h_error=0, j_error=0)
    a = chip.nodelist[0]
    b = next(iter(chip.adjacency[a]))
    model = dimod.BinaryQuadraticModel({a: -2.0, b: 0.5}, {(a, b): 1.0}, 3.0, "SPIN")
    for bqm in (model, model.change_vartype("BINARY", inplace=False)):
        found = chip.sample(bqm, num_reads=20, auto_scale=auto_scale)
        assert found.vartype is bqm.vartype
        assert found.first.energy == pytest.approx(-0.5)
        assert found.first.sample[a] == 1
        assert found.first.sample[b] < 1
        assert len(found) == 20


def test_reads_of_a_free_qubit_follow_boltzmann():
    """At the end of a slow anneal ⟨s⟩ = −tanh(h / T) for a single classical spin; the transverse field is then gone."""
    chip = VirtualChip(size=2, h_error=0, j_error=0, temperature=0.5, sweeps=200)
    qubit = chip.nodelist[0]
    found = chip.sample(dimod.BQM({qubit: 0.25}, {}, 0, "SPIN"), num_reads=4000, auto_scale=False)
    assert found.record.sample.mean() == pytest.approx(-np.tanh(0.5), abs=0.06)


def test_the_chip_refuses_what_it_cannot_set():
    chip, refused = VirtualChip(size=2, broken=0.2), dimod.exceptions.BinaryQuadraticModelStructureError
    assert 0 < len(chip.nodelist) < 40
    first = chip.nodelist[0]
    apart = next(q for q in chip.nodelist[1:] if q not in chip.adjacency[first])
    for fields, couplings, options, error, message in (
        ({10**6: 1.0}, {}, {}, refused, "no qubits"),
        ({"a": 1.0}, {}, {}, refused, "no qubits"),
        ({}, {(first, apart): 1.0}, {}, refused, "no couplers"),
        ({first: float("nan")}, {}, {}, ValueError, "finite"),
        ({first: 5.0}, {}, {"auto_scale": False}, ValueError, r"must lie in \[-4.0, 4.0\]"),
        ({first: 1.0}, {}, {"num_reads": 0}, ValueError, "num_reads must lie"),
        ({first: 1.0}, {}, {"num_reads": 20000}, ValueError, "num_reads must lie"),
        ({first: 1.0}, {}, {"annealing_time": -5}, ValueError, "annealing_time must lie"),
    ):
        with pytest.raises(error, match=message):
            chip.sample_ising(fields, couplings, **options)


def test_chips_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="size must be an integer of at least 2"):
        VirtualChip(size=1)
    with pytest.raises(ValueError, match='topology must be "pegasus" or "zephyr"'):
        VirtualChip(topology="torus")


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_an_empty_model_has_empty_samples(vartype):
    samples = VirtualChip(size=2).sample(dimod.BinaryQuadraticModel({}, {}, 1.5, vartype), num_reads=3)
    assert samples.record.sample.shape == (3, 0) and samples.record.energy.tolist() == [1.5] * 3
