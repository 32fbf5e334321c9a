import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qpsbgd_qubo import command
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.testing import random_family


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["solve", "p.txt", "--seed", "abc"],
            r"--seed: must be an integer, got 'abc' \(see qpsbgd-qubo solve --",
        ),
        (["solve", "p.txt", "--number", "1.5"], r"--number: must be an integer"),
        (["solve"], r"required: FILE \(see qpsbgd-qubo solve --help\)"),
        (["solvres"], r"invalid choice: 'solvres'.*\(see qpsbgd-qubo --help\)"),
        (["solve", "p.txt", "more"], r"no such option or argument: more \(see qpsbgd-qubo solve --help\)"),
        (
            ["solve", "p.txt", "--time-limit", "3"],
            r"no such option.*--option time_limit=",
        ),
    ],
)
def test_wrong_arguments_are_one_line(monkeypatch, capsys, arguments, message):
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert code == 2
    assert re.fullmatch(f"error: .*{message}.*\n", err)
    assert out == ""


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """A problem of Beasley's format in the current folder: x₁ alone gives the highest value, 5, x₃ alone the lowest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("3 4\n1 1 5\n1 2 -3\n2 2 4\n3 3 -1\n", encoding="utf-8")
    return tmp_path / "p.txt"


def called(monkeypatch, capsys, *arguments):
    """What the command prints, on success and on failure."""
    monkeypatch.setenv("COLUMNS", "1000")
    code = command.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


def test_solve_prints_and_writes_the_answer_in_the_problems_own_terms(problem, monkeypatch, capsys):
    code, out, _ = called(monkeypatch, capsys, "solve", problem)
    assert code == 0
    assert re.search(r"read as +beasley, QUBO of the OR-Library: x'Qx is maximised\n", out)
    assert re.search(r"n = 3 variables \(BINARY\), couplings 1, m = 1, value maximised\n", out)
    assert re.search(r"best value +5\n", out)
    assert re.search(r"energy +-5\n", out)
    assert re.search(r"proven optimal +yes\n", out)
    assert re.search(r"solver +exact", out)
    assert re.search(r"time +[\d.e-]+ s, reading [\d.e-]+ s\n", out)
    assert np.loadtxt("spins.txt").tolist() == [[1, 1], [2, 0], [3, 0]]
    assert "# best value: 5\n" in (problem.parent / "spins.txt").read_text(encoding="utf-8")


def test_solve_minimizes_and_maximizes_on_demand(problem, monkeypatch, capsys):
    _, out, _ = called(monkeypatch, capsys, "solve", problem, "--minimize", "--out", "best.txt")
    assert re.search(r"best value +-1\n", out)
    assert re.search(r"read as .*maximised; here the opposite, as asked\n", out)
    assert np.loadtxt("best.txt").tolist() == [[1, 0], [2, 0], [3, 1]]
    _, out, _ = called(monkeypatch, capsys, "solve", problem, "--format", "biqmac", "--maximize")
    assert re.search(r"best energy +5\n", out)
    _, out, _ = called(monkeypatch, capsys, "solve", problem, "--maximize", "--force")
    assert "the opposite" not in out


def test_an_existing_file_is_overwritten_by_force_alone(problem, monkeypatch, capsys):
    other = problem.parent / "s.txt"
    other.write_text("mine", encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "solve", problem, "-o", other)
    assert code == 1 and "is there already: --force overwrites it, or name another place with --out" in err
    assert other.read_text(encoding="utf-8") == "mine"
    code, out, _ = called(monkeypatch, capsys, "solve", problem, "-o", other, "--force")
    assert code == 0 and "values 0 and 1 as in the problem" in out
    assert np.loadtxt(other).tolist() == [[1, 1], [2, 0], [3, 0]]


def test_solve_refuses_what_may_be_a_qubo_or_a_graph_and_the_lines_it_offers_work(problem, monkeypatch, capsys):
    problem.write_text("3 3\n1 2 1\n2 3 1\n1 3 1\n", encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "solve", "p.txt")
    assert code == 1
    lines = re.findall("`qpsbgd-qubo (.*?)`", err)
    assert lines == ["solve p.txt --format beasley", "solve p.txt --format maxcut"]
    outs = [called(monkeypatch, capsys, *line.split(), "--force")[1] for line in lines]
    assert re.search(r"best value +6\n", outs[0])
    assert re.search(r"best cut +2\n", outs[1])


@pytest.mark.parametrize("option", ["--instance", "--number"])
def test_solve_takes_one_of_several_problems(problem, monkeypatch, capsys, option):
    problem.write_text("2\n1 1\n1 1 7\n1 1\n1 1 8\n", encoding="utf-8")
    _, out, _ = called(monkeypatch, capsys, "solve", "p.txt", option, "2")
    assert re.search(r"best value +8\n", out)
    code, _, err = called(monkeypatch, capsys, "solve", "p.txt", "--force")
    assert code == 1
    assert "holds 2 problems (1: n = 1, 1 entries; 2: n = 1, 1 entries); choose one: --instance K" in err


def test_solve_gives_options_and_seed_to_the_solver(problem, monkeypatch, capsys):
    given = []
    monkeypatch.setattr(Descent, "__post_init__", lambda self: given.append(self))
    options = ["--option", "tabu=7", "--option", "max_flips=none", "--seed", "3"]
    code, out, _ = called(monkeypatch, capsys, "solve", problem, "--solver", "descent", *options)
    assert code == 0
    assert "descent, " in out
    assert given[0] == Descent(tabu=7, max_flips=None, seed=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nix.txt"], r"error: nix\.txt: No such file"),
        (["nix.txt", "--out", "p.txt"], r"nix\.txt: No such file"),
        (["/", "--format", "coo", "--out", "p.txt"], r"error: /: Is a directory"),
        (["p.txt", "--format", "xyz", "--out", "p.txt"], "unknown format"),
        (["p.csv"], r"p\.csv: a problem file must end in \.txt"),
        (["p.txt", "--number", "2"], "holds a single problem"),
        (["p.txt", "--solver", "magic"], "unknown solver 'magic'"),
        (["p.txt", "--solver", "replay"], r"'replay' needs --option path="),
        (["p.txt", "--seed", "1", "--option", "seed=2"], r"--seed .*--option seed="),
        (["p.txt", "--option", "seed"], "--option must be key=value, got 'seed'"),
        (["p.txt", "--option", "sweeps=3"], "'auto' has no option sweeps"),
        (["p.txt", "--solver", "exact", "--seed", "1"], "'exact' has no option seed"),
        (["p.txt", "--out", "no/folder/s.txt"], r"--out no/folder/s\.txt: No such file.*check that its folder exists"),
        (["p.txt", "--out", "."], r"--out \.: Is a directory"),
        (["p.txt", "--out", "p.txt"], "--out must not be the problem's own file"),
        (["p.txt", "--solver", "dimod", "--option", "sampler=crystal-ball"], "unknown sampler"),
        (["p.txt", "--solver", "annealing", "--option", "sweeps=abc"], "sweeps.*abc"),
        (["p.txt", "--option", "time_limit=abc"], "time_limit must be None or a finite number .*, got 'abc'"),
        (["p.txt", "--solver", "annealing", "--option", "sweeps={[]: 1}"], "sweeps"),
        (["p.txt", "--solver", "annealing", "--option", "sweeps=" + "(" * 300], "sweeps"),
    ],
)
def test_what_solve_cannot_do_is_one_line(problem, monkeypatch, capsys, arguments, message):
    if {"dimod", "replay"} & set(arguments):
        pytest.importorskip("dwave.samplers", reason="needs dwave-samplers")
    code, out, err = called(monkeypatch, capsys, "solve", *arguments)
    assert code == 1
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert out == ""
    assert [path.name for path in problem.parent.iterdir()] == ["p.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_named(problem, monkeypatch, capsys):
    code, _, err = called(monkeypatch, capsys, "solve", problem, "-o", "/dev/full")
    assert code == 1
    assert err.startswith("error: /dev/full: No space left")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(problem, monkeypatch, capsys):
    problem.write_text("".join(f"{i} {(i * 7 + 1) % 60} {1 - i % 3}\n" for i in range(60)), encoding="utf-8")
    options = ["--format", "coo", "--option", "time_limit=0"]
    code, _, err = called(monkeypatch, capsys, "solve", problem, *options)
    assert code == 0
    assert re.fullmatch(r"warning: the time limit left no time .*\n", err)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/stdin")
@pytest.mark.parametrize(("name", "packed"), [("-", bytes), ("/dev/stdin", gzip.compress)])
def test_a_problem_comes_through_a_pipe_and_its_answer_goes_to_one(problem, name, packed):
    command = [sys.executable, "-m", "qpsbgd_qubo", "solve", name, "-o", "-"]
    content = packed(problem.read_bytes())
    done = subprocess.run(command, input=content, capture_output=True, cwd=problem.parent, check=True)
    assert np.loadtxt(done.stdout.decode().splitlines()).tolist() == [[1, 1], [2, 0], [3, 0]]
    assert "# best value: 5" in done.stdout.decode()
    assert [path.name for path in problem.parent.iterdir()] == ["p.txt"]


def test_the_problem_on_standard_input_is_not_overwritten(problem):
    command = [sys.executable, "-m", "qpsbgd_qubo", "solve", "-", "-o", problem, "--force"]
    with problem.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"the problem's own file" in done.stderr


def test_out_is_tried_before_the_problem_is_solved(problem, monkeypatch, capsys):
    monkeypatch.setattr(Descent, "solve", lambda *_: pytest.fail("it was solved"))
    (problem.parent / "folder").mkdir()
    for out in ("folder", "p.txt/s.txt", "nowhere/s.txt", "/proc/s.txt"):
        code, _, err = called(monkeypatch, capsys, "solve", problem, "--solver", "descent", "--out", out)
        assert code == 1
        assert err.startswith("error: --out")
        assert err.count("\n") == 1


def test_an_error_deep_inside_a_library_names_the_options_given(problem, monkeypatch, capsys):
    def failing(self, family):
        raise OverflowError("too large\nfor numpy")

    monkeypatch.setattr(Descent, "solve", failing)
    arguments = ["solve", problem, "--solver", "descent", "--option", "tabu=7", "--seed", 3]
    code, _, err = called(monkeypatch, capsys, *arguments)
    assert code == 1
    assert "--solver descent with tabu=7, seed=3: too large (QPSBGD_DEBUG=1 shows where)" in err
    with pytest.raises(OverflowError):  # without options it is a fault of ours, and must be seen
        called(monkeypatch, capsys, "solve", problem, "--solver", "descent")


@pytest.mark.parametrize("encoding", ["ascii", None])
def test_every_locale_can_be_printed_to(problem, encoding):
    """Commands in one process with the locale C, which has not all characters of their output."""
    commands = [["--help"], ["solve", "p.txt", "--out", "ü–.txt"], ["solve", "—±→.txt"], ["nothing", "✓"], ["−"]]
    script = f"""if True:
        import os
        from qpsbgd_qubo import command
        for words in {commands!r}:
            print("code", command.main([os.fsdecode(word.encode()) for word in words]))
        """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON", "LANG"))}
    environment = {**kept, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = str(Path(command.__file__).parents[1])
    if encoding:
        environment["PYTHONIOENCODING"] = encoding
    (problem.parent / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], env=environment, capture_output=True, check=False)
    out, err = done.stdout.decode(encoding or "ascii"), done.stderr.decode(encoding or "ascii")
    assert "Traceback" not in err
    assert done.returncode == 0
    assert re.findall("code (.)", out) == ["0", "0", "1", "2", "2"]


def test_an_interrupted_solve_writes_nothing(problem, monkeypatch, capsys):
    def interrupted(self, family):
        raise KeyboardInterrupt

    monkeypatch.setattr(Descent, "solve", interrupted)
    code, out, _ = called(monkeypatch, capsys, "solve", problem, "--solver", "descent")
    assert code == 130
    assert "nothing was written" in out
    assert [path.name for path in problem.parent.iterdir()] == ["p.txt"]


def test_ctrl_c_while_python_imports_ends_the_command_without_a_traceback():
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from qpsbgd_qubo.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_solve_answers_a_family_recorded_from_training(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.savez("f.npz", **vars(random_family(6, 3, 8)))
    _, out, _ = called(monkeypatch, capsys, "solve", "f.npz")
    assert re.search(r"n = 6 variables \(SPIN\), couplings 15, m = 3, energy minimised\n", out)
    assert re.search(r"proven optimal +3 of 3\n", out)
    assert set(np.loadtxt("spins.txt")[:, 1:].ravel()) == {-1.0, 1.0}
