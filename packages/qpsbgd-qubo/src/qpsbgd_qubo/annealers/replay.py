"""Replays a recorded run: the same problems, with answers from the file, without token or network."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from qpsbgd_qubo.annealers.budget import RecordingError
from qpsbgd_qubo.annealers.chip_solver import DECIDING, ChipSolver
from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.recordings import Recording
from qpsbgd_qubo.annealers.submissions import Link, Live
from qpsbgd_qubo.annealers.tiles import CliqueEmbedding
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.solvers import Solver


@dataclass(frozen=True, eq=False)
class Replay(Solver):
    """Answers from a file that the option `record` of 'dwave' or 'virtual-qpu' wrote, one after the other.

    Options and tiles are those of the recorded run. Every problem is compared with the recorded one; the first that
    differs raises a `RecordingError`.

    Args:
        path: The recording.
    """

    path: str | Path
    _inner: ChipSolver = field(init=False, repr=False)

    def __post_init__(self) -> None:
        header = Recording(self.path).header
        try:
            options = {name: header[name] for name in DECIDING}
            chip = Chip.from_description(header["chip"])
            sampler = SimpleNamespace(chip=chip, properties={}, parameters={})
            inner = _FromFile(**options, sampler=sampler, record=Path(self.path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RecordingError(
                f"{self.path} must say with which chip and options it was recorded, but does not: {error!r:.200}; use "
                "another copy of it"
            ) from error
        object.__setattr__(self, "_inner", inner)

    def _solve(self, family: QuboFamily) -> Solution:
        return self._inner._solve(family)

    def _solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The recorded answers."""
        return self._inner._solve_all(families)

    @property
    def together(self) -> bool:
        """Always, as in the recorded run."""
        return True

    @property
    def submissions(self) -> int:
        """Problems answered so far."""
        return self._inner.submissions

    @property
    def qpu_seconds(self) -> float:
        """QPU time that was counted for their answers when they were recorded."""
        return self._inner.qpu_seconds

    def state_dict(self) -> dict[str, Any]:
        """The place in the recording, and what had been sent by then; as the recorded run's."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._inner.load_state_dict(state)


@dataclass(frozen=True, kw_only=True, eq=False)
class _FromFile(ChipSolver):
    """A solver whose only link is the recording that `record` names, with a sampler that has only its properties."""

    name: ClassVar[str] = "replay"

    sampler: Any = field(repr=False)

    def _new_sampler(self) -> tuple[Any, bool]:
        return self.sampler, False

    def _new_link(self, live: Live, sampler: Any) -> Link:
        assert self.record is not None
        return Recording(self.record)

    def _find_tiles(self, spins: int) -> tuple[CliqueEmbedding, ...]:
        link = self._link()
        if isinstance(link, Recording) and spins not in link.tiles:
            raise RecordingError(f"{link.path} has no layer of {spins} inputs; replay the model that was recorded")
        return super()._find_tiles(spins)
