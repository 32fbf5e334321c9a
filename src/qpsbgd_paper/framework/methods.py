"""The methods that experiments compare, with the options among which each one's best are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch.optim import Optimizer

from qpsbgd.optim import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd.optim.layerwise import Layers
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.paid import PAID, with_record

Options = dict[str, Any]
Grid = tuple[Options, ...]
SolverChoice = str | Options
"""A solver's name, or its options with the name under "name"."""

SIMULATED_ANNEALER: Mapping[str, Any] = MappingProxyType({"name": "quantum-annealing", "sweeps": 16, "slices": 4})
"""One short read of simulated quantum annealing without repair: its errors stand in for those of a chip."""

VIRTUAL_CHIP: Mapping[str, Any] = MappingProxyType(
    {"name": "virtual-qpu", "num_reads": 10, "sweeps": 32, "slices": 4, "repair": "majority", "descent": False}
)
"""A full Pegasus chip with control errors: ten short reads of every QUBO, broken chains by majority, no descent."""

DWAVE = "qpsbgd-virtual"
"""The line that stands for the paper's QP-SBGD (D), where it is run on a virtual chip."""


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        label: Its name in tables and figures.
        method: A key of `BUILDERS`.
        grid: The options to choose from.
        kind: "ours", "paper" for the method as printed, or "baseline".
        settings: What else its runs differ in.
    """

    label: str
    method: str
    grid: Grid
    kind: Literal["ours", "paper", "baseline"] = "baseline"
    settings: Options = field(default_factory=dict)


def rates(*learning_rates: float, **others: Any) -> Grid:
    """A grid over the learning rate, with other options the same."""
    return tuple({"lr": rate, **others} for rate in learning_rates)


def extended(grid: Grid, best: Options) -> Grid:
    """The grid, with one more point where the best rate is the smallest or largest of those with its other options.

    The new rate is a third of it or three times as large. Other options that come with a single rate mean that rate.
    """
    others = {**best, "lr": None}
    tried = [point.get("lr") for point in grid if {**point, "lr": None} == others]
    if len(tried) < 2 or min(tried) < best["lr"] < max(tried):
        return grid
    next_rate = best["lr"] / 3 if best["lr"] == min(tried) else best["lr"] * 3
    return (*grid, {**best, "lr": float(f"{next_rate:.2g}")})


def proxquant_grid(learning_rates: Sequence[float], pulls: Sequence[float]) -> Grid:
    """A grid over the learning rate and how far the regulariser draws a weight by the end."""
    return tuple({"lr": lr, "pull": pull} for lr in learning_rates for pull in pulls)


def printed(*learning_rates: float, solver: Any) -> Grid:
    """The paper's equation taken literally: no scale, no momentum, latent weights without bound."""
    return rates(*learning_rates, solver=solver, scale="literal", momentum=0.0, clip=None)


def solver_line(solver: SolverChoice, grid: Grid) -> dict[str, Line]:
    """QP-SBGD with a solver that the user named, at the options of our own line."""
    options = tuple({**point, "solver": solver} for point in grid)
    name = solver_name(solver)
    return {f"qpsbgd-{name}": Line(f"QP-SBGD ({name})", "qpsbgd", options, "ours")}


def virtual_line(grid: Grid) -> dict[str, Line]:
    """QP-SBGD on a virtual chip."""
    points = tuple({**point, "solver": dict(VIRTUAL_CHIP)} for point in grid)
    return {DWAVE: Line("QP-SBGD (virtual QPU)", "qpsbgd", points, "ours")}


def prepare_virtual_chip(*widths: int) -> None:
    """Find the tiles of these widths before many processes need them; raises where a package is missing."""
    chip: Any = chosen_solver(VIRTUAL_CHIP)
    chip.estimate([(width, 1) for width in widths])


def chosen_solver(choice: Any) -> Any:
    """The solver of these options with its name under "name"; a solver, or the name of a free one, is handed through.

    Within a run of an experiment, a solver that is paid for keeps its answers: see `paid`.
    """
    if isinstance(choice, str) and choice in PAID:
        choice = {"name": choice}
    if not isinstance(choice, Mapping):
        return choice
    options = dict(choice)
    name = options.pop("name")
    return make_solver(name, **with_record(name, options))


def solver_name(choice: SolverChoice) -> str:
    """The name of a chosen solver."""
    return choice if isinstance(choice, str) else str(choice["name"])


def _qpsbgd(layers: Layers, options: Options, steps: int) -> Optimizer:
    given = dict(options)
    return QPSBGD(layers, solver=chosen_solver(given.pop("solver", "auto")), **given)


def _proxquant(layers: Layers, options: Options, steps: int) -> Optimizer:
    # Its schedule is part of the method: how much of the way to ±1 the proximal steps cover by the end.
    return ProxQuant(layers, lr=options["lr"], rate=2 * options["pull"] / steps**2, update="sgd")


BUILDERS: Mapping[str, Callable[[Layers, Options, int], Optimizer]] = MappingProxyType(
    {
        "qpsbgd": _qpsbgd,
        "bc-sgd": lambda layers, options, _: BinaryConnect(layers, update="sgd", **options),
        "bc-sign": lambda layers, options, _: BinaryConnect(layers, update="sign", **options),
        "bc-adam": lambda layers, options, _: BinaryConnect(layers, update="adam", **options),
        "proxquant": _proxquant,
    }
)
"""Optimisers from layers, options of plain JSON types, and the number of steps that training will have."""

BASELINES: Mapping[str, str] = MappingProxyType(
    {"bc-sgd": "BC (SGD)", "bc-sign": "BC (signSGD)", "bc-adam": "BC (Adam)", "proxquant": "ProxQuant"}
)


def baselines(**grids: Grid) -> dict[str, Line]:
    """The lines of the baselines, by the grids of `sgd`, `sign`, `adam` and `proxquant`."""
    named = {"bc-sgd": grids["sgd"], "bc-sign": grids["sign"], "bc-adam": grids["adam"]}
    named["proxquant"] = grids["proxquant"]
    return {name: Line(BASELINES[name], name, grid) for name, grid in named.items()}


def paper_lines(
    *,
    ours: Grid,
    literal: Sequence[float],
    annealed: Grid | None = None,
    virtual: Grid | None = None,
    solver: SolverChoice | None = None,
    exact: str = "exact",
    named: str | None = None,
    printed_by: str | None = None,
    **grids: Grid,
) -> dict[str, Line]:
    """All lines of an experiment of the paper.

    Args:
        ours: Grid of QP-SBGD with scale and momentum.
        literal: Learning rates of the paper's form.
        annealed: Grid of QP-SBGD with simulated quantum annealing, where it is run.
        virtual: Grid of QP-SBGD on a virtual chip, where it is run.
        solver: A solver that the user named for one more line.
        exact: The solver of the first two lines: "auto" where layers are too wide for exact answers.
        named: What tables call the solver of the first two lines, where it is not the same in all cases.
        printed_by: The solver of the second line, where it is another.
        **grids: Of the baselines.
    """
    lines = {
        "qpsbgd": Line(f"QP-SBGD ({named or exact})", "qpsbgd", tuple({**p, "solver": exact} for p in ours), "ours"),
        "qpsbgd-printed": Line(
            f"QP-SBGD ({printed_by or named or exact}), as printed",
            "qpsbgd",
            printed(*literal, solver=printed_by or exact),
            "paper",
        ),
    }
    if annealed is not None:
        points = tuple({**p, "solver": dict(SIMULATED_ANNEALER)} for p in annealed)
        lines["qpsbgd-annealed"] = Line("QP-SBGD (simulated annealer)", "qpsbgd", points, "ours")
    if virtual is not None:
        lines |= virtual_line(virtual)
    if solver is not None:
        lines |= solver_line(solver, ours)
    return lines | baselines(**grids)
