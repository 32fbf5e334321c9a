"""A recorded run on a chip once more: the same problems, the answers from the file, without token or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.annealer.chip_solver import DECIDING, ChipSolver
from qpsbgd.solvers.annealer.chips import Chip
from qpsbgd.solvers.annealer.recordings import Recording, RecordingError
from qpsbgd.solvers.annealer.submissions import Link


@dataclass(frozen=True, eq=False)
class Replay(Solver):
    """Answers from a file that `record` of a solver on a chip wrote, one recorded answer after the other.

    Options and tiles are those of the recorded run. Every problem is compared with the recorded one; the first that
    differs raises a `RecordingError`.

    Args:
        path: The recording.
    """

    path: str | Path
    _inner: _FromFile = field(init=False, repr=False)

    def __post_init__(self) -> None:
        recording = Recording(self.path)
        try:
            options = {name: recording.header[name] for name in DECIDING}
            chip = Chip.from_description(recording.header["chip"])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{self.path} does not tell the chip and options it was recorded with") from error
        object.__setattr__(self, "_inner", _FromFile(**options, path=Path(self.path), described=chip))

    def solve(self, family: QuboFamily) -> Solution:
        """The recorded answer."""
        return self._inner.solve(family)

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The recorded answers."""
        return self._inner.solve_all(families)

    def state_dict(self) -> dict[str, Any]:
        """The place in the recording, and what the chip had been asked by then; as the recorded run's."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._inner.load_state_dict(state)


@dataclass(kw_only=True, eq=False)
class _FromFile(ChipSolver):
    """`ChipSolver` without a chip."""

    path: Path
    described: Chip = field(repr=False)

    @property
    def _name(self) -> str:
        return "replay"

    def _connect(self) -> tuple[Any, bool]:
        return self.described.as_sampler(), False

    def _link(self, sampler: Any, owned: bool) -> Link:
        return Recording(self.path)
