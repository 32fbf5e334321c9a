"""Problems as a service takes them, answers as it gives them, and the connection that carries both."""

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

from qpsbgd_qubo.annealers.budget import Bill, Budget, seconds_charged
from qpsbgd_qubo.kernels import Array

try:
    import dimod
except ImportError as error:
    raise ImportError("solvers of an annealer need dimod: pip install 'qpsbgd-qubo[dwave]'") from error

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
# More requests than the service allows per minute: worth a longer wait.
_CROWDED = {"ResourceLimitsExceededError"}
_FAILED = {"SolverError", "ProblemError", "RequestError"}
_QUOTA = ("remaining solver access time", "quota")
"""What the service says when an account's time is used up, in lower case."""

# Raised before anything is sent: the client compares the problem with the chip's graph first.
_UNSENT = {"BinaryQuadraticModelStructureError", "InvalidProblemError"}


class ServiceRefused(RuntimeError):
    """The service takes no more problems for now; the message says why, what is kept and what to do."""


@dataclass(frozen=True, eq=False)
class Submission:
    """One problem to send: fields and couplings of qubits, in single precision, far finer than a chip sets them."""

    qubits: Array  # the qubits in use, shape (q,)
    fields: Array  # h of each, shape (q,)
    edges: Array  # the couplers in use as positions in `qubits`, shape (e, 2)
    couplings: Array  # J of each, shape (e,)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what else is sent, such as `num_reads`
    seconds: float = 0.0  # estimated QPU time; a problem without a positive one cannot be sent

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
        parameters = json.dumps(dict(self.parameters), sort_keys=True)
        values = self.fields.tobytes() + b"|" + self.couplings.tobytes()
        return hashlib.sha256(f"{self.structure}{parameters}".encode() + values).hexdigest()

    def bqm(self) -> dimod.BinaryQuadraticModel:
        """The problem as a model over the chip's qubits."""
        ends = self.qubits[self.edges].reshape(-1, 2)
        model = dimod.BinaryQuadraticModel("SPIN")
        model.add_linear_from(zip(self.qubits.tolist(), self.fields.tolist(), strict=True))
        model.add_quadratic_from(zip(*ends.T.tolist(), self.couplings.tolist(), strict=True))
        return model


@dataclass(frozen=True, eq=False)
class Answer:
    """What came back."""

    spins: Array  # ±1 of every read and qubit, in the problem's order, shape (reads, q), int8
    # The service's own account in microseconds: a chip charges for `qpu_access_time`, the hybrid solver for
    # `charge_time`
    timing: Mapping[str, float]
    seconds: float  # QPU time that is counted for it; see `budget.seconds_charged`


class Link(ABC):
    """Answers problems: a live connection, or a recording before one."""

    @abstractmethod
    def answers(self, problems: Sequence[Submission], budget: Budget) -> Iterator[Answer]:
        """The answers, one by one and in order; whatever may be charged is counted before it is sent."""

    @abstractmethod
    def close(self) -> None:
        """Close what the link has opened."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must restore."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if state:
            raise ValueError(f"this connection keeps no state, but got {sorted(state)}; was `record` left out?")


class Live(Link):
    """Sends problems to a sampler, all at once, and sends one again after a passing fault, up to `retries` times.

    The pause before is one second, then two, four, …, and fifteen times as long where requests were too many. `close`
    closes a sampler that is `owned`.
    """

    def __init__(self, sampler: Any, *, retries: int = 3, owned: bool = False, label: str | None = None) -> None:
        self._sampler, self._retries, self._owned, self._label = sampler, retries, owned, label

    def answers(self, problems: Sequence[Submission], budget: Budget) -> Iterator[Answer]:
        """Sends all, then waits for one after the other."""
        bills = budget.reserve([problem.seconds for problem in problems])
        try:
            pending = [self._send(problem, bill) for problem, bill in zip(problems, bills, strict=True)]
            for at, (problem, sent) in enumerate(zip(problems, pending, strict=True)):
                for attempt in range(self._retries + 1):
                    try:
                        if isinstance(sent, Exception):
                            raise sent
                        spins, timing = _read(sent, problem)
                        break
                    except Exception as error:
                        if attempt == self._retries or not transient(error):
                            _explain(error)
                            raise
                        pause = (15.0 if _is_a(error, _CROWDED) else 1.0) * 2.0**attempt
                    budget.give_up([bills[at]])
                    (bills[at],) = budget.reserve([problem.seconds])
                    time.sleep(pause)
                    sent = self._send(problem, bills[at])
                seconds = seconds_charged(timing, estimate=problem.seconds)
                budget.settle(bills[at], seconds)
                yield Answer(spins, timing, seconds)
        finally:
            budget.give_up(bills)

    def _send(self, problem: Submission, bill: Bill) -> Any:
        """The sampler's answer, which may still be on its way, or the passing fault that it met at once."""
        known = self._sampler.parameters or {}
        # Only chips rescale problems or merge equal reads; a sampler that does not know these options does neither.
        fixed = {"auto_scale": False, "answer_mode": "raw"} | ({"label": self._label} if self._label else {})
        fixed = {name: value for name, value in fixed.items() if name in known}
        model = problem.bqm()
        bill.sent = True
        try:
            return self._sampler.sample(model, **problem.parameters, **fixed)
        except Exception as error:
            if transient(error):
                return error
            # Any other error may have come after the service took the problem.
            bill.sent = not _is_a(error, _UNSENT)
            _explain(error)
            raise

    def close(self) -> None:
        """Close the sampler, if it was made for this link."""
        if self._owned and hasattr(self._sampler, "close"):
            self._sampler.close()


def transient(error: Exception) -> bool:
    """Whether the same submission may succeed a little later."""
    return _is_a(error, _TRANSIENT | _CROWDED)


def _explain(error: Exception) -> None:
    """Raise the error in our words, where the service refused for a reason that its user can do something about."""
    kept = "this step changed nothing, and answers so far are in the recording if there is one (record=…)"
    if _is_a(error, _CROWDED):
        raise ServiceRefused(
            f"the service still allows no more requests ({error}); {kept}: wait some minutes and run the same again, "
            "with larger `retries` to wait longer"
        ) from error
    if _is_a(error, _FAILED) and any(words in str(error).lower() for words in _QUOTA):
        raise ServiceRefused(
            f"the account's time on the service is used up ({error}); {kept}: see the dashboard for when it is renewed "
            "and then run the same again; the solver 'virtual-qpu' needs no account"
        ) from error


def _is_a(error: Exception, names: set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _read(samples: dimod.SampleSet, problem: Submission) -> tuple[Array, dict[str, float]]:
    """The reads in the problem's order of qubits, and the service's times; waits for them."""
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
    # A chip reports its times under "timing", the hybrid solver beside it.
    inner = samples.info.get("timing")
    reported = {**samples.info, **(inner if isinstance(inner, Mapping) else {})}
    numbers = {
        name: float(value)
        for name, value in reported.items()
        if isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    }
    return spins, numbers
