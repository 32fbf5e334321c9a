"""The solvers of this library as a dimod sampler, and a chip that takes many models at once as a dimod composite."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from qpsbgd_qubo.assignments import assignment
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE
from qpsbgd_qubo.problems import Problem, bqm_problem
from qpsbgd_qubo.solvers import Solver, make_solver

if TYPE_CHECKING:
    from qpsbgd_qubo.annealers.reads import Samples

try:
    import dimod
except ImportError as error:
    raise ImportError("dimod's samplers need dimod: pip install 'qpsbgd-qubo[dimod]'") from error


class FamilySampler(dimod.Sampler):  # type: ignore[misc]  # dimod comes without types
    """A dimod sampler that uses a solver of this library.

    Models stay sparse with "auto" and "portfolio"; for others they are made dense, which allows up to 10000 variables.
    `sample_ising` and `sample_qubo` work too.

    Args:
        solver: A solver's name or a `Solver`.
        **options: The solver's options.

    Examples:
        >>> from qpsbgd_qubo import FamilySampler
        >>> float(FamilySampler("exact").sample_qubo({("a", "b"): 2, ("a", "a"): -1}).first.energy)
        -1.0
    """

    def __init__(self, solver: str | Solver = "auto", **options: Any) -> None:
        self._solver: Any = make_solver(solver, **options)

    @property
    def parameters(self) -> dict[str, list[str]]:
        """What `sample` takes: `num_reads`, and `seed` and `time_limit` where the solver has them."""
        has = {"num_reads": True, "seed": self._seed is not None, "time_limit": hasattr(self._solver, "time_limit")}
        return {name: [] for name, known in has.items() if known}

    @property
    def properties(self) -> dict[str, Any]:
        """The solver with its options."""
        return {"solver": repr(self._solver)}

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        time_limit: float | None = None,
        **kwargs: Any,
    ) -> dimod.SampleSet:
        """The solver's answers, lowest energy first; `info` has its stats and whether the first is proven optimal.

        Args:
            bqm: Any model, over SPIN or BINARY variables.
            num_reads: How many; None for one. Read k has the seed plus k; a solver without a seed solves once, and its
                answer has `num_occurrences=num_reads`. Solvers on an annealer keep one connection and one budget.
            seed: Seed of the first read, instead of the solver's own.
            time_limit: Seconds per read, instead of the solver's own.
            **kwargs: Ignored with a warning, as dimod requires.
        """
        if time_limit is not None:
            if "time_limit" in self.parameters:
                limited = FamilySampler(dataclasses.replace(self._solver, time_limit=time_limit))
                return limited.sample(bqm, num_reads=num_reads, seed=seed, **kwargs)
            kwargs["time_limit"] = time_limit
        self.remove_unknown_kwargs(**kwargs)
        num_reads = AT_LEAST_ONE_OR_NONE.checked("num_reads", num_reads) or 1
        if seed is not None and self._seed is None:
            raise ValueError(f"{self._solver!r} draws no random numbers, so seed must be left out, got {seed}")
        if not bqm.num_variables:
            return _empty(bqm, num_reads)
        problem = bqm_problem(bqm)
        if hasattr(self._solver, "check_budget") and self._seed is not None:
            self._solver.check_budget([problem.family.linear.shape], steps=num_reads)
        first, solver = self._seed if seed is None else seed, self._solver
        # One that counts what it spends goes on counting.
        changed = getattr(solver, "with_parameters", functools.partial(dataclasses.replace, solver))
        solvers = [solver] if first is None else [changed(seed=first + read) for read in range(num_reads)]
        answers = [assignment(problem, each) for each in solvers]
        answers.sort(key=lambda answer: answer.value)
        samples = np.stack([problem.values(answer.spins)[:, 0] for answer in answers])
        return dimod.SampleSet.from_samples_bqm(
            (samples, problem.labels),
            bqm,
            num_occurrences=[num_reads // len(answers)] * len(answers),
            info=answers[0].stats | {"proven_optimal": bool(answers[0].proven_optimal[0])},
        )

    @property
    def _seed(self) -> int | None:
        return getattr(self._solver, "seed", None) if dataclasses.is_dataclass(self._solver) else None


class PackedComposite(dimod.ComposedSampler):  # type: ignore[misc]
    """A dimod composite that puts many models side by side onto a chip, each on a clique of its own.

    Cliques are searched once per chip and size, and kept on disk. Models may have any couplings and labels.

    Args:
        child: A `DWaveSampler`, its mock, or a `VirtualChip`.
        **options: Those of the solver 'dwave', such as `num_reads`, `max_qpu_seconds` and `record`. Unless given,
            `copies` is 1, so that a model has `num_reads` reads, and `descent` is off: only broken chains are repaired.

    Examples:
        >>> from qpsbgd_qubo import PackedComposite
        >>> from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip
        >>> packed = PackedComposite(VirtualChip(size=3), num_reads=5)
        >>> float(packed.sample_qubo({("a", "b"): 2, ("a", "a"): -1}).first.energy)
        -1.0
    """

    def __init__(self, child: dimod.Sampler, **options: Any) -> None:
        self._children = [child]
        self._solver: Any = make_solver("dwave", sampler=child, **{"copies": 1, "descent": False, **options})

    @property
    def children(self) -> list[dimod.Sampler]:
        """The chip."""
        return self._children

    @property
    def parameters(self) -> dict[str, list[str]]:
        """What `sample` and `sample_many` take."""
        return {name: [] for name in ("num_reads", "annealing_time", "chain_strength", "seed")}

    @property
    def properties(self) -> dict[str, Any]:
        """The chip's, and the options."""
        return {"child_properties": dict(self._children[0].properties), "solver": repr(self._solver)}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> dimod.SampleSet:
        """The reads of one model; parameters as in `sample_many`."""
        return self.sample_many([bqm], **parameters)[0]

    def sample_many(self, bqms: Iterable[dimod.BinaryQuadraticModel], **parameters: Any) -> list[dimod.SampleSet]:
        """The reads of every model, in their order, from as few submissions as hold all.

        Args:
            bqms: Over SPIN or BINARY variables; each at most as large as the chip's largest clique.
            **parameters: `num_reads`, `annealing_time`, `chain_strength` and `seed` instead of those given before.

        Raises:
            BudgetSpent: The submissions would exceed `max_qpu_seconds`; nothing was sent.
            ValueError: A model is wider than the chip's largest clique.
        """
        bqms = list(bqms)
        known = self.remove_unknown_kwargs(**parameters)
        solver = self._solver.with_parameters(**known) if known else self._solver
        problems = [bqm_problem(bqm) for bqm in bqms if bqm.num_variables]
        answers = iter(zip(problems, solver.sample_all([each.family for each in problems]), strict=True))
        return [_sample_set(bqm, *next(answers)) if bqm.num_variables else _empty(bqm) for bqm in bqms]

    def close(self) -> None:
        """Close the connection that was opened here; the chip itself stays open."""
        self._solver.close()


def _sample_set(bqm: dimod.BinaryQuadraticModel, problem: Problem, reads: Samples) -> dimod.SampleSet:
    values = problem.values(reads.spins[:, :, 0])
    return dimod.SampleSet.from_samples_bqm((values, problem.labels), bqm, info=reads.stats)


def _empty(bqm: dimod.BinaryQuadraticModel, num_reads: int = 1) -> dimod.SampleSet:
    return dimod.SampleSet.from_samples_bqm(np.empty((num_reads, 0), dtype=np.int8), bqm)
