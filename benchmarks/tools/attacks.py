"""Does the library hold where something around it is hostile or broken?

    OMP_NUM_THREADS=1 python benchmarks/tools/attacks.py                     all attacks
    OMP_NUM_THREADS=1 python benchmarks/tools/attacks.py couplings           this one, into the same file

An attack yields whether each of its trials held: the answer is that of an undisturbed run, or a documented error is
raised and nothing has changed. One thread, since OpenMP itself ends a process in which it cannot start threads. Writes
benchmarks/results/attacks.json.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

from attacks_on_files import packed_files
from attacks_on_runs import dying_ranks, killed_runs, ledgers, starved
from forks import in_fork, limit, output

from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo import solve
from qpsbgd_qubo.problem_files import read_problem

ROOT = Path(__file__).parents[2]
OUT = ROOT / "benchmarks" / "results" / "attacks.json"

WORK = """
import sys, tempfile, numpy as np, torch
from pathlib import Path
from torch import nn
from qpsbgd import QPSBGD
from qpsbgd.deploy import load_packed, pack, to_c
from qpsbgd.nn import BinaryLinear, SignActivation
from qpsbgd_qubo.problem_files import read_problem
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
torch.manual_seed(0)
model = nn.Sequential(SignActivation(), BinaryLinear(9, 6), nn.BatchNorm1d(6), nn.Hardtanh(), BinaryLinear(6, 2))
optimizer = QPSBGD(model, projection="spins", real=True, steps=3)
rows = torch.randn(20, 9)
for _ in range(3):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
with tempfile.TemporaryDirectory() as folder:
    pack(model.eval(), Path(folder) / "net")
    out = load_packed(Path(folder) / "net")(rows.numpy())
    to_c(model, Path(folder) / "c", input_shape=(9,))
    text = "".join(sorted(path.read_text() for path in (Path(folder) / "c").iterdir()))
    texts = {
        "p.qubo": "p qubo 0 2 2 1\\n0 0 0.5\\n1 1 -1.5\\n0 1 2.25\\n",
        "p.mtx": "%%MatrixMarket matrix coordinate real symmetric\\n2 2 2\\n1 1 0.5\\n2 1 2.25\\n",
        "p.coo": "0 0 0.5\\n0 1 1e-3\\n",
        "p.txt": "1\\n2 2\\n1 1 0.5\\n1 2 2.25\\n",
    }
    for name, content in texts.items():
        Path(folder, name).write_text(content)
    problems = [repr(vars(read_problem(Path(folder) / name))) for name in texts]
energies = [make_solver(name).solve(random_family(12, 3, 8)).energies.tolist() for name in ("exact", "descent")]
print(repr((out.tolist(), text, problems, energies)))
"""


def installations(source, trials):
    """A read-only installation: nothing is opened for writing beside the sources"""
    hook = f"""
import os, sys
def watched(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path, flags = os.path.abspath(arguments[0]), arguments[2]
        if flags & (os.O_WRONLY | os.O_RDWR) and path.startswith({str(ROOT / "src")!r}):
            os.write(2, path.encode()); os._exit(3)
sys.addaudithook(watched)
"""
    expected = output(WORK)
    yield expected is not None and output(hook + WORK, PYTHONDONTWRITEBYTECODE="1") == expected


def locales(source, trials):
    """A locale with comma decimals and one without UTF-8: networks, C, problem files and solvers as in any other"""
    expected, begin = output(WORK), "import locale\nlocale.setlocale(locale.LC_ALL, '')\n"
    comma = "if locale.localeconv()['decimal_point'] != ',': raise SystemExit('no comma')\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, charset in (("de_DE", "UTF-8"), ("fr_FR", "UTF-8"), ("de_DE", "ISO-8859-1"), ("pl_PL", "ISO-8859-2")):
            place = f"{folder}/{name}.{charset}"
            subprocess.run(["localedef", "--no-archive", "-i", name, "-f", charset, place], check=True)
            for utf8 in "01":
                environment = {"LC_ALL": f"{name}.{charset}", "LOCPATH": folder, "PYTHONUTF8": utf8}
                yield expected is not None and output(begin + comma + WORK, **environment) == expected


def homes(source, trials):
    """No home directory, or one that cannot be written, or that is a file"""
    expected = output(WORK)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").touch()
        for home in (None, "", "/proc/none", "/dev/null", f"{folder}/file", f"{folder}/none/none"):
            yield expected is not None and output(WORK, HOME=home, XDG_CACHE_HOME=home) == expected


HEADERS = {
    "p.qubo": ("p qubo 0 {n} {n} {n}\n0 0 1\n", "p qubo 0 4 4 {n}\n0 0 1\n"),
    "p.mtx": ("%%MatrixMarket matrix coordinate real symmetric\n{n} {n} 1\n1 1 1\n",),
    "p.txt": ("1\n{n} 1\n1 1 1\n", "1\n4 {n}\n1 1 1\n"),
    "p.coo": ("{n} {n} 1.5\n",),
}


def couplings(source, trials):
    """Files that promise or need more than 2³¹ variables or couplings: refused within 2 GB of memory"""
    for name, texts in HEADERS.items():
        for text in texts:
            for n in (2**31 - 1, 2**31, 2**32 + 1, 2**63):
                yield in_fork(_promised, name, text.format(n=n)) is True


def _promised(name, text):
    limit(2 * 10**9, 600)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text)
        try:
            solve(read_problem(Path(folder) / name), time_limit=1)
        except (ValueError, MemoryError):
            return True
    return False


ATTACKS = {packed_files: 3000, starved: 200, killed_runs: 20, dying_ranks: 40, ledgers: 100}
ATTACKS |= dict.fromkeys((installations, homes, locales, couplings), 1)
"""How many trials; some attacks have a list of their own."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=", ".join(attack.__name__ for attack in ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for attack, trials in ATTACKS.items():
        if options.attacks and attack.__name__ not in options.attacks:
            continue
        held = in_fork(lambda: list(map(bool, attack(random.Random(options.seed), trials))))  # noqa: B023
        if held is None:
            raise SystemExit(f"{attack.__name__} did not end")
        found = json.loads(OUT.read_text()) if OUT.exists() else {"attacks": {}}
        result = {"about": attack.__doc__, "trials": len(held), "held": sum(held)}
        found["attacks"][attack.__name__] = {**result, "seed": options.seed, "made with": environment()}
        print(attack.__name__, len(held), sum(held), [at for at, one in enumerate(held) if not one], flush=True)
        write_json(OUT, found)


if __name__ == "__main__":
    main()
