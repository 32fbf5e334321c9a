"""Any dimod sampler as a solver: D-Wave's classical ones by name, or your own object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.solvers import Solver

try:
    import dimod
    import dwave.samplers
except ImportError as error:
    raise ImportError("solver 'dimod' needs dimod and dwave-samplers: pip install 'qpsbgd-qubo[dimod]'") from error


SAMPLERS: Mapping[str, Callable[[], dimod.Sampler]] = MappingProxyType(
    {
        "simulated-annealing": dwave.samplers.SimulatedAnnealingSampler,
        "steepest-descent": dwave.samplers.SteepestDescentSampler,
        "tabu": dwave.samplers.TabuSampler,
        "path-integral-annealing": dwave.samplers.PathIntegralAnnealingSampler,
        "exact": dimod.ExactSolver,
    }
)
"""Name → the sampler's class."""


@dataclass(frozen=True)
class Dimod(Solver):
    """Samples one column after the other with a dimod sampler and keeps each column's lowest energy.

    Args:
        sampler: A dimod sampler object, or one of the names in `SAMPLERS`.
        parameters: Passed to every `sample` call, such as `{"num_reads": 10, "seed": 0}`. Samplers that take a seed
            get `seed=0` where none is given, so that runs can be repeated; path-integral annealing ignores it
            (dwave-samplers 1.8). OpenJij's (0.12) then make equal reads, so pass `"seed": None` for several.
    """

    sampler: Any = "simulated-annealing"
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.sampler, str) and self.sampler not in SAMPLERS:
            raise ValueError(f"unknown sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}")
        if not isinstance(self.sampler, str | dimod.Sampler):
            raise TypeError(f"sampler must be a name or a dimod.Sampler, got {type(self.sampler).__name__}")
        if isinstance(self.sampler, dimod.Structured) and not isinstance(self.sampler, dimod.Composite):
            raise TypeError(
                f"{self._name} couples only neighbouring qubits of a chip, but every spin of a layer is coupled to "
                "every other: make_solver('dwave', sampler=sampler) puts all columns on the chip at once; to have them "
                "embedded one by one, wrap it in EmbeddingComposite(sampler)"
            )
        if not isinstance(self.parameters, Mapping):
            raise TypeError(f"parameters must be a dict of names and values, got {self.parameters!r}")
        with self._open() as sampler:
            known = _parameters(sampler)
        unknown = sorted(set(self.parameters) - known)
        if unknown:
            raise TypeError(f"sampler {self._name} has no parameter {', '.join(unknown)}; it has {sorted(known)}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Dimod:
        return self  # immutable, and a sampler with an open connection cannot be copied

    @property
    def together(self) -> bool:
        """With a sampler object, which threads may not be able to share."""
        return not isinstance(self.sampler, str)

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Every named sampler; all of them can be used where this module can."""
        return {f"sampler={name}": "" for name in SAMPLERS}

    def _solve(self, family: QuboFamily) -> Solution:
        with self._open() as sampler:
            parameters = dict(self.parameters)
            if "seed" in _parameters(sampler):
                parameters.setdefault("seed", 0)
            columns = [
                self._lowest(sampler.sample(family.to_bqm(column), **parameters), family.num_spins)
                for column in range(family.num_columns)
            ]
        spins = np.stack(columns, axis=1)
        return Solution.of(family, spins, proven_optimal=self.sampler == "exact", solver="dimod", sampler=self._name)

    def _lowest(self, samples: dimod.SampleSet, num_spins: int) -> np.ndarray[Any, Any]:
        """The spins of lowest energy, shape (n,), in the order of the labels 0…n−1."""
        if not len(samples):
            raise RuntimeError(f"sampler {self._name} must return at least one sample per column, but returned none")
        if set(samples.variables) != set(range(num_spins)):
            raise RuntimeError(
                f"sampler {self._name} must return the variables 0…{num_spins - 1} that it was given, but returned "
                f"{list(samples.variables)[:8]}…; a composite around it may have renamed or fixed some"
            )
        samples = samples.change_vartype(dimod.SPIN, inplace=False)
        spins = np.empty(num_spins)
        spins[np.asarray(samples.variables, dtype=np.int64)] = samples.record.sample[samples.record.energy.argmin()]
        return spins

    @property
    def _name(self) -> str:
        return self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__

    def _open(self) -> AbstractContextManager[dimod.Sampler]:
        """The sampler; one that was made here by its name is closed afterwards."""
        if not isinstance(self.sampler, str):
            return nullcontext(self.sampler)
        sampler = SAMPLERS[self.sampler]()
        # dimod's own samplers can be closed from 0.12.19 on.
        return closing(sampler) if hasattr(sampler, "close") else nullcontext(sampler)


def _parameters(sampler: dimod.Sampler) -> set[str]:
    """What `sample` takes; some samplers, such as OpenJij's, list only a part of it in `parameters`."""
    named = inspect.signature(sampler.sample).parameters.values()
    return set(sampler.parameters) | {p.name for p in named if p.kind is p.KEYWORD_ONLY or p.default is not p.empty}
