"""The methods that experiments compare, with the options among which each one's best are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.updates import Update
from qpsbgd.projections import make_projection
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.paid import PAID, with_record

Options = dict[str, Any]
Grid = tuple[Options, ...]
Builder = Callable[[Layers, Options, int], Optimizer]
SolverChoice = str | Options  # a solver's name, or its options with the name under "name"

SIMULATED_ANNEALER: Mapping[str, Any] = MappingProxyType({"name": "quantum-annealing", "sweeps": 16, "slices": 4})
"""One short read of simulated quantum annealing without repair: its errors stand in for those of a chip."""

VIRTUAL_CHIP: Mapping[str, Any] = MappingProxyType(
    {"name": "virtual-qpu", "num_reads": 10, "sweeps": 32, "slices": 4, "repair": "majority", "descent": False}
)
"""A full Pegasus chip with control errors: ten short reads of every QUBO, broken chains by majority, no descent."""

SPINS, RIDGE = "qpsbgd", "qpsbgd-ridge"
"""The lines of our two forms: spins nearest to the ridge's answer (`Spins`), and the ridge itself (`Ridge`)."""
FORMS: Mapping[str, str] = MappingProxyType({SPINS: "spins", RIDGE: "ridge"})

GUROBI, DWAVE = "qpsbgd-printed", "qpsbgd-virtual"
"""The lines that stand for the paper's QP-SBGD (G) and (D): its equation as printed, answered by our solver and on a
virtual chip."""

LITERAL: Mapping[str, str] = MappingProxyType({"qpsbgd-mean": "mean", "qpsbgd-sum": "sum"})
"""The lines of the same equation without any scale, with the mean and with the sum of the loss."""

SCALES = (0.25, 1.0, 4.0)  # the κ among which the scale of v is chosen, beside the literal equation

FROZEN, RANDOM = "frozen", "random"
"""The controls: binary layers that stay at their random signs, and new random signs at every step."""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    label: str  # its name in tables and figures
    method: str  # a key of `BUILDERS`
    grid: Grid  # the options to choose from
    kind: Literal["ours", "paper", "variant", "baseline", "control"] = "baseline"
    settings: Options = field(default_factory=dict)  # what else its runs differ in
    like: str = ""  # the line whose best point that holds `only` it takes, changed by the one point of its own grid
    only: Options = field(default_factory=dict)

    def with_options(self, **options: Any) -> Line:
        """The same line with further options in all points of its grid."""
        return replace(self, grid=tuple({**point, **options} for point in self.grid))

    def at_defaults(self) -> Line:
        """The same method as a user gets it who gives its form, the length of training and nothing else."""
        kept = {name: value for name, value in self.grid[0].items() if name in ("projection", "schedule")}
        return replace(self, grid=(kept,))


def rates(*learning_rates: float, **others: Any) -> Grid:
    """A grid over the learning rate, with other options the same."""
    return tuple({"lr": rate, **others} for rate in learning_rates)


def extend(grid: Grid, best: Options) -> Grid:
    """The grid, with a third of or three times the best rate where that is at the edge of those like it."""
    others = {**best, "lr": None}
    tried: list[Any] = [point.get("lr") for point in grid if {**point, "lr": None} == others]
    if len(tried) < 2 or min(tried) < best["lr"] < max(tried):
        return grid
    next_rate = best["lr"] / 3 if best["lr"] == min(tried) else best["lr"] * 3
    return (*grid, {**best, "lr": float(f"{next_rate:.2g}")})


def sgd_grid(*learning_rates: float) -> Grid:
    """A grid over the learning rate, without momentum and, at a tenth of the rates, with it."""
    return rates(*learning_rates) + rates(*(float(f"{rate / 10:.2g}") for rate in learning_rates), momentum=0.9)


def proxquant_grid(sgd: Sequence[float], *, sign: Sequence[float] = (0.03, 0.1, 0.3), pulls: Sequence[float]) -> Grid:
    """A grid over the learning rate of SGD or sign steps and how far the regulariser draws a weight by the end."""
    steps = {"sgd": sgd, "sign": sign}
    return tuple(
        {"lr": lr, "update": update, "pull": pull} for update in steps for pull in pulls for lr in steps[update]
    )


def printed(*learning_rates: float, solver: Any) -> Grid:
    """The paper's equation: taken literally with a mean and with a summed loss, and with v scaled by κ.

    The paper leaves the size of v open. Literally, the sum over a batch of B rows makes it B times as large in the QUBO
    as the mean does; κ sets it per column (`Printed(scale=κ)`). No momentum, latent weights without bound.
    """
    form = {"projection": "printed", "solver": solver, "clip": None}
    readings: list[Options] = [{"reduction": "mean"}, {"reduction": "sum"}, *({"scale": scale} for scale in SCALES)]
    return tuple(point for reading in readings for point in rates(*learning_rates, **reading, **form))


def summed(options: Options) -> bool:
    """Whether these options want the sum of a batch's losses instead of their mean."""
    return bool(options.get("reduction") == "sum")


def relative_rates(projection: str) -> Grid:
    """The grid of our forms: learning rates in units of the initial range."""
    return rates(0.03, 0.1, 0.3, projection=projection, relative=True, clip="range")


def ridge_line() -> dict[str, Line]:
    """QP-SBGD with the projection onto the reals."""
    return {RIDGE: Line("QP-SBGD (ridge)", "qpsbgd", relative_rates("ridge"), "ours")}


def control_lines(*, random: bool = False) -> dict[str, Line]:
    """Binary layers at their random signs; and, where the best weights of a run are scored, as many random networks."""
    lines = {FROZEN: Line("control: binary layers frozen", FROZEN, ({},), "control")}
    if random:
        lines[RANDOM] = Line("control: best of random networks", RANDOM, ({},), "control")
    return lines


def virtual_line(**own: Any) -> dict[str, Line]:
    """QP-SBGD as printed on a virtual chip, at the options that were chosen with an exact solver but for its own."""
    chip = ({"solver": dict(VIRTUAL_CHIP), **own},)
    return {DWAVE: Line("QP-SBGD as printed (virtual QPU)", "qpsbgd", chip, "variant", like=GUROBI)}


def solver_lines(solver: SolverChoice | None) -> dict[str, Line]:
    """QP-SBGD with a solver that the user named, in our form and as printed, at the options chosen without it."""
    if solver is None:
        return {}
    name, options = solver_name(solver), ({"solver": solver},)
    return {
        f"qpsbgd-{name}": Line(f"QP-SBGD (spins, {name})", "qpsbgd", options, "variant", like=SPINS),
        f"qpsbgd-printed-{name}": Line(f"QP-SBGD as printed ({name})", "qpsbgd", options, "variant", like=GUROBI),
    }


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
    given = _given(options, steps)
    if "solver" in given:
        given["solver"] = chosen_solver(given["solver"])
    of_projection = {name: given.pop(name) for name in ("solver", "kappa", "bits", "scale") if name in given}
    projection = make_projection(given.pop("projection", "spins" if of_projection else "ridge"), **of_projection)
    return QPSBGD(layers, projection=projection, **given)


def _binaryconnect(update: Update) -> Builder:
    return lambda layers, options, steps: BinaryConnect(layers, update=update, **_given(options, steps))


def _proxquant(layers: Layers, options: Options, steps: int) -> Optimizer:
    # How much of the way to ±1 the proximal steps cover by the end is part of the method.
    given = _given(options, steps)
    return ProxQuant(layers, rate=2 * given.pop("pull", 1.0) / steps**2, **given)


class Frozen(Optimizer):
    """Leaves the weights of binary layers as they are."""

    def __init__(self, layers: Layers) -> None:
        modules: Any = layers.modules() if isinstance(layers, nn.Module) else layers
        binary = [module for module in modules if isinstance(module, BinaryLayer)]
        super().__init__([layer.weight for layer in binary], {"lr": 0.0})  # schedules want a rate

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


class RandomSigns(Frozen):
    """Gives every weight of binary layers a new random sign at every step; torch's own random numbers stay."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self._generator = torch.Generator().manual_seed(torch.initial_seed())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """New signs."""
        for group in self.param_groups:
            for weight in group["params"]:
                weight.copy_(torch.rand(weight.shape, generator=self._generator) - 0.5)


def _given(options: Options, steps: int) -> Options:
    """An optimiser's own options: those of the loss are left out, and a schedule is said by the number of steps."""
    given = {name: value for name, value in options.items() if name not in ("reduction", "schedule")}
    return {**given, "steps": steps} if options.get("schedule") == "cosine" else given


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "qpsbgd": _qpsbgd,
        "bc-sgd": _binaryconnect("sgd"),
        "bc-sign": _binaryconnect("sign"),
        "bc-adam": _binaryconnect("adam"),
        "proxquant": _proxquant,
        FROZEN: lambda layers, options, steps: Frozen(layers),
        RANDOM: lambda layers, options, steps: RandomSigns(layers),
    }
)
"""Optimisers from layers, options of plain JSON types, and the number of steps that training will have."""

BASELINES: Mapping[str, str] = MappingProxyType(
    {"bc-sgd": "BC (SGD)", "bc-sign": "BC (signSGD)", "bc-adam": "BC (Adam)", "proxquant": "ProxQuant"}
)

PAPER_BASELINES = ("bc-sgd", "bc-sign", "proxquant")  # those that the paper compares with


def baselines(*, sgd: Grid, sign: Grid, adam: Grid, proxquant: Grid) -> dict[str, Line]:
    """The lines of the baselines, each with its grid."""
    grids = (sgd, sign, adam, proxquant)
    return {name: Line(label, name, grid) for (name, label), grid in zip(BASELINES.items(), grids, strict=True)}


def paper_lines(
    *,
    literal: Sequence[float],
    ours: Grid | None = None,
    virtual: bool = False,
    random: bool = False,
    solver: SolverChoice | None = None,
    exact: str = "exact",
    named: str | None = None,
    **grids: Grid,
) -> dict[str, Line]:
    """All lines of an experiment of the paper, with the baselines' grids and the learning rates of the paper's form.

    `ours` is the grid of our spins, `random` adds random networks as a control, `solver` one that the user named, and
    `exact` is that of all but the virtual chip, called `named` in tables where it differs between cases.
    """
    paper, named = printed(*literal, solver=exact), named or exact
    ours = ours or relative_rates("spins")
    like: dict[str, Any] = {"kind": "variant", "like": GUROBI}
    return {
        SPINS: Line(f"QP-SBGD (spins, {named})", "qpsbgd", ours, "ours").with_options(solver=exact),
        **ridge_line(),
        GUROBI: Line(f"QP-SBGD as printed, scale chosen ({named})", "qpsbgd", paper, "paper"),
        **{
            name: Line(f"QP-SBGD as printed, {loss} loss ({named})", "qpsbgd", ({},), only={"reduction": loss}, **like)
            for name, loss in LITERAL.items()
        },
        **(virtual_line() if virtual else {}),
        **solver_lines(solver),
        **baselines(**grids),
        **control_lines(random=random),
    }


def aims(
    metric: str, *cases: str, where: str = "", against: Iterable[str] = BASELINES, forms: Mapping[str, str] = FORMS
) -> list[Claim]:
    """The aims of this project for each of its forms: to be better than every baseline in these cases."""
    text = "QP-SBGD ({}) is better than every baseline" + where
    return [Claim(text.format(form), line, metric, cases, tuple(against), source="aim") for line, form in forms.items()]
