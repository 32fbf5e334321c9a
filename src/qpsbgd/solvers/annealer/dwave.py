"""Families on a D-Wave quantum annealer: every column on a clique of its own, all layers of a step together."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from qpsbgd.solvers.annealer.budget import BudgetSpent, Estimate
from qpsbgd.solvers.annealer.chip_solver import ChipSolver
from qpsbgd.solvers.annealer.chips import Chip
from qpsbgd.solvers.annealer.connected import ConnectedSolver

try:
    import dwave.system
    from dwave.cloud.config import load_config
    from dwave.cloud.exceptions import ConfigFileError
except ImportError as error:
    raise ImportError("solver 'dwave' needs dwave-system: pip install 'qpsbgd[dwave]'") from error


@dataclass(kw_only=True, eq=False)
class DWave(ChipSolver):
    """Solves families on a D-Wave chip, or on any sampler with the structure of one.

    Takes the options of `ChipSolver` and these. Answers of a quantum annealer differ from call to call; `record` a run
    to be able to repeat it.

    Args:
        sampler: A structured sampler such as `DWaveSampler`, its mock or a `VirtualChip`, which stays open; None makes
            a `DWaveSampler` with the token of `dwave config create` or the environment, and closes it in the end.
        region: Of D-Wave's service, such as "eu-central-1".
        chip: Name of the chip, such as "Advantage_system4.1"; None takes what the service offers first.
    """

    sampler: Any = None
    region: str | None = None
    chip: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is not None:
            Chip.of(self.sampler)
            if self.region is not None or self.chip is not None:
                raise ValueError("region and chip choose among D-Wave's chips; leave them out when a sampler is given")

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Whether D-Wave's chips can be used here; asks nothing of the network."""
        try:
            check_token("dwave", "DWaveSampler")
        except RuntimeError as error:
            return {"": str(error)}
        return {"": ""}

    @property
    def name(self) -> str:
        """The solver's name."""
        return "dwave"

    def _connect(self) -> tuple[Any, bool]:
        if self.sampler is not None:
            return self.sampler, False
        check_token("dwave", "DWaveSampler")
        chosen = {"region": self.region, "solver": self.chip}
        return dwave.system.DWaveSampler(**{name: value for name, value in chosen.items() if value is not None}), True

    def __deepcopy__(self, memo: dict[int, Any]) -> DWave:
        return copied(self, memo)


Connected = TypeVar("Connected", bound=ConnectedSolver)


def copied(solver: Connected, memo: dict[int, Any]) -> Connected:
    """A copy that asks the same sampler: an open one cannot be copied."""
    made = type(solver)(**{each.name: getattr(solver, each.name) for each in fields(solver) if each.init})
    made.load_state_dict(copy.deepcopy(solver.state_dict(), memo))
    return made


def check_token(solver: str, sampler: str) -> None:
    """Raises where no token is set, with the ways to set one; asks nothing of the network."""
    try:
        token = load_config().get("token")
    except ConfigFileError as error:
        raise RuntimeError(
            f"solver {solver!r} cannot read D-Wave's configuration ({error}); mend that file, or delete it and run "
            "`dwave config create`"
        ) from error
    if not token:
        raise RuntimeError(
            f"solver {solver!r} needs an API token of D-Wave Leap, and none is set; copy yours from "
            "https://cloud.dwavesys.com/leap, then run `dwave config create`, or set the environment variable "
            f"DWAVE_API_TOKEN, or pass sampler=dwave.system.{sampler}(token=…); the solver 'virtual-qpu' needs none"
        )


__all__ = ["BudgetSpent", "DWave", "Estimate"]
