"""What the solvers need to know about an annealer's chip: its graph, the ranges of its coefficients, its times."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

TOPOLOGIES = ("pegasus", "zephyr")

PROGRAMMING_SECONDS = 8.5e-3  # per submission, where a chip does not state its times
READOUT_SECONDS = 62e-6
"""Per read, on top of the anneal, where a chip does not state its times; with an anneal of 20 µs a read takes 82 µs."""
ANNEALING_TIME = 20.0  # microseconds per anneal, where neither the caller nor the chip says otherwise


@dataclass(frozen=True, eq=False)
class Chip:
    """A chip's working graph and ranges."""

    name: str
    topology: str  # one of `TOPOLOGIES`
    shape: tuple[int, ...]  # of the topology: (m,) for Pegasus, (m, t) for Zephyr
    qubits: tuple[int, ...]  # the working qubits, in order
    couplers: tuple[tuple[int, int], ...]  # the working couplers (a, b), a < b, in order
    h_range: tuple[float, float]  # smallest and largest field of a qubit
    j_range: tuple[float, float]  # smallest and largest coupling
    chain_range: tuple[float, float]  # the same inside chains: the extended range where the chip has one
    # Smallest and largest sum of a qubit's couplings; infinite where the chip sets no bound
    qubit_range: tuple[float, float]
    # The same for each of the two groups into which a Zephyr chip divides a qubit's couplers
    group_range: tuple[float, float]

    @classmethod
    def of(cls, sampler: Any) -> Chip:
        """The chip of a structured sampler: a `DWaveSampler`, its mock, or a `VirtualChip`."""
        if isinstance(getattr(sampler, "chip", None), cls):
            return sampler.chip
        return cls.read(sampler)

    @classmethod
    def read(cls, sampler: Any) -> Chip:
        """The chip as the sampler's properties describe it."""
        for name in ("nodelist", "edgelist", "properties"):
            if getattr(sampler, name, None) is None:
                raise TypeError(
                    "sampler must be structured, with nodelist, edgelist and properties like those of DWaveSampler, "
                    f"but {type(sampler).__name__} has no {name}; for other samplers use the solver 'dimod'"
                )
        properties = sampler.properties
        topology = properties.get("topology", {})
        if topology.get("type") not in TOPOLOGIES:
            raise ValueError(f"a chip's topology must be one of {', '.join(TOPOLOGIES)}, got {topology.get('type')!r}")
        j_range = _pair(properties, "j_range", (-1.0, 1.0))
        return cls(
            name=str(properties.get("chip_id", type(sampler).__name__)),
            topology=topology["type"],
            shape=tuple(map(int, topology["shape"])),
            qubits=tuple(sorted(map(int, sampler.nodelist))),
            couplers=tuple(sorted((int(min(edge)), int(max(edge))) for edge in sampler.edgelist)),
            h_range=_pair(properties, "h_range", (-1.0, 1.0)),
            j_range=j_range,
            chain_range=_pair(properties, "extended_j_range", j_range),
            qubit_range=_pair(properties, "per_qubit_coupling_range", (-np.inf, np.inf)),
            group_range=_pair(properties, "per_group_coupling_range", (-np.inf, np.inf)),
        )

    @functools.cached_property
    def key(self) -> str:
        """A name for files, different for every graph."""
        graph = np.array([*self.qubits, -1, *(qubit for pair in self.couplers for qubit in pair)], dtype="<i4")
        digest = hashlib.sha256(repr((self.topology, self.shape)).encode() + graph.tobytes()).hexdigest()
        return f"{'-'.join(map(str, (self.topology, *self.shape)))}-{digest[:20]}"

    def description(self) -> dict[str, Any]:
        """All attributes in a form that fits into JSON; `Chip.from_description` is the way back."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Chip:
        """The chip that `description` describes."""
        lists = {name: tuple(value) for name, value in description.items() if isinstance(value, list)}
        lists["couplers"] = tuple((a, b) for a, b in description["couplers"])
        chip = cls(**{**description, **lists})
        if not isinstance(chip.name, str) or chip.topology not in TOPOLOGIES:
            raise ValueError(f"a chip must have a name and one of the topologies {', '.join(TOPOLOGIES)}")
        if not all(type(number) is int and 0 <= number < 2**31 for number in (*chip.qubits, *chip.shape)):
            raise ValueError("a chip's qubits and shape must be integers")
        ends = [qubit for pair in chip.couplers for qubit in pair]
        if not all(type(qubit) is int for qubit in ends) or not set(chip.qubits).issuperset(ends):
            raise ValueError("a chip's couplers must join its qubits")
        for low, high in (chip.h_range, chip.j_range, chip.chain_range, chip.qubit_range, chip.group_range):
            if not low <= 0 <= high:
                raise ValueError("a chip's ranges must go from a number up to 0 to one from 0")
        return chip

    @functools.cached_property
    def tilings(self) -> dict[Any, Any]:
        """What `tiles.tiles_of` has found on the chip so far."""
        return {}

    @functools.cached_property
    def neighbours(self) -> Mapping[int, frozenset[int]]:
        """The qubits coupled to every qubit."""
        neighbours: dict[int, set[int]] = {qubit: set() for qubit in self.qubits}
        for a, b in self.couplers:
            neighbours[a].add(b)
            neighbours[b].add(a)
        return {qubit: frozenset(others) for qubit, others in neighbours.items()}

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"Chip({self.name}: {self.topology} [{shape}], {len(self.qubits)} qubits, {len(self.couplers)} couplers)"


def access_seconds(sampler: Any, *, num_qubits: int, num_reads: int, annealing_time: float | None = None) -> float:
    """QPU time of one submission in seconds, by the chip's own estimate; the constants above where it has none."""
    reads: dict[str, Any] = {"num_reads": num_reads}
    if annealing_time is not None:
        reads["annealing_time"] = annealing_time
    solver = getattr(sampler, "solver", None)
    if hasattr(solver, "estimate_qpu_access_time"):
        return float(solver.estimate_qpu_access_time(num_qubits, **reads)) * 1e-6  # type: ignore[union-attr]
    if annealing_time is None:
        annealing_time = float(sampler.properties.get("default_annealing_time", ANNEALING_TIME))
    return PROGRAMMING_SECONDS + num_reads * (annealing_time * 1e-6 + READOUT_SECONDS)


def _pair(properties: Mapping[str, Any], name: str, default: tuple[float, float]) -> tuple[float, float]:
    low, high = properties.get(name) or default
    return float(low), float(high)
