"""Solvers by name: a solver of this package is a name in `OWN` and a case in `solver_class`."""

import inspect
import sys
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from qpsbgd_qubo.solvers.protocol import Solver

OWN = (
    *("auto", "exact", "descent", "annealing", "quantum-annealing", "gurobi", "dimod"),
    *("dwave", "leap-hybrid", "virtual-qpu", "replay", "portfolio", "gpu-annealing"),
)
OTHERS = MappingProxyType({point.name: point for point in entry_points(group="qpsbgd.solvers")})
"""Solvers of other packages, by entry points."""
SOLVERS = (*OWN, *(name for name in OTHERS if name not in OWN))
"""The names that `make_solver` knows."""


def solver_class(name: str) -> type[Solver]:
    """The class of the solver of this name. Its module, and the packages that it needs, are loaded here."""
    kind: type[Solver]
    match name:
        case "auto":
            from qpsbgd_qubo.solvers.auto import Auto as kind
        case "exact":
            from qpsbgd_qubo.solvers.exact.exact import Exact as kind
        case "descent":
            from qpsbgd_qubo.solvers.search.descent import Descent as kind
        case "annealing":
            from qpsbgd_qubo.solvers.search.annealing import Annealing as kind
        case "quantum-annealing":
            from qpsbgd_qubo.solvers.search.quantum_annealing import QuantumAnnealing as kind
        case "gurobi":
            from qpsbgd_qubo.solvers.external.gurobi import Gurobi as kind
        case "dimod":
            from qpsbgd_qubo.solvers.external.dimod import Dimod as kind
        case "dwave":
            from qpsbgd_qubo.annealers.dwave import DWave as kind
        case "leap-hybrid":
            from qpsbgd_qubo.annealers.dwave import LeapHybrid as kind
        case "virtual-qpu":
            from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU as kind
        case "replay":
            from qpsbgd_qubo.annealers.replay import Replay as kind
        case "portfolio":
            from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio as kind
        case "gpu-annealing":
            from qpsbgd_qubo.solvers.search.gpu_annealing import GpuAnnealing as kind
        case _:
            kind = OTHERS[name].load()
    return kind


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
