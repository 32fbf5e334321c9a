"""`qpsbgd solve` and `qpsbgd solvers`."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from qpsbgd.atomic import check_writable
from qpsbgd.cli.console import console, say_fact
from qpsbgd.qubo.problem_files import FORMATS, read_problem, save_assignment
from qpsbgd.solvers import SOLVERS, best_on_interrupt, make_solver


def solve(
    file: Annotated[Path, typer.Argument(help="A problem, of one of the formats below; .gz may follow.")],
    solver: Annotated[str, typer.Option(help="One of those that `qpsbgd solvers` lists.")] = "auto",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the solver, key=value; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the variables' values.")] = Path("spins.txt"),
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
    options = read_options(option) | ({} if seed is None else {"seed": seed})
    with options_named(solver, options):
        chosen = make_solver(solver, **options)
    _check_out(out, file)
    begin = time.perf_counter()
    problem = read_problem(file, number=instance, format=format)
    reading = time.perf_counter() - begin
    read_as = f"{problem.format}, {FORMATS[problem.format]}"
    if maximize not in (None, problem.maximize):
        problem = problem.maximized() if maximize else problem.minimized()
        read_as += "; here the opposite, as asked"
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        size = f"{solver}: {len(problem.labels)} variables, {problem.num_columns} columns"
        task = progress.add_task(size)

        def show(energy: float, rounds: int, left: float) -> None:
            value = problem.offset + energy
            best = f"best {problem.quantity} {-value if problem.maximize else value:.10g}"
            ends = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
            progress.update(task, description=f"{size}; {best}, {rounds} rounds{ends}")

        begin = time.perf_counter()
        try:
            with options_named(solver, options), best_on_interrupt(show) as interruption:
                solution = chosen.solve_problem(problem)
        except KeyboardInterrupt:
            progress.stop()
            console.print("Stopped; nothing was written.")
            raise typer.Exit(130) from None
        seconds = time.perf_counter() - begin

    facts = {"read as": read_as} | problem.summary(solution) | {"time": f"{seconds:.3g} s, reading {reading:.3g} s"}
    if interruption.came:
        facts["stopped"] = "by Ctrl-C; this is the best so far"
    for name, fact in facts.items():
        say_fact(name, fact)
    save_assignment(out, problem, solution.spins, comments=[f"{name}: {fact}" for name, fact in facts.items()])
    say_fact("written to", str(out))
    if interruption.came:
        raise typer.Exit(130)


def solvers() -> None:
    """List the solvers, whether each can be used here and, if not, what is missing."""
    table = Table(box=None, pad_edge=False)
    for title in ("solver", "usable", "what it does, or what is missing"):
        table.add_column(title, no_wrap=title != "what it does, or what is missing", overflow="fold")
    for name, place in SOLVERS.items():
        module, kind = place.split(":")
        try:
            found = getattr(import_module(module), kind)
        except ImportError as error:
            table.add_row(Text(name, "bold"), _usable(False), Text(str(error)))
            continue
        variants = found.variants()
        usable = not all(variants.values())
        missing = "" if usable or len(variants) > 1 else next(iter(variants.values()))
        table.add_row(Text(name, "bold"), _usable(usable), Text(missing or found.__doc__.splitlines()[0]))
        for variant, obstacle in variants.items() if len(variants) > 1 else ():
            table.add_row("", _usable(not obstacle), Text(f"{variant}: {obstacle}" if obstacle else variant))
    console.print(table)


def _usable(yes: bool) -> Text:
    return Text("yes", "green") if yes else Text("no", "red")


@contextlib.contextmanager
def options_named(solver: str, options: dict[str, Any]) -> Iterator[None]:
    """Turns an error that an option's value causes deep inside a library into one line that names the options."""
    try:
        yield
    except (ImportError, MemoryError, OSError, RuntimeError):
        raise  # these have a message for the user
    except Exception as error:
        if not options or (isinstance(error, ValueError) and any(name in str(error) for name in options)):
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"--solver {solver} with {given}: {reason}") from error


def _check_out(out: Path, file: Path) -> None:
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"--out must not be the problem's own file, got {out}")
    try:
        check_writable(out)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from error


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """A solver's options from `key=value` texts."""
    return dict(map(_option, texts or []))


def _option(text: str) -> tuple[str, Any]:
    """Name and value of `key=value`, the value a Python literal where it is one."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--option must be key=value, got {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key, value
