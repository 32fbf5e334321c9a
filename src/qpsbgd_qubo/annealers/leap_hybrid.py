"""Families on D-Wave's hybrid solver in the Leap service: all columns of all layers as one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qpsbgd_qubo.annealers.dwave import LeapSolver
from qpsbgd_qubo.annealers.hybrid_solver import HybridSolver


@dataclass(frozen=True, kw_only=True, eq=False)
class LeapHybrid(LeapSolver, HybridSolver):
    """Solves families with Leap's hybrid solver for binary quadratic models; layers of any width.

    Takes the options of `HybridSolver` and of `LeapSolver`. It has not been run on the service yet, only on D-Wave's
    own mock.
    """

    name: ClassVar[str] = "leap-hybrid"
    sampler_kind: ClassVar[str] = "LeapHybridSampler"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is None:
            return
        if "minimum_time_limit" not in (getattr(self.sampler, "properties", None) or {}):
            raise TypeError(
                f"sampler must be a LeapHybridSampler or its like, got {type(self.sampler).__name__}; for chips use "
                "the solver 'dwave', for other samplers 'dimod'"
            )
        if self.region is not None:
            raise ValueError("region chooses where D-Wave's service is; leave it out when a sampler is given")
