"""A training run in one file: interrupted anywhere, it goes on as if nothing had happened."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from qpsbgd.atomic import writing

_FORMAT = "qpsbgd-checkpoint-1"


class Checkpoint:
    """Saves the state of a training run, and restores it when the same run starts again.

        with Checkpoint("run.pt", model=model, optimizer=optimizer) as run:
            for step in run.steps(1000):
                …

    The file holds the state at the beginning of a step: of the step that failed, was interrupted, or found the budget
    of a quantum annealer spent; and every `every` steps that of the next, for runs that are killed. It is written
    whole or not at all. Torch's random state is part of it, so that a resumed run repeats the interrupted step and
    equals an uninterrupted one bit for bit, if all else that is random takes its numbers from torch.

    Every step begins with a copy of the state in memory, which costs as much as a pass over all weights.

    Args:
        path: The file. If it is there, the parts are restored from it at the beginning of the `with` block.
        every: Steps between two writings; None writes only at the end and when the run is interrupted.
        **parts: What has a state: models, optimisers, schedulers, and `torch.Generator`s. The same names every time.

    Attributes:
        step: The number of finished steps.
    """

    def __init__(self, path: str | Path, *, every: int | None = None, **parts: Any) -> None:
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number, at least 1, or None, got {every}")
        if not parts:
            raise ValueError("a checkpoint needs what is to be saved: Checkpoint(path, model=model, optimizer=…)")
        for name, part in parts.items():
            if not isinstance(part, torch.Generator) and not (
                hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
            ):
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
        self._write(self._begun)  # now, and not after hours, it is known that it can be
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._begun is not None
        if kind is None:
            self.step += self._within  # the loop was left by `break`: that step is done
            self._begun = self._state()
        self._write(self._begun)
        self._within = False

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the steps that are left of `count`; what comes between two of them is one step."""
        if self._begun is None:
            raise RuntimeError("steps are counted inside the with block: with Checkpoint(…) as run: …")
        while self.step < count:
            self._within = True
            yield self.step
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
        return {"format": _FORMAT, "step": self.step, "random": random, "parts": parts}

    def _check_readable(self, state: dict[str, Any]) -> None:
        """Raise, naming the part, where a state holds what would not be read back: torch loads no foreign objects."""
        for name, part in state["parts"].items():
            data = io.BytesIO()
            torch.save(part, data)
            data.seek(0)
            try:
                torch.load(data, weights_only=True)
            except pickle.UnpicklingError as error:
                raise TypeError(
                    f"the state of {name} holds more than tensors and plain Python values, such as numpy numbers, and "
                    "could not be read back; convert them, for example lr=float(lr)"
                ) from error

    def _write(self, state: dict[str, Any]) -> None:
        data = io.BytesIO()
        torch.save(state, data)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with writing(self.path) as file:
            file.write(data.getbuffer())

    def _restore(self) -> None:
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            if state["format"] != _FORMAT:
                raise ValueError(f"its format is {state['format']!r}")
        except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, TypeError, EOFError) as error:
            raise ValueError(
                f"{self.path} is no checkpoint of qpsbgd, or it is broken ({type(error).__name__}); "
                "use another copy, or delete it to start anew"
            ) from error
        if state["parts"].keys() != self._parts.keys():
            raise ValueError(
                f"{self.path} holds {', '.join(state['parts'])}, but this run has {', '.join(self._parts)}; "
                "name the same parts, or delete it to start anew"
            )
        for name, part in self._parts.items():
            saved = state["parts"][name]
            part.set_state(saved) if isinstance(part, torch.Generator) else part.load_state_dict(saved)
        torch.set_rng_state(state["random"]["cpu"])
        if torch.cuda.is_available():
            for name, random in state["random"].items():
                if name.startswith("cuda") and int(name.split()[1]) < torch.cuda.device_count():
                    torch.cuda.set_rng_state(random, int(name.split()[1]))
        self.step = int(state["step"])
