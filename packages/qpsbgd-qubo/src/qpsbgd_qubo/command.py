"""The command `qpsbgd-qubo`, which `qpsbgd solve` calls, too."""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qpsbgd_qubo.assignments import Assignment, assignment
from qpsbgd_qubo.files.atomic import check_new, check_writable
from qpsbgd_qubo.files.visible import visible
from qpsbgd_qubo.options import options_named, read_options
from qpsbgd_qubo.problem_files import FORMATS, assignment_text, read_problem, save_assignment
from qpsbgd_qubo.problems import Problem
from qpsbgd_qubo.solvers import SOLVERS, Solver, best_on_interrupt, make_solver
from qpsbgd_qubo.terminal import complain, complain_of, degrade, show_warning

VALUES = {"SPIN": "-1 and +1", "BINARY": "0 and 1"}
INTERRUPTED = 130
BETWEEN = 0.1  # least seconds between two lines of progress


def main(arguments: Sequence[str] | None = None, *, program: str = "qpsbgd-qubo") -> int:
    """Run the command line; the exit status. Wrong arguments, errors that a user can fix, and warnings are one line."""
    degrade()
    parser = _parser(program)
    try:
        options, extra = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
        if options.run is None:
            parser.print_help()
            return 2
        if extra:
            name = extra[0].partition("=")[0].lstrip("-").replace("-", "_")
            hint = f"; if it is the solver's: --option {name}=VALUE" if extra[0].startswith("--") else ""
            parser.complain(f"no such option or argument: {extra[0]}{hint}", command="solve")
    except SystemExit as stop:
        return int(stop.code or 0)
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            return solve(options)
        except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
            complain_of(error)
            return 1


def solve(options: argparse.Namespace) -> int:
    """Solve a QUBO, an Ising problem, a graph's maximum cut, or a family recorded from training, from a file."""
    settings = read_options(options.option)
    if options.seed is not None:
        if "seed" in settings:
            raise ValueError(f"give the seed once, got --seed {options.seed} and --option seed={settings['seed']}")
        settings["seed"] = options.seed
    with options_named(options.solver, settings):
        solver = make_solver(options.solver, **settings)
    begin = time.perf_counter()
    problem = read_problem(options.file, number=options.instance, format=options.format)
    reading = time.perf_counter() - begin
    if str(options.out) != "-":
        _check_out(options.out, options.file, force=options.force)
    read_as = f"{problem.format}, {FORMATS[problem.format]}"
    if options.maximize not in (None, problem.maximize):
        problem = problem.with_sense(maximize=not problem.maximize)
        read_as += "; here the opposite, as asked"
    begin = time.perf_counter()
    try:
        with options_named(options.solver, settings):
            answer, interrupted = _answer(problem, solver, options.solver)
    except KeyboardInterrupt:
        _print("Stopped; nothing was written.")
        return INTERRUPTED
    seconds = time.perf_counter() - begin
    facts = {"read as": read_as} | answer.summary() | {"time": f"{seconds:.3g} s, reading {reading:.3g} s"}
    if interrupted:
        facts["stopped"] = "by Ctrl-C; this is the best so far"
    comments = [f"{name}: {fact}" for name, fact in facts.items()]
    if str(options.out) == "-":
        sys.stdout.buffer.write(assignment_text(problem, answer.spins, comments=comments).encode())
    else:
        save_assignment(options.out, problem, answer.spins, comments=comments)
        facts["written to"] = f"{options.out}, values {VALUES[problem.vartype]} as in the problem"
        for name, fact in facts.items():
            _print(f"{name:<15}{fact}")
    return INTERRUPTED if interrupted else 0


def _answer(problem: Problem, solver: Solver, name: str) -> tuple[Assignment, bool]:
    """The answer, and whether Ctrl-C ended the search; a line on a terminal's standard error shows its progress."""
    size = f"{name}: {len(problem.labels)} variables, {problem.model.num_columns} columns"
    begin, terminal = time.monotonic(), sys.stderr.isatty()
    shown = -math.inf

    def show(energy: float, rounds: int, left: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if not terminal or now < shown + BETWEEN:
            return
        shown = now
        best = f"; best {problem.quantity} {problem.sense * (problem.model.constant + energy):.10g}, {rounds} rounds"
        ends = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
        sys.stderr.write(f"\r\x1b[K{visible(size + best * (rounds >= 0))}{ends}, {now - begin:.0f} s")
        sys.stderr.flush()

    show(0.0, -1, math.inf)
    try:
        with best_on_interrupt(show) as interruption:
            return assignment(problem, solver), interruption.came
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")


def _print(line: str) -> None:
    sys.stdout.write(visible(line) + "\n")


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


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line each."""

    def error(self, message: str) -> NoReturn:
        self.complain(message)

    def complain(self, message: str, *, command: str = "") -> NoReturn:
        """Print what is wrong and which help has more, and exit."""
        complain("error", f"{message} (see {f'{self.prog} {command}'.strip()} --help)")
        raise SystemExit(2)


def _parser(program: str) -> _Parser:
    parser = _Parser(prog=program, description="Solve QUBOs and Ising problems.", allow_abbrev=False)
    parser.set_defaults(run=None)
    commands: Any = parser.add_subparsers(metavar="COMMAND")
    summary = solve.__doc__ or ""
    command = commands.add_parser("solve", help=summary, description=summary, allow_abbrev=False)
    command.set_defaults(run=solve)
    add = command.add_argument
    add(
        "file",
        metavar="FILE",
        type=Path,
        help="A problem, of one of the formats below; .gz may follow; - reads standard input.",
    )
    add("--solver", default="auto", metavar="NAME", help=f"One of {', '.join(SOLVERS)}; auto if left out.")
    add(
        "--option",
        action="append",
        metavar="KEY=VALUE",
        help="An option of the solver; may be repeated. time_limit=SECONDS limits the time of auto, exact and gurobi.",
    )
    out = "Where to write the variables' values, spins.txt if left out; - for standard output."
    add("--out", "-o", type=Path, default=Path("spins.txt"), metavar="FILE", help=out)
    add("--force", action="store_true", help="Overwrite a file that is there already.")
    add("--seed", type=_whole, help="The same as --option seed=SEED.")
    sense = "What to look for; the format's own sense if left out."
    add("--maximize", dest="maximize", action="store_const", const=True, help=sense)
    add("--minimize", dest="maximize", action="store_const", const=False, help=argparse.SUPPRESS)
    add("--instance", "--number", type=_whole, metavar="K", help="Which problem, if the file holds several; from 1.")
    formats = "; ".join(f"{name}, {text}" for name, text in FORMATS.items())
    add("--format", metavar="NAME", help=f"The file's format, if its suffix does not tell: {formats}")
    return parser


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
