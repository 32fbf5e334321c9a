"""Solvers of QUBO families: the protocol, the table of names, and `make_solver`.

A new solver is one file with a subclass of `Solver` and one line in `SOLVERS`; `qpsbgd.testing` checks it. Other
packages add theirs by entry points of the group `qpsbgd.solvers`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qpsbgd.solvers.deadline import best_on_interrupt

if TYPE_CHECKING:  # torch, which not every solver needs
    from qpsbgd.qubo import QuboFamily, Solution

SOLVERS: Mapping[str, str] = MappingProxyType(
    {
        "auto": "qpsbgd.solvers.auto:Auto",
        "exact": "qpsbgd.solvers.exact.exact:Exact",
        "descent": "qpsbgd.solvers.search.descent:Descent",
        "annealing": "qpsbgd.solvers.search.annealing:Annealing",
        "quantum-annealing": "qpsbgd.solvers.search.quantum_annealing:QuantumAnnealing",
        "bifurcation": "qpsbgd.solvers.search.bifurcation:Bifurcation",
        "gurobi": "qpsbgd.solvers.external.gurobi:Gurobi",
        "dimod": "qpsbgd.solvers.external.dimod:Dimod",
        "dwave": "qpsbgd.solvers.annealer.dwave:DWave",
        "leap-hybrid": "qpsbgd.solvers.annealer.leap_hybrid:LeapHybrid",
        "virtual-qpu": "qpsbgd.solvers.annealer.virtual_qpu:VirtualQPU",
        "replay": "qpsbgd.solvers.annealer.replay:Replay",
        **{point.name: point.value for point in entry_points(group="qpsbgd.solvers")},
    }
)
"""Name → "module:class"; a solver's module is loaded when the solver is made."""

SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("sa", "simulated-annealing", "neal", "dwave-neal", "dwave-sa", "metropolis"), "annealing"),
        **dict.fromkeys(("sqa", "pimc", "path-integral-annealing", "simulated-quantum-annealing"), "quantum-annealing"),
        **dict.fromkeys(("tabu", "tabu-search", "greedy", "steepest-descent", "local-search", "icm"), "descent"),
        **dict.fromkeys(("brute-force", "bruteforce", "exhaustive", "enumeration", "exact-solver"), "exact"),
        **dict.fromkeys(("sb", "dsb", "simulated-bifurcation", "ballistic-bifurcation"), "bifurcation"),
        **dict.fromkeys(("qpu", "d-wave", "advantage", "dwave-qpu", "dwave-sampler", "quantum", "annealer"), "dwave"),
        **dict.fromkeys(("leap", "hybrid", "dwave-hybrid", "leap-hybrid-sampler", "kerberos"), "leap-hybrid"),
        **dict.fromkeys(("gurobi-optimizer", "gurobipy", "grb", "mip", "miqp"), "gurobi"),
        **dict.fromkeys(("mock", "mock-dwave", "simulator", "virtual", "vqpu"), "virtual-qpu"),
        **dict.fromkeys(("openjij", "dwave-samplers", "sampler", "ocean"), "dimod"),
        **dict.fromkeys(("default", "best", "automatic"), "auto"),
    }
)
"""Other people's names → ours, for the message about an unknown name."""


class Solver(ABC):
    """Solves QUBO families. The same family and options give the same solution, unless a solver says otherwise."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "solve" in vars(cls):
            cls.solve = _checking(cls.solve)  # type: ignore[method-assign]

    @abstractmethod
    def solve(self, family: QuboFamily) -> Solution:
        """The best spins found for every column, on the device and in the floating type of the family.

        A solver that runs out of time returns its best spins with `proven_optimal` false.
        """

    @classmethod
    def variants(cls) -> dict[str, str]:
        """The ways to use the solver, each with why it cannot be used here (no licence, no token) or "" if it can."""
        return {"": ""}

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """One solution per family; solvers that can take all layers of a step at once override this."""
        return [self.solve(family) for family in families]

    def solve_until_interrupted(self, family: QuboFamily) -> Solution:
        """Like `solve`, but Ctrl-C ends it with the best spins so far; `stats["interrupted"]` says whether it did.

        Solvers that cannot be stopped go on to their end; a second Ctrl-C raises KeyboardInterrupt.
        """
        with best_on_interrupt() as interruption:
            solution = self.solve(family)
        solution.stats["interrupted"] = interruption.came
        return solution

    def for_problems(self) -> Solver:
        """The solver for single problems that come from no layer: itself; `auto` means another one there."""
        return self

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must restore; empty unless answers depend on earlier calls."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but got {sorted(state)}; was the solver changed?")


def make_solver(solver: Any, **options: Any) -> Solver:
    """The solver of this name with these options; a solver object is returned as it is.

    A dimod sampler object becomes the solver 'dimod', which samples one column after the other; one of Leap's hybrid
    solver becomes 'leap-hybrid'.

    Raises:
        ValueError: The name is unknown.
        TypeError: An option is unknown to the solver, or a sampler is a bare chip.
        ImportError: The solver needs a package that is not installed; the message has the `pip install` line.
        RuntimeError: The solver needs a token of D-Wave, and none is set.
    """
    if isinstance(solver, Solver):
        if options:
            raise TypeError(f"options {sorted(options)} cannot be given to a solver object; set them where it is made")
        return solver
    dimod = sys.modules.get("dimod")  # whoever has made a sampler has loaded it
    if dimod is not None and isinstance(solver, dimod.Sampler):
        hybrid = "minimum_time_limit" in (getattr(solver, "properties", None) or {})
        return make_solver("leap-hybrid" if hybrid else "dimod", sampler=solver, **options)
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise ValueError(
            f"unknown solver {solver!r}{_hint(solver)} Choose one of {', '.join(SOLVERS)}, or pass a Solver object or "
            "a dimod sampler."
        )
    module, name = SOLVERS[solver].split(":")
    factory = getattr(import_module(module), name)
    known = inspect.signature(factory).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"solver {solver!r} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    made: Solver = factory(**options)
    return made


def _checking(solve: Callable[..., Solution]) -> Callable[..., Solution]:
    """`solve` that names the right call for what is not a family, and sees numbers within its type's range.

    On a GPU only `QuboFamily` itself looks at the range: here the numbers would have to be waited for.
    """

    @functools.wraps(solve)
    def checked(self: Solver, family: QuboFamily) -> Solution:
        from qpsbgd.qubo import QuboFamily, Solution

        if not isinstance(family, QuboFamily):
            raise TypeError(
                f"solve takes a QuboFamily, got {type(family).__name__}; for problems in other forms (files, matrices, "
                "dicts, dimod's models, sparse ones) use qpsbgd_qubo.solve(problem, solver=…)"
            )
        exponent = family.range_exponent() if family.linear.device.type == "cpu" else 0
        if not exponent:
            return solve(self, family)
        found = solve(self, family.in_range(exponent))
        return Solution.of(family, found.spins, proven_optimal=found.proven_optimal, **found.stats)

    return checked


def _hint(solver: object) -> str:
    name = "-".join(str(solver).lower().replace("_", " ").replace("-", " ").split())
    near = [name] if name in SOLVERS else difflib.get_close_matches(name, [*SOLVERS, *SPELLINGS], n=1)
    return f"; did you mean {SPELLINGS.get(near[0], near[0])!r}?" if near else "."


__all__ = ["SOLVERS", "Solver", "best_on_interrupt", "make_solver"]
