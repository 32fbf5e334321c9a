"""Families on D-Wave's hybrid solver in the Leap service: all columns of all layers as one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qpsbgd.solvers.annealer.dwave import check_token, login, token_variants
from qpsbgd.solvers.annealer.hybrid_solver import HybridSolver

import dwave.system  # isort: skip  # the module above says how to install it


@dataclass(frozen=True, kw_only=True, eq=False)
class LeapHybrid(HybridSolver):
    """Solves families with Leap's hybrid solver for binary quadratic models; layers of any width.

    Takes the options of `HybridSolver` and these. It has not been run on the service yet, only on D-Wave's own mock.

    Args:
        sampler: A `LeapHybridSampler` or its like, which stays open; None makes one with the token from `dwave config
            create` or the environment, and closes it with the solver.
        region: Of D-Wave's service, such as "eu-central-1".
    """

    name: ClassVar[str] = "leap-hybrid"

    sampler: Any = None
    region: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is None:
            check_token("leap-hybrid")
            return
        if "minimum_time_limit" not in (getattr(self.sampler, "properties", None) or {}):
            raise TypeError(
                f"sampler must be a LeapHybridSampler or its like, got {type(self.sampler).__name__}; for chips use "
                "the solver 'dwave', for other samplers 'dimod'"
            )
        if self.region is not None:
            raise ValueError("region chooses where D-Wave's service is; leave it out when a sampler is given")

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Whether a token is set; uses no network."""
        return token_variants("leap-hybrid")

    def _new_sampler(self) -> tuple[Any, bool]:
        if self.sampler is not None:
            return self.sampler, False
        chosen = {} if self.region is None else {"region": self.region}
        with login("leap-hybrid"):
            return dwave.system.LeapHybridSampler(**chosen), True
