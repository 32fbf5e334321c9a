"""Families on Leap's hybrid solver: all columns of all layers as one problem, whatever their width."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from qpsbgd_qubo.annealers.budget import Estimate, Shape
from qpsbgd_qubo.annealers.dwave import LeapSolver
from qpsbgd_qubo.annealers.reads import Reads
from qpsbgd_qubo.annealers.service_solver import Owners
from qpsbgd_qubo.annealers.submissions import Answer, Submission
from qpsbgd_qubo.family import Solution
from qpsbgd_qubo.ising import Ising
from qpsbgd_qubo.options import FLAG, POSITIVE_OR_NONE, check_options

LIMITS = ("minimum_time_limit", "maximum_number_of_variables", "maximum_number_of_biases")
"""The service's properties that decide what is sent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LeapHybrid(LeapSolver):
    """Solves families with Leap's hybrid solver for binary quadratic models; layers of any width.

    Takes the options of `LeapSolver` and these. It has not been run on the service yet, only on D-Wave's own mock.

    A submission takes some seconds whatever its size, so all columns of all layers go together, each divided by the
    field that a typical spin feels, since the service minimises their sum.

    Args:
        time_limit: Seconds per submission; None takes the least that the service allows for its size.
        descent: Flip single spins of the answer, until no flip lowers the energy.
    """

    name: ClassVar[str] = "leap-hybrid"
    sampler_kind: ClassVar[str] = "LeapHybridSampler"

    time_limit: float | None = None
    descent: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, time_limit=POSITIVE_OR_NONE, descent=FLAG)
        properties = getattr(self.sampler, "properties", None) or {}
        if self.sampler is not None and "minimum_time_limit" not in properties:
            raise TypeError(
                f"sampler must be a LeapHybridSampler or its like, got {type(self.sampler).__name__}; for chips use "
                "the solver 'dwave', for other samplers 'dimod'"
            )

    def _fill(self, owners: Owners) -> list[Answer]:
        groups = self._groups([each.family.num_spins for each, _ in owners])
        answers = self._send([self._problem([owners[k][0].columns[owners[k][1]] for k in group]) for group in groups])
        for group, answer in zip(groups, answers, strict=True):
            at = 0
            for each, column in (owners[k] for k in group):
                n = each.family.num_spins
                each.add(column, answer.spins[:, at : at + n].astype(np.int64), np.ones(n, dtype=np.int64))
                at += n
        return answers

    def _best(self, reads: Reads) -> Solution:
        solution = reads.best(repair="majority", descent=self.descent)
        return replace(solution, stats={name: value for name, value in solution.stats.items() if "chain" not in name})

    def estimate(self, shapes: Sequence[Shape]) -> Estimate:
        """What a step with layers of these shapes (inputs, columns) costs: the sum of its submissions' time limits."""
        sizes = [n for n, m in shapes for _ in range(m)]
        groups = self._groups(sizes)
        return Estimate(len(groups), sum(self._seconds(sum(sizes[k] for k in group)) for group in groups))

    def _groups(self, sizes: Sequence[int]) -> list[list[int]]:
        """The columns of every submission: as many, in order, as the service takes."""
        properties = self.connect().properties
        limits = np.array([properties.get(name) or np.inf for name in LIMITS[1:]])
        groups: list[list[int]] = []
        size = np.zeros(2)
        for column, n in enumerate(sizes):
            needed = np.array([n, n * (n + 1) / 2])
            if (needed > limits).any():
                raise ValueError(
                    f"a layer of {n} inputs has {n} variables and {needed[1]:.0f} biases per column, but the service "
                    f"takes at most {limits[0]:g} and {limits[1]:g}; use a classical solver"
                )
            if not groups or (size + needed > limits).any():
                groups.append([])
                size = np.zeros(2)
            groups[-1].append(column)
            size = size + needed
        return groups

    def _seconds(self, variables: int) -> float:
        counts, seconds = zip(*self.connect().properties["minimum_time_limit"], strict=True)
        least = float(np.interp(variables, counts, seconds))
        return least if self.time_limit is None else max(least, self.time_limit)

    def _problem(self, columns: Sequence[Ising]) -> Submission:
        fields, edges, couplings, at = [], [], [], 0
        for ising in columns:
            unit = ising.typical_field
            n = len(ising.fields)
            ends = np.triu_indices(n, 1)
            fields.append(ising.fields / unit)
            edges.append(np.stack(ends, axis=1) + at)
            couplings.append(ising.couplings[ends] / unit)
            at += n
        seconds = self._seconds(at)
        parts = np.concatenate(fields), np.concatenate(edges), np.concatenate(couplings)
        return Submission(np.arange(at), *parts, {"time_limit": seconds}, seconds)

    def _header(self, sampler: Any) -> dict[str, Any]:
        limits = {name: sampler.properties[name] for name in LIMITS if name in sampler.properties}
        return {"time_limit": self.time_limit, "descent": self.descent, "limits": limits}
