"""`qpsbgd demo`, `qpsbgd run` and `qpsbgd report`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpsbgd.cli.console import console, rich_table, say, show
from qpsbgd_paper.experiments import EXPERIMENTS, make_experiment
from qpsbgd_paper.framework.checksums import with_checksum
from qpsbgd_paper.framework.paid import PAID
from qpsbgd_qubo.files.atomic import check_folder
from qpsbgd_qubo.options import read_options

if TYPE_CHECKING:
    from qpsbgd_paper.framework.experiment import Experiment
    from qpsbgd_paper.framework.workers import Workers

Summary = dict[str, Any]

INTRO = (
    "The paper's claims are judged on its own form: the equation as printed, without momentum, tuned over learning "
    "rates and over the size of v, which the paper leaves open: the mean or the sum of the loss taken literally, or a "
    "scale κ; the two literal readings have rows of their own. (G), in the paper QP-SBGD with Gurobi, is that form "
    "with our exact solver, or descent where layers are too wide for exact answers. (D), in "
    "the paper on a D-Wave annealer, is that form on a virtual chip (solver virtual-qpu: a Pegasus graph with chains "
    "and control errors, ten reads, no descent); nothing has been run on hardware. Our own forms, `Spins` and `Ridge`, "
    "have aims of their own. Controls train no binary weights. Every method's options are chosen from a small grid on "
    "training or validation data, extended where the best learning rate is at its edge; the best three are compared "
    "on ten seeds. Figures are means ± standard deviations over seeds. The paper refers to the multi-objective "
    "optimisation of Ayodele et al. (2022) for batches; with equal weights that is the sum of the rows' QUBOs, as "
    "here. BC is BinaryConnect."
)

DEMO = ("tour", "digits")  # the experiments of the demo, in the order of its page

PAPER, QUICK = Path("results/paper"), Path("results/quick")  # where `qpsbgd run` keeps results, and where with --quick

DEFAULT_PROCESSES = min(2, os.cpu_count() or 1)
PROCESSES = Annotated[int, typer.Option(min=1, help="Processes to use.")]
FRESH = Annotated[bool, typer.Option("--fresh", help="Rerun finished runs instead of reusing them.")]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results and report.")] = Path("results/demo"),
    workers: PROCESSES = DEFAULT_PROCESSES,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method on digits.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the long budget.")] = 10,
    fresh: FRESH = False,
) -> None:
    """Train a binary network on handwritten digits with QP-SBGD and the baselines, and write a report."""
    from qpsbgd_paper.experiments.digits import Digits
    from qpsbgd_paper.experiments.tour import Tour

    budgets = (epochs,) if epochs <= 2 else (2, epochs)
    experiments = [Tour(epochs=epochs), Digits(budgets=budgets, seeds=seeds, choosing_seeds=1)]
    with _stoppable(), _processes(workers) as processes:
        summaries = _run(experiments, out=out, workers=processes, fresh=fresh, command="qpsbgd demo")
    _write_report(summaries, out)


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}, or all of these. Without a name they are listed.", metavar="NAME..."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small: two seeds, few steps.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Final runs per method, instead of the default.")] = None,
    solver: Annotated[
        str | None, typer.Option(help="Add QP-SBGD with this solver, in our form and as printed.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of that solver, key=value; may be repeated.")] = None,
    workers: PROCESSES = DEFAULT_PROCESSES,
    data: Annotated[Path | None, typer.Option(help="Folder with mnist/, adult/, planetoid/; else QPSBGD_DATA.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results: results/paper, or results/quick.")
    ] = None,
    fresh: FRESH = False,
) -> None:
    """Run experiments of the paper: every method at its own best options, several seeds, results as JSON."""
    _check_installed()
    if not names:
        say("Name one or more experiments, or all:")
        for name in EXPERIMENTS:
            say(f"  {name:<12} {make_experiment(name).title}")
        raise typer.Exit(2)
    chosen = list(dict.fromkeys(each for name in names for each in (EXPERIMENTS if name == "all" else (name,))))
    experiments = [make_experiment(name) for name in chosen]
    if quick:
        experiments = [experiment.quick() for experiment in experiments]
    if seeds is not None:
        experiments = [replace(experiment, seeds=seeds) for experiment in experiments]  # type: ignore[type-var]
    if solver is not None:
        checked = _checked_solver(solver, read_options(option))
        for number, experiment in enumerate(experiments):
            if hasattr(experiment, "solver"):
                experiments[number] = replace(experiment, solver=checked)  # type: ignore[type-var]
            else:
                say(f"{experiment.name} compares no solvers: --solver changes nothing there.")
    elif option:
        raise ValueError("--option belongs to a solver: name it with --solver")
    if data is not None:
        # In the environment, so that the processes that train find it too.
        os.environ["QPSBGD_DATA"] = str(data)
    folder = out or (QUICK if quick else PAPER)
    note = "A quick look with few seeds and steps; the text describes the full run. " if quick else ""
    with _stoppable(), _processes(workers) as processes:
        _run(experiments, out=folder, workers=processes, fresh=fresh, note=note)
    place = "" if folder == PAPER else f" --results {folder}"
    say(f"\nOne page with all results: qpsbgd report{place}")


def report(
    results: Annotated[
        Path | None, typer.Option(help="Folder with results: results/paper, or else results/quick.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for page and figures; else that of the results.")
    ] = None,
) -> None:
    """Make one HTML page and the figures, as SVG and PNG, from the results of `qpsbgd run`."""
    folder = results or PAPER
    summaries = read_summaries(folder)
    if not summaries and results is None:
        folder, summaries = QUICK, read_summaries(QUICK)
        if summaries:
            say(f"There are no results in {PAPER}; these are the quick ones in {QUICK}.")
    if not summaries:
        raise ValueError(
            f"there are no results in {results or f'{PAPER} or {QUICK}'}; make some with: qpsbgd run all --quick"
            + (f" --out {results}" if results else "")
        )
    try:
        _write_report(summaries, out or folder)
    except _OTHER_FORMS as error:
        raise ValueError(
            f"{folder / _of_other_form(summaries)}.json has not the form of a result of `qpsbgd run`: {error!r}; the "
            "same `qpsbgd run` makes it again from finished runs"
        ) from error


MARK = b'<meta name="generator" content="qpsbgd report">'
"""In every page, which is replaced when it is made anew."""

_OTHER_FORMS = (ArithmeticError, AttributeError, LookupError, TypeError)
"""What reading a result raises where a value has another type, or is missing."""


def _of_other_form(summaries: Sequence[Summary]) -> str:
    """The first experiment whose results cannot be shown."""
    from qpsbgd_paper.report.page import page

    for summary in summaries:
        try:
            page([summary], title="")
        except (*_OTHER_FORMS, ValueError):
            break
    return str(summary["experiment"])


def read_summaries(folder: Path) -> list[Summary]:
    """The results of all experiments in a folder: of the demo, of the paper in its order, any others."""
    from qpsbgd_paper.report.summaries import read_summary

    known = [*DEMO, *EXPERIMENTS]
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    summaries = []
    for name in sorted(paths, key=lambda name: known.index(name) if name in known else len(known)):
        try:
            summary = read_summary(paths[name])
            if summary["experiment"] != name:
                raise ValueError(f"{paths[name]} is a result of `qpsbgd run {summary['experiment']}`, not of {name}")
        except ValueError:
            if name in known:
                raise
            continue  # a file of the user's
        summaries.append(summary)
    return summaries


def _run(
    experiments: Sequence[Experiment],
    *,
    out: Path,
    workers: Workers | None,
    fresh: bool,
    command: str | None = None,
    note: str = "",
) -> list[Summary]:
    """Run what is not done yet, write a result file for every experiment, and print its tables."""
    from qpsbgd_paper.framework.result_files import write_bytes
    from qpsbgd_paper.report.tables import claims_table, main_tables

    check_folder(out)
    runs = out / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    if not fresh and any(any(runs.glob(f"{experiment.name}-*.json")) for experiment in experiments):
        these = "this experiment" if len(experiments) == 1 else "these experiments"
        say(f"Finished runs of {these} in {runs} are reused; --fresh repeats them.")
    summaries = []
    say("Finding the data")
    for experiment in experiments:
        experiment.prepare()
    for count, experiment in enumerate(experiments, start=1):
        console.print(f"\n[bold]{experiment.title}[/bold] ({count} of {len(experiments)})", highlight=False)
        show(experiment.run(folder=runs, workers=workers, fresh=fresh))
        summary = experiment.summary(folder=runs)
        summary["about"] = note + summary["about"]
        if command is not None:
            summary["command"] = command
        write_bytes(out / f"{experiment.name}.json", with_checksum(summary))
        for table in main_tables(summary):
            console.print(rich_table(table.title, table.head, table.rows, best=table.best))
        if summary.get("headline"):
            say(summary["headline"])
        for claim, verdict, *_, here, says in claims_table(summary).rows:
            say(f"• {claim} ({says}): {verdict} – {here}")
        summaries.append(summary)
    return summaries


def _check_installed() -> None:
    """Raise ImportError, with the line to install, where packages of the extra `paper` are missing."""
    if missing := [name for name in ("skimage", "torch_geometric", "minorminer") if find_spec(name) is None]:
        raise ImportError(f"`qpsbgd run` needs {', '.join(missing)}: pip install './reproduction[paper]'")


@contextmanager
def _stoppable() -> Iterator[None]:
    from qpsbgd_paper.framework.runs import GO_ON

    try:
        yield
    except KeyboardInterrupt:
        say(f"\nStopped. {GO_ON}")
        raise typer.Exit(130) from None


def _processes(count: int) -> AbstractContextManager[Workers | None]:
    from qpsbgd_paper.framework.workers import local_workers

    return local_workers(count) if count > 1 else nullcontext()


def _write_report(summaries: Sequence[Summary], out: Path) -> None:
    """One page, the same by `qpsbgd demo` and by `qpsbgd report` on its results, and the figures."""
    from qpsbgd_paper.framework.result_files import write_bytes
    from qpsbgd_paper.report.figures import pictures
    from qpsbgd_paper.report.page import page
    from qpsbgd_paper.report.rendering import image

    check_folder(out)
    target = out / "report.html"
    if target.exists() and MARK not in target.read_bytes()[:1000]:
        raise FileExistsError(
            f"{target} is there already and no report of ours: move it, or name another place by --out"
        )
    demo = all(summary["experiment"] in DEMO for summary in summaries)
    title = "Binary networks trained with QP-SBGD" if demo else "QP-SBGD: the paper's experiments"
    drawn = [pictures(summary) for summary in summaries]
    for name, picture in (item for pictured in drawn for item in pictured.items()):
        write_bytes(out / "figures" / f"{name}.svg", picture.svg)
        write_bytes(out / "figures" / f"{name}.png", image(picture.draw, "png"))
    write_bytes(target, page(summaries, title=title, intro="" if demo else INTRO, drawn=drawn).encode())
    say(f"\nReport: {target.resolve().as_uri()}")


def _checked_solver(name: str, options: dict[str, Any]) -> str | dict[str, Any]:
    """The solver as experiments take it; raises before the first run what would stop it."""
    if name in PAID and "max_qpu_seconds" not in options:
        raise ValueError(
            f"an experiment has many runs, and {name!r} is paid for: give --option max_qpu_seconds=SECONDS, the limit "
            "for each run (`qpsbgd qpu estimate` shows what a run takes; see docs/annealers.md)"
        )
    from qpsbgd.solvers import make_solver

    try:
        obstacle = make_solver(name, **options).variants().get("", "")
    except TypeError as error:
        raise ValueError(f"solver {name!r} cannot be used like this: {error}") from error
    if obstacle:
        raise RuntimeError(obstacle)
    return {"name": name, **options} if options else name
