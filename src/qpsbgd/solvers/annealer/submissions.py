"""Problems as a chip takes them, answers as it gives them, and the connection that carries both."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

try:
    import dimod
except ImportError as error:
    raise ImportError("solvers on an annealer's chip need dimod: pip install 'qpsbgd[dwave]'") from error

Array = np.ndarray[Any, Any]

# By name, so that neither dwave-cloud-client nor requests is needed to recognise them.
_TRANSIENT = {
    "ConnectionError",
    "TimeoutError",
    "Timeout",
    "RequestTimeout",
    "PollingTimeout",
    "ProblemUploadError",
    "InternalServerError",
    "ResourceBadResponseError",
    "SolverOfflineError",
    "RetryCondition",
}


@dataclass(frozen=True, eq=False)
class Submission:
    """One submission: fields and couplings of qubits, in single precision, far finer than a chip sets them.

    Attributes:
        qubits: The qubits in use, shape (q,).
        fields: h of each, shape (q,).
        edges: The couplers in use as positions in `qubits`, shape (e, 2).
        couplings: J of each, shape (e,).
        parameters: What else the chip is told, such as `num_reads`.
    """

    qubits: Array
    fields: Array
    edges: Array
    couplings: Array
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in (("qubits", "<i4"), ("fields", "<f4"), ("edges", "<i4"), ("couplings", "<f4")):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))

    @functools.cached_property
    def structure(self) -> str:
        """A digest of qubits and couplers, which stay the same from step to step."""
        return hashlib.sha256(self.qubits.tobytes() + b"|" + self.edges.tobytes()).hexdigest()

    @functools.cached_property
    def digest(self) -> str:
        """A digest of everything that is sent."""
        told = json.dumps(dict(self.parameters), sort_keys=True)
        values = self.fields.tobytes() + b"|" + self.couplings.tobytes()
        return hashlib.sha256(f"{self.structure}{told}".encode() + values).hexdigest()

    def bqm(self) -> dimod.BinaryQuadraticModel:
        """The problem as a model over the chip's qubits."""
        ends = self.qubits[self.edges].reshape(-1, 2)
        model = dimod.BinaryQuadraticModel("SPIN")
        model.add_linear_from(zip(self.qubits.tolist(), self.fields.tolist(), strict=True))
        model.add_quadratic_from(zip(*ends.T.tolist(), self.couplings.tolist(), strict=True))
        return model


@dataclass(frozen=True, eq=False)
class Answer:
    """What came back.

    Attributes:
        spins: ±1 of every read and qubit, in the problem's order, shape (reads, q), int8.
        timing: The service's own account in microseconds: of a chip `qpu_access_time` is what is paid for, of the
            hybrid solver `charge_time`.
    """

    spins: Array
    timing: Mapping[str, float]

    @property
    def seconds(self) -> float | None:
        """Seconds that are paid for the answer, where the service tells them."""
        told = self.timing.get("charge_time", self.timing.get("qpu_access_time"))
        return None if told is None else told * 1e-6


class Link(ABC):
    """A way to a chip."""

    @property
    def outstanding(self) -> int:
        """Problems that were sent and whose answers have not been taken."""
        return 0

    @abstractmethod
    def ask(self, problems: Sequence[Submission]) -> Iterator[Answer]:
        """The answers, one by one and in order."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the link holds."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must restore."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if state:
            raise ValueError(f"this link to a chip keeps no state, but got {sorted(state)}; was `record` left out?")


class Live(Link):
    """A structured sampler that is asked, all problems at once, and asked again when something passing went wrong.

    Args:
        sampler: A `DWaveSampler` or anything that samples a model over its `nodelist` and `edgelist`.
        retries: How often a problem is submitted again after a time-out, a lost connection or a fault of the service;
            before it a second passes, then two, four, …
        owned: Whether `close` closes the sampler.
    """

    def __init__(self, sampler: Any, *, retries: int = 3, owned: bool = False) -> None:
        self._sampler, self._retries, self._owned = sampler, retries, owned
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        """Problems that the sampler took and whose answers have not been taken."""
        return self._outstanding

    def ask(self, problems: Sequence[Submission]) -> Iterator[Answer]:
        """Submits all, then waits for one after the other."""
        self._outstanding = 0
        pending = [self._attempt(problem, 0) for problem in problems]
        for problem, sent in zip(problems, pending, strict=True):
            for attempt in range(1, self._retries + 2):
                try:
                    if isinstance(sent, Exception):
                        raise sent
                    answer = _read(sent, problem)
                    break
                except Exception as error:
                    if attempt > self._retries or not transient(error):
                        raise
                self._outstanding -= not isinstance(sent, Exception)
                time.sleep(2.0 ** (attempt - 1))
                sent = self._attempt(problem, attempt)
            yield answer
            self._outstanding -= 1

    def _attempt(self, problem: Submission, attempt: int) -> Any:
        """The sampler's answer, which may still be on its way, or the passing error that it met at once."""
        known = self._sampler.parameters or {}
        parameters = {name: value for name, value in problem.parameters.items() if value is not None}
        # Both are the chip's business alone: a sampler that does not know them does nothing of the kind.
        told = {name: value for name, value in (("auto_scale", False), ("answer_mode", "raw")) if name in known}
        try:
            sent = self._sampler.sample(problem.bqm(), **parameters, **told)
            self._outstanding += 1
            return sent
        except Exception as error:
            if attempt >= self._retries or not transient(error):
                raise
            return error

    def close(self) -> None:
        """Close the sampler, if it was made for this link."""
        if self._owned and hasattr(self._sampler, "close"):
            self._sampler.close()


def transient(error: Exception) -> bool:
    """Whether the same submission may succeed a little later."""
    return any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__)


def _read(samples: dimod.SampleSet, problem: Submission) -> Answer:
    """The reads in the problem's order of qubits; waits for them."""
    record = samples.record
    place = {qubit: position for position, qubit in enumerate(samples.variables)}
    if place.keys() != set(problem.qubits.tolist()) or not len(record):
        raise RuntimeError(
            f"the sampler must return reads of the {len(problem.qubits)} qubits that it was given, but returned "
            f"{len(record)} reads of {len(place)}"
        )
    spins = record.sample[:, [place[qubit] for qubit in problem.qubits.tolist()]].astype(np.int8)
    if samples.vartype is dimod.BINARY:
        spins = 2 * spins - 1
    spins = np.repeat(spins, record.num_occurrences.astype(np.int64), axis=0)
    # A chip tells its times under "timing", the hybrid solver beside it.
    told = {**samples.info, **(samples.info.get("timing") or {})}
    return Answer(
        spins,
        {name: float(value) for name, value in told.items() if isinstance(value, Real) and not isinstance(value, bool)},
    )
