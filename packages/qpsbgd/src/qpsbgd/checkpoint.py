"""A training run in one file, from which an interrupted run resumes bit for bit."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from qpsbgd_qubo.files.atomic import writing
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE

_FORMAT = b"qpsbgd-checkpoint-2\n"  # then the SHA-256 of the rest, and the rest: what torch.save wrote
_START = len(_FORMAT) + hashlib.sha256().digest_size
_ADVICE = "restore a copy of it, or delete it to start over"


class Checkpoint:
    """Saves the state of a training run, and restores it when the same run starts again.

        with Checkpoint("run.pt", model=model, optimizer=optimizer) as run:
            for step in run.steps(1000):
                …

    The file always holds the state at the beginning of a step. If a step raises, because it fails, is interrupted or
    has spent the budget of a quantum annealer, that is the state before this step. For runs that are killed, the state
    is also written every `every` steps. The file is replaced as a whole, and has a checksum over everything. Torch's
    random state is part of it, so that a resumed run repeats the interrupted step and equals an uninterrupted one bit
    for bit, if everything else that is random takes its numbers from torch.

    A step left by `break` counts as finished, whether or not the `with` block ends there.

    Every step begins with a copy of the state in memory, which costs as much as a pass over all weights.

    Args:
        path: The file. If it exists, the parts are restored from it at the beginning of the `with` block: all of them,
            or, if one does not fit, none, and a ValueError names it.
        every: Steps between two writes; None writes only at the end and when the run is interrupted.
        **parts: Whatever has a state: models, optimisers, schedulers, `torch.Generator`s. Use the same names every
            time.

    Attributes:
        step: The number of finished steps.
    """

    def __init__(self, path: str | Path, *, every: int | None = None, **parts: Any) -> None:
        AT_LEAST_ONE_OR_NONE.checked("every", every)
        if not parts:
            raise ValueError("a checkpoint needs something to save: Checkpoint(path, model=model, optimizer=…)")
        for name, part in parts.items():
            has_state = hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
            if not (has_state or isinstance(part, torch.Generator)):
                raise TypeError(f"{name} must have state_dict and load_state_dict, got {type(part).__name__}")
        self.path = Path(path).expanduser()
        self.step = 0
        self._every, self._parts = every, parts
        self._begun: dict[str, Any] | None = None
        self._within = False

    def __enter__(self) -> Checkpoint:
        if self.path.exists():
            self._restore()
        self._begun = self._state()
        self._check_readable(self._begun)
        self._write(self._begun)  # a path that cannot be written is an error now, not after hours
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._begun is not None
        if kind is None:
            self.step += self._within  # the loop was left by `break`
            self._begun = self._state()
        self._write(self._begun)
        self._begun, self._within = None, False

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the steps left of `count`; the body of the loop is one step."""
        if self._begun is None:
            raise RuntimeError("steps are counted inside the with block: with Checkpoint(…) as run: …")
        if self._within:  # an earlier loop was left by `break`
            self._finish()
        while self.step < count:
            self._within = True
            yield self.step
            self._finish()

    def _finish(self) -> None:
        self._within = False
        self.step += 1
        self._begun = self._state()
        if self._every is not None and self.step % self._every == 0:
            self._write(self._begun)

    def _state(self) -> dict[str, Any]:
        """A copy of everything; later steps do not change it."""
        parts = {
            name: part.get_state() if isinstance(part, torch.Generator) else copy.deepcopy(part.state_dict())
            for name, part in self._parts.items()
        }
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            random |= {f"cuda {index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
        return {"step": self.step, "random": random, "parts": parts}

    def _check_readable(self, state: dict[str, Any]) -> None:
        """Raise, naming the part, if a state holds objects that torch would not load again."""
        for name, part in state["parts"].items():
            data = io.BytesIO()
            torch.save(part, data)
            data.seek(0)
            try:
                torch.load(data, weights_only=True)
            except pickle.UnpicklingError as error:
                raise TypeError(
                    f"the state of {name} holds more than tensors and plain Python values, for example numpy numbers, "
                    "and could not be loaded again; convert them, for example lr=float(lr)"
                ) from error

    def _write(self, state: dict[str, Any]) -> None:
        data = io.BytesIO()
        torch.save(state, data)
        content = data.getbuffer()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with writing(self.path) as file:
            file.write(_FORMAT + hashlib.sha256(content).digest())
            file.write(content)

    def _restore(self) -> None:
        state = _read(self.path)
        if state["parts"].keys() != self._parts.keys():
            raise ValueError(
                f"{self.path} holds {', '.join(state['parts'])}, but this run has {', '.join(self._parts)}; "
                "give the same names, or delete the file to start over"
            )
        before = self._state()["parts"]
        try:
            for name in self._parts:
                self._load(name, state["parts"][name])
        except Exception as error:
            for other in self._parts:
                with suppress(Exception):
                    self._load(other, before[other])
            raise ValueError(
                f"{self.path} does not fit {name} ({type(error).__name__}: {error}); make it as in the saved run, or "
                f"{_ADVICE}"
            ) from error
        torch.set_rng_state(state["random"]["cpu"])
        for index in range(torch.cuda.device_count()):
            if f"cuda {index}" in state["random"]:
                torch.cuda.set_rng_state(state["random"][f"cuda {index}"], index)
        self.step = int(state["step"])

    def _load(self, name: str, state: Any) -> None:
        part = self._parts[name]
        part.set_state(state) if isinstance(part, torch.Generator) else part.load_state_dict(state)


def _read(path: Path) -> dict[str, Any]:
    """The state in a file, if its checksum is right."""
    content = path.read_bytes()
    if not content.startswith(_FORMAT):
        raise ValueError(f"{path} is not a checkpoint of this version of qpsbgd, or it is damaged; {_ADVICE}")
    payload = memoryview(content)[_START:]
    if hashlib.sha256(payload).digest() != content[len(_FORMAT) : _START]:
        raise ValueError(f"{path} is damaged or cut off: its checksum is wrong ({len(content)} bytes); {_ADVICE}")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a checkpoint, though its checksum is right ({error}); {_ADVICE}") from error
