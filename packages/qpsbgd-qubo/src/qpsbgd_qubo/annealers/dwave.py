"""Families on D-Wave's service Leap: the token, and its chips, with every column on a clique of its own."""

from dataclasses import dataclass
from typing import Any, ClassVar

from qpsbgd_qubo.annealers.chip_solver import ChipSolver
from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.service_solver import ServiceSolver

try:
    import dwave.system
    from dwave.cloud.config import load_config
    from dwave.cloud.exceptions import ConfigFileError
except ImportError as error:
    raise ImportError("solver 'dwave' needs dwave-system: pip install 'qpsbgd-qubo[dwave]'") from error


_SERVICES = (dwave.system.DWaveSampler, dwave.system.LeapHybridSampler)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeapSolver(ServiceSolver):
    """What the solvers of D-Wave's service Leap share: the sampler, and the token that it needs.

    Args:
        sampler: One like those of `sampler_kind`, which stays open; None makes one with the token from `dwave config
            create` or the environment, and closes it with the solver.
        region: Region of D-Wave's service, such as "eu-central-1".
    """

    sampler_kind: ClassVar[str]
    choices: ClassVar[dict[str, str]] = {"region": "region"}
    """Options that choose the new sampler, and what it calls them."""

    sampler: Any = None
    region: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is None:
            _check_token(self.name, self.sampler_kind)
        elif any(getattr(self, name) is not None for name in self.choices):
            raise ValueError(
                f"{' and '.join(self.choices)} choose among D-Wave's solvers; leave them out when a sampler is given"
            )

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Whether a token is set; uses no network."""
        try:
            _check_token(cls.name, cls.sampler_kind)
        except RuntimeError as error:
            return {"": str(error)}
        return {"": ""}

    @property
    def charges(self) -> bool:
        """Whether the sampler is D-Wave's own, and not its mock or a virtual chip."""
        return self.sampler is None or isinstance(self.sampler, _SERVICES)

    def _new_sampler(self) -> tuple[Any, bool]:
        if self.sampler is not None:
            return self.sampler, False
        _check_token(self.name, self.sampler_kind)
        chosen = {kind: getattr(self, name) for name, kind in self.choices.items() if getattr(self, name) is not None}
        try:
            return getattr(dwave.system, self.sampler_kind)(**chosen), True
        except Exception as error:
            raise RuntimeError(
                f"solver {self.name!r} cannot open D-Wave's service with {chosen or 'any chip'}: {error}; nothing was "
                "sent. Check the network by `dwave ping`, what there is by `dwave solvers --list`, and the token on "
                f"{_TOKEN_PAGE}: {_ways_to_set_a_token(self.sampler_kind)}; {_INSTEAD}"
            ) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class DWave(LeapSolver, ChipSolver):
    """Solves families on a D-Wave chip, or on any sampler with the structure of one.

    Takes the options of `ChipSolver`, of `LeapSolver` and these; besides a `DWaveSampler`, its mock or a `VirtualChip`
    may be the sampler. Answers of a quantum annealer differ from call to call; `record` a run to be able to repeat it.

    Args:
        chip: Name of the chip, such as "Advantage_system4.1"; None takes what the service offers first.
    """

    name: ClassVar[str] = "dwave"
    sampler_kind: ClassVar[str] = "DWaveSampler"
    choices: ClassVar[dict[str, str]] = {"region": "region", "chip": "solver"}

    chip: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is not None:
            Chip.of(self.sampler)


def _check_token(solver: str, sampler: str) -> None:
    """Raise where no token is set, or none that a request can carry, with the ways to set one; uses no network."""
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
            f"then {_ways_to_set_a_token(sampler)}; {_INSTEAD}"
        )
    if not (token.isascii() and token.isprintable() and " " not in token):  # a request's error would show it
        raise RuntimeError(
            f"the API token of solver {solver!r} must be printable ASCII without spaces or line ends, got other "
            f"characters among its {len(token)}; copy it from {_TOKEN_PAGE} again, then {_ways_to_set_a_token(sampler)}"
        )


_TOKEN_PAGE = "https://cloud.dwavesys.com/leap"
_INSTEAD = (
    "the solver 'virtual-qpu' needs neither token nor network, nor do 'quantum-annealing' and 'annealing', and "
    "`qpsbgd qpu estimate 16-4-2` tells what a run would cost"
)


def _ways_to_set_a_token(sampler: str) -> str:
    return (
        "run `dwave config create`, or set the environment variable DWAVE_API_TOKEN, or pass "
        f"sampler=dwave.system.{sampler}(token=…)"
    )
