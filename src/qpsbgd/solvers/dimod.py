"""Any dimod sampler as a solver: D-Wave's classical samplers by name, or an object of your own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver

try:
    import dimod
    import dwave.samplers
except ImportError as error:
    raise ImportError("solver 'dimod' needs dimod and dwave-samplers: pip install 'qpsbgd[dimod]'") from error

SAMPLERS = {
    "simulated-annealing": dwave.samplers.SimulatedAnnealingSampler,
    "steepest-descent": dwave.samplers.SteepestDescentSampler,
    "tabu": dwave.samplers.TabuSampler,
    "path-integral-annealing": dwave.samplers.PathIntegralAnnealingSampler,
    "exact": dimod.ExactSolver,
}


@dataclass(frozen=True)
class Dimod(Solver):
    """Samples one column after the other with a dimod sampler and keeps each column's lowest energy.

    Args:
        sampler: A dimod sampler object, or one of the names in `SAMPLERS`.
        parameters: Given to every `sample` call, such as `{"num_reads": 10, "seed": 0}`. Samplers that take a seed
            get `seed=0` where none is given, so that runs can be repeated; path-integral annealing ignores it
            (dwave-samplers 1.8).
    """

    sampler: Any = "simulated-annealing"
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.sampler, str) and self.sampler not in SAMPLERS:
            raise ValueError(f"unknown sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}")
        if not isinstance(self.sampler, str | dimod.Sampler):
            raise TypeError(f"sampler must be a name or a dimod.Sampler, got {type(self.sampler).__name__}")
        unknown = sorted(set(self.parameters) - set(self._made().parameters))
        if unknown:
            raise TypeError(f"sampler {self.sampler!r} has no parameter {', '.join(unknown)}")

    def solve(self, family: QuboFamily) -> Solution:
        """The lowest sample of every column."""
        sampler = self._made()
        parameters = dict(self.parameters)
        if "seed" in sampler.parameters:
            parameters.setdefault("seed", 0)
        columns = []
        for column in range(family.num_columns):
            samples = sampler.sample(family.to_bqm(column), **parameters)
            if not len(samples):
                raise RuntimeError(f"sampler {self.sampler!r} returned no sample for column {column}")
            lowest = samples.record[int(np.argmin(samples.record.energy))].sample
            spins = np.empty(family.num_spins)
            spins[np.asarray(samples.variables, dtype=np.int64)] = lowest
            columns.append(spins)
        answer = torch.from_numpy(np.stack(columns, axis=1))
        name = self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__
        return Solution.of(family, answer, proven_optimal=self.sampler == "exact", solver="dimod", sampler=name)

    def _made(self) -> dimod.Sampler:
        return SAMPLERS[self.sampler]() if isinstance(self.sampler, str) else self.sampler
