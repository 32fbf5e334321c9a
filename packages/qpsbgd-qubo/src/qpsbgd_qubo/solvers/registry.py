"""Solvers by name: those of this package are in `_OWN`, others are found by entry points."""

import inspect
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from qpsbgd_qubo.solvers.protocol import Solver

_GROUP = "qpsbgd.solvers"  # of entry points
_OWN = {
    "auto": "solvers.auto:Auto",
    "exact": "solvers.exact.exact:Exact",
    "descent": "solvers.search.descent:Descent",
    "annealing": "solvers.search.annealing:Annealing",
    "quantum-annealing": "solvers.search.quantum_annealing:QuantumAnnealing",
    "gurobi": "solvers.external.gurobi:Gurobi",
    "dimod": "solvers.external.dimod:Dimod",
    "dwave": "annealers.dwave:DWave",
    "leap-hybrid": "annealers.leap_hybrid:LeapHybrid",
    "virtual-qpu": "annealers.virtual_qpu:VirtualQPU",
    "replay": "annealers.replay:Replay",
    "portfolio": "solvers.portfolio.portfolio:Portfolio",
}
_POINTS = {name: EntryPoint(name, f"qpsbgd_qubo.{place}", _GROUP) for name, place in _OWN.items()}
_POINTS |= {point.name: point for point in entry_points(group=_GROUP) if point.name not in _OWN}
SOLVERS = tuple(_POINTS)
"""The names that `make_solver` knows."""


def solver_class(name: str) -> type[Solver]:
    """The class of the solver of this name. Its module, and the packages that it needs, are loaded here."""
    return _POINTS[name].load()


def make_solver(solver: Any, **options: Any) -> Solver:
    """The solver of this name with these options; a solver object is returned as it is.

    A dimod sampler object becomes the solver 'dimod', which samples one column after the other; one of Leap's hybrid
    solver becomes 'leap-hybrid'.

    Raises:
        ValueError: The name is unknown, or an option that the solver needs is missing.
        TypeError: An option is unknown to the solver, or a sampler is a bare chip.
        ImportError: The solver needs a package that is not installed; the message has the `pip install` line.
        RuntimeError: The solver needs a token of D-Wave, and none is set.

    Examples:
        >>> from qpsbgd_qubo.solvers import make_solver
        >>> make_solver("descent", tabu=20).tabu
        20
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
            f"unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}, or pass a Solver object or a dimod sampler"
        )
    factory: Any = solver_class(solver)
    known = inspect.signature(factory).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"solver {solver!r} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    missing = [name for name, option in known.items() if option.default is option.empty and name not in options]
    if missing:
        needed = " and ".join(f"--option {name}=… ({name}=… in Python)" for name in missing)
        raise ValueError(f"solver {solver!r} needs {needed}")
    return factory(**options)
