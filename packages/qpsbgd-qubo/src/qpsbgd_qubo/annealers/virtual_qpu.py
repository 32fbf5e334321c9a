"""A simulated chip with a real topology, broken qubits, control errors and broken chains; and its solver."""

import functools
import hashlib
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from qpsbgd_qubo.annealers.chip_solver import ChipSolver
from qpsbgd_qubo.annealers.chips import ANNEALING_TIME, PROGRAMMING_SECONDS, READOUT_SECONDS, Chip
from qpsbgd_qubo.annealers.packing import fit
from qpsbgd_qubo.kernels import Array, kernels, thread_count
from qpsbgd_qubo.options import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, POSITIVE, SEED, Number, check_options

try:
    import dimod
    import dwave.graphs
except ImportError as error:
    raise ImportError("solver 'virtual-qpu' needs dimod and dwave-graphs: pip install 'qpsbgd-qubo[dwave]'") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class ChipOptions:
    """What a virtual chip is like, and how it is simulated; see `VirtualChip`.

    Args:
        topology: "pegasus" or "zephyr".
        size: m of the topology: 16 is an Advantage chip (Pegasus), 12 an Advantage2 (Zephyr).
        broken: Share of qubits that do not work, chosen by the seed.
        h_error: Standard deviation of the error of every field, in the units of h; drawn anew for every submission.
        j_error: The same for every coupling, in the units of J.
        sweeps: Passes over all spins per anneal of 20 µs; longer anneals have more.
        slices: P, the Trotter number.
        field: The transverse field at the start.
        temperature: In units of J = 1.
        seed: Seed of broken qubits, errors and reads.
    """

    topology: str = "pegasus"
    size: int = 16
    broken: float = 0.0
    h_error: float = 0.02
    j_error: float = 0.01
    sweeps: int = 64
    slices: int = 8
    field: float = 3.0
    temperature: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.topology not in ("pegasus", "zephyr"):
            raise ValueError(f'topology must be "pegasus" or "zephyr", got {self.topology!r}')
        least = 2 if self.topology == "pegasus" else 1
        check_options(self, size=Number(whole=True, least=least), broken=BELOW_ONE)
        check_options(self, h_error=NOT_NEGATIVE, j_error=NOT_NEGATIVE, sweeps=AT_LEAST_ONE)
        check_options(self, slices=Number(whole=True, least=2), field=POSITIVE, temperature=POSITIVE, seed=SEED)


class VirtualChip(dimod.Sampler, dimod.Structured):  # type: ignore[misc]
    """A structured sampler that stands in for a `DWaveSampler`: it accepts what a chip accepts and has a chip's errors.

        H(u) = −A(u) Σ Xᵢ + B(u) ( Σ hᵢ Zᵢ + Σ Jᵢⱼ Zᵢ Zⱼ ),   A(u) = field · (1 − u),   B(u) = u,   u = 0 … 1

    It is sampled by Monte Carlo over Trotter slices at a fixed temperature. The same problem with the same options
    gives the same answer.

    Args:
        **options: Those of `ChipOptions`.
    """

    # dimod has these as abstract properties; they are set below.
    nodelist: Any = None
    edgelist: Any = None
    properties: Any = None
    parameters: Any = None

    def __init__(self, **options: Any) -> None:
        self._options = ChipOptions(**options)
        topology, size = self._options.topology, self._options.size
        graph = dwave.graphs.pegasus_graph(size) if topology == "pegasus" else dwave.graphs.zephyr_graph(size)
        whole = sorted(graph)
        works = np.random.default_rng([self._options.seed, 1]).random(len(whole)) >= self._options.broken
        nodes = {qubit for qubit, good in zip(whole, works, strict=True) if good}
        self.nodelist = sorted(nodes)
        self.edgelist = sorted(tuple(sorted(edge)) for edge in graph.edges if nodes.issuperset(edge))
        self.properties = {
            "chip_id": f"virtual-{topology}-{size}",
            "topology": {"type": topology, "shape": [size] if topology == "pegasus" else [size, 4]},
            "h_range": [-4.0, 4.0],
            "j_range": [-1.0, 1.0],
            "extended_j_range": [-2.0, 1.0],
            "per_qubit_coupling_range": [-18.0, 15.0],
            "num_reads_range": [1, 10000],
            "annealing_time_range": [0.5, 2000.0],
            "default_annealing_time": ANNEALING_TIME,
        }
        self.parameters = {"num_reads": [], "annealing_time": [], "auto_scale": []}

    @functools.cached_property
    def chip(self) -> Chip:
        """Graph and ranges."""
        return Chip.read(self)

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        num_reads: int = 1,
        annealing_time: float = ANNEALING_TIME,
        auto_scale: bool = True,
    ) -> dimod.SampleSet:
        """Reads of the model, with the time that a chip would have taken in `info["timing"]`.

        Args:
            bqm: Over qubits and couplers of the chip.
            num_reads: How many anneals.
            annealing_time: Microseconds.
            auto_scale: Make the coefficients as large as the ranges allow; otherwise they must lie within them.
        """
        for name, value in (("num_reads", num_reads), ("annealing_time", annealing_time)):
            low, high = self.properties[f"{name}_range"]
            if not low <= value <= high:
                raise ValueError(f"{name} must lie between {low:g} and {high:g}, got {value}")
        missing = [label for label in bqm.variables if label not in self.chip.neighbours]
        if missing:
            raise dimod.exceptions.BinaryQuadraticModelStructureError(f"the chip has no qubits {missing[:5]}")
        if not bqm.num_variables:
            return dimod.SampleSet.from_samples_bqm(np.empty((num_reads, 0), np.int8), bqm)
        ising = bqm.change_vartype("SPIN", inplace=False)
        h, (rows, columns, couplings), _, labels = ising.to_numpy_vectors(return_labels=True)
        qubits = np.asarray(labels, dtype=np.int64)
        h, couplings = np.asarray(h, dtype=np.float64), np.asarray(couplings, dtype=np.float64)
        if not (np.isfinite(h).all() and np.isfinite(couplings).all()):
            raise ValueError("fields and couplings must be finite, but have NaN or infinite values")
        ends = np.sort(np.stack([qubits[rows], qubits[columns]], axis=1), axis=1)
        if uncoupled := [(a, b) for a, b in ends.tolist() if b not in self.chip.neighbours[a]]:
            raise dimod.exceptions.BinaryQuadraticModelStructureError(
                f"the chip has no couplers {uncoupled[:5]}, which the problem uses"
            )
        h, couplings = self._in_range(h, couplings, auto_scale=auto_scale)
        content = (qubits, h, rows, columns, couplings, np.array([num_reads, annealing_time]))
        digest = hashlib.sha256(b"|".join(np.ascontiguousarray(part).tobytes() for part in content)).digest()
        generator = np.random.default_rng([self._options.seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])
        h = h + self._options.h_error * generator.standard_normal(len(h))
        couplings = couplings + self._options.j_error * generator.standard_normal(len(couplings))
        spins = self._anneal(h, (rows, columns, couplings), num_reads, annealing_time, generator)
        programming, per_read = PROGRAMMING_SECONDS * 1e6, annealing_time + READOUT_SECONDS * 1e6
        timing = {
            "qpu_programming_time": programming,
            "qpu_sampling_time": num_reads * per_read,
            "qpu_anneal_time_per_sample": annealing_time,
            "qpu_access_time": programming + num_reads * per_read,
        }
        samples = dimod.SampleSet.from_samples_bqm((spins, qubits.tolist()), ising, info={"timing": timing})
        return samples.change_vartype(bqm.vartype)

    def _in_range(self, h: Array, couplings: Array, *, auto_scale: bool) -> tuple[Array, Array]:
        bounds = self.properties["h_range"], self.properties["extended_j_range"]
        tightest = min(fit(h, bounds[0]), fit(couplings, bounds[1]))
        if auto_scale:
            factor = tightest if np.isfinite(tightest) else 1.0
            return h * factor, couplings * factor
        if tightest < 1 - 1e-6:
            raise ValueError(
                f"fields must lie in {bounds[0]} and couplings in {bounds[1]}, but some are {1 / tightest:.3g} times "
                "as large; scale the problem, or leave auto_scale on"
            )
        return h, couplings

    def _anneal(
        self, h: Array, couplers: tuple[Array, Array, Array], reads: int, time: float, generator: np.random.Generator
    ) -> Array:
        """Spins of every read, (reads, q) int8."""
        n, options, slices = len(h), self._options, self._options.slices
        rows, columns, couplings = couplers
        ends, others = np.concatenate([rows, columns]), np.concatenate([columns, rows])
        order = np.argsort(ends, kind="stable")  # every spin's neighbours, one spin after the other
        starts = np.concatenate([[0], np.bincount(ends, minlength=n).cumsum()])
        coupled = kernels.Rows(starts, others[order].astype(np.int32), np.tile(couplings, 2)[order])
        count = max(2, round(options.sweeps * time / ANNEALING_TIME))
        u = (np.arange(count) + 0.5) / count
        transverse = options.field * (1 - u)
        ties = -0.5 * options.temperature * np.log(np.tanh(transverse / (slices * options.temperature)))
        spins = (2 * generator.integers(0, 2, size=(reads, slices, n), dtype=np.int8) - 1).astype(np.float32)
        states = generator.integers(1, 2**63, size=reads, dtype=np.uint64)
        schedule = np.stack([u / slices, ties, np.full(count, options.temperature)], axis=1).astype(np.float32)
        kernels.sweep_chip(coupled, h.astype(np.float32), spins, schedule, states, thread_count())
        return spins[:, 0].astype(np.int8)


@dataclass(frozen=True, kw_only=True, eq=False)
class VirtualQPU(ChipSolver, ChipOptions):
    """The solver 'dwave' on a `VirtualChip`: the same tiles, chains, ranges and repair, no token and no network.

    Takes the options of `ChipSolver` and of `VirtualChip`. QPU time is what a chip would have taken: 8.5 ms for
    programming and 82 µs per read. Spare tiles stay free, since here they cost time.
    """

    name: ClassVar[str] = "virtual-qpu"

    copies: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        ChipOptions.__post_init__(self)

    def _chip_options(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(ChipOptions)}

    def _header(self, sampler: Any) -> dict[str, Any]:
        return {**super()._header(sampler), "virtual": self._chip_options()}

    def _new_sampler(self) -> tuple[Any, bool]:
        return _virtual_chip(**self._chip_options()), False


# Its answers depend only on its options and the problem, so solvers with the same options share one.
_virtual_chip = functools.lru_cache(maxsize=8)(VirtualChip)
