"""`qpsbgd solve`."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from qpsbgd_qubo.assignments import assigned
from qpsbgd_qubo.console import console, say_fact
from qpsbgd_qubo.files.atomic import check_new, check_writable
from qpsbgd_qubo.problem_files import FORMATS, assignment_text, read_problem, save_assignment
from qpsbgd_qubo.solvers import best_on_interrupt, make_solver
from qpsbgd_qubo.solvers.options import options_named, read_options

VALUES = {"SPIN": "-1 and +1", "BINARY": "0 and 1"}


def solve(
    file: Annotated[
        Path, typer.Argument(help="A problem, of one of the formats below; .gz may follow; - reads standard input.")
    ],
    solver: Annotated[str, typer.Option(help="One of those that `qpsbgd solvers` lists.")] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the solver, key=value; may be repeated. "
            "time_limit=SECONDS limits the time of auto, exact and gurobi."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write the variables' values; - for standard output.")
    ] = Path("spins.txt"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there already.")] = False,
    seed: Annotated[int | None, typer.Option(help="The same as --option seed=SEED.")] = None,
    maximize: Annotated[
        bool | None, typer.Option("--maximize/--minimize", help="What to look for; the format's own sense if left out.")
    ] = None,
    instance: Annotated[
        int | None, typer.Option("--instance", "--number", help="Which problem, if the file holds several; from 1.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="The file's format, if its suffix does not tell: " + "; ".join(f"{n}, {t}" for n, t in FORMATS.items())
        ),
    ] = None,
) -> None:
    """Solve a QUBO, an Ising problem, a graph's maximum cut, or a family recorded from training, from a file."""
    options = read_options(option)
    if seed is not None:
        if "seed" in options:
            raise ValueError(f"give the seed once, got --seed {seed} and --option seed={options['seed']}")
        options["seed"] = seed
    with options_named(solver, options):
        chosen = make_solver(solver, **options)
    begin = time.perf_counter()
    problem = read_problem(file, number=instance, format=format)
    reading = time.perf_counter() - begin
    if str(out) != "-":
        _check_out(out, file, force=force)
    read_as = f"{problem.format}, {FORMATS[problem.format]}"
    if maximize not in (None, problem.maximize):
        problem = problem.with_sense(maximize=not problem.maximize)
        read_as += "; here the opposite, as asked"
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        size = f"{solver}: {len(problem.labels)} variables, {problem.model.num_columns} columns"
        task = progress.add_task(size)

        def show(energy: float, rounds: int, left: float) -> None:
            best = f"best {problem.quantity} {problem.sense * (problem.model.constant + energy):.10g}"
            ends = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
            progress.update(task, description=f"{size}; {best}, {rounds} rounds{ends}")

        begin = time.perf_counter()
        try:
            with options_named(solver, options), best_on_interrupt(show) as interruption:
                answer = assigned(problem, chosen)
        except KeyboardInterrupt:
            progress.stop()
            console.print("Stopped; nothing was written.")
            raise typer.Exit(130) from None
        seconds = time.perf_counter() - begin

    facts = {"read as": read_as} | answer.summary() | {"time": f"{seconds:.3g} s, reading {reading:.3g} s"}
    if interruption.came:
        facts["stopped"] = "by Ctrl-C; this is the best so far"
    comments = [f"{name}: {fact}" for name, fact in facts.items()]
    if str(out) == "-":
        sys.stdout.buffer.write(assignment_text(problem, answer.spins, comments=comments).encode())
    else:
        for name, fact in facts.items():
            say_fact(name, fact)
        save_assignment(out, problem, answer.spins, comments=comments)
        say_fact("written to", f"{out}, values {VALUES[problem.vartype]} as in the problem")
    if interruption.came:
        raise typer.Exit(130)


def _check_out(out: Path, file: Path, *, force: bool) -> None:
    stdin = os.fstat(sys.stdin.fileno()) if str(file) == "-" else None
    same = out.exists() and (os.path.samestat(out.stat(), stdin) if stdin else file.exists() and out.samefile(file))
    if same:
        raise ValueError(f"--out must not be the problem's own file, got {out}")
    check_new(out, force=force)
    try:
        check_writable(out)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from error
