"""Families on a D-Wave quantum annealer: every column on a clique of its own, all layers of a step together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from qpsbgd.solvers.annealer.budget import BudgetSpent, Estimate
from qpsbgd.solvers.annealer.chip_solver import ChipSolver
from qpsbgd.solvers.annealer.chips import Chip
from qpsbgd.solvers.annealer.submissions import transient

try:
    import dwave.system
    from dwave.cloud.api.exceptions import ResourceAccessForbiddenError, ResourceAuthenticationError
    from dwave.cloud.config import load_config
    from dwave.cloud.exceptions import ConfigFileError
except ImportError as error:
    raise ImportError("solver 'dwave' needs dwave-system: pip install 'qpsbgd[dwave]'") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class DWave(ChipSolver):
    """Solves families on a D-Wave chip, or on any sampler with the structure of one.

    Takes the options of `ChipSolver` and these. Answers of a quantum annealer differ from call to call; `record` a run
    to be able to repeat it.

    Args:
        sampler: A structured sampler such as `DWaveSampler`, its mock or a `VirtualChip`, which stays open; None makes
            a `DWaveSampler` with the token from `dwave config create` or the environment, and closes it with the
            solver.
        region: Of D-Wave's service, such as "eu-central-1".
        chip: Name of the chip, such as "Advantage_system4.1"; None takes what the service offers first.
    """

    name: ClassVar[str] = "dwave"

    sampler: Any = None
    region: str | None = None
    chip: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is None:
            check_token("dwave")
        else:
            Chip.of(self.sampler)
            if self.region is not None or self.chip is not None:
                raise ValueError("region and chip choose among D-Wave's chips; leave them out when a sampler is given")

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Whether a token is set; uses no network."""
        return token_variants("dwave")

    def _new_sampler(self) -> tuple[Any, bool]:
        if self.sampler is not None:
            return self.sampler, False
        chosen = {"region": self.region, "solver": self.chip}
        with login("dwave"):
            return dwave.system.DWaveSampler(**{k: v for k, v in chosen.items() if v is not None}), True


@contextmanager
def login(solver: str) -> Iterator[None]:
    """Around the opening of a connection to D-Wave: what stands in its way is raised with what to do.

    Raises:
        RuntimeError: No token is set, the token was refused, or the service cannot be reached.
    """
    check_token(solver)
    try:
        yield
    except Exception as error:
        if isinstance(error, ResourceAuthenticationError | ResourceAccessForbiddenError) or _status(error) in (
            401,
            403,
        ):
            raise RuntimeError(
                f"D-Wave refused the API token that solver {solver!r} sent ({error}); copy yours from "
                f"{_TOKEN_PAGE} again, then {_ways_to_set_a_token(solver)}; {_INSTEAD}"
            ) from error
        if transient(error):
            raise RuntimeError(
                f"solver {solver!r} cannot reach D-Wave's service ({error}); check the network, a proxy or firewall, "
                f"and `dwave ping`, then try again; {_INSTEAD}"
            ) from error
        raise


def check_token(solver: str) -> None:
    """Raise where no token is set, with the ways to set one; uses no network."""
    try:
        token = load_config().get("token")
    except ConfigFileError as error:
        raise RuntimeError(
            f"solver {solver!r} cannot read D-Wave's configuration ({error}); correct that file, or delete it and run "
            "`dwave config create`"
        ) from error
    if not token:
        raise RuntimeError(
            f"solver {solver!r} needs an API token of D-Wave Leap, and none is set; copy yours from {_TOKEN_PAGE}, "
            f"then {_ways_to_set_a_token(solver)}; {_INSTEAD}"
        )


def token_variants(solver: str) -> dict[str, str]:
    """For `Solver.variants`: why the solver cannot be used here, as far as that is known without the network."""
    try:
        check_token(solver)
    except RuntimeError as error:
        return {"": str(error)}
    return {"": ""}


_TOKEN_PAGE = "https://cloud.dwavesys.com/leap"
_INSTEAD = (
    "the solver 'virtual-qpu' needs neither token nor network, nor do 'quantum-annealing' and 'annealing', and "
    "`qpsbgd qpu estimate 16-4-2` tells what a run would cost"
)


def _ways_to_set_a_token(solver: str) -> str:
    sampler = {"dwave": "DWaveSampler", "leap-hybrid": "LeapHybridSampler"}[solver]
    return (
        "run `dwave config create`, or set the environment variable DWAVE_API_TOKEN, or pass "
        f"sampler=dwave.system.{sampler}(token=…)"
    )


def _status(error: Exception) -> int | None:
    """The HTTP status of a refused request."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


__all__ = ["BudgetSpent", "DWave", "Estimate"]
