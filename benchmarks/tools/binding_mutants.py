"""Do the tests notice a missing or wrong check in the bindings of compiled kernels? One check at a time.

    python benchmarks/tools/binding_mutants.py [--sample N] [--seed N] [--again REPORT]

A change removes a check (`expect…(…);`) or exchanges one comparison in it. All of them are compiled into one pair of
extensions, in which the variable QPSBGD_MUTANT chooses the one that holds, and each is run against the kernels' own
tests. Writes a report like that of mutants.py, benchmarks/results/mutants_bindings.json.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from forks import in_fork
from mutants import PATIENCE, QUIET, ROOT, copied, options_of, study

TESTS = {"qpsbgd_qubo": ["qpsbgd_qubo/kernels"], "qpsbgd_runtime": ["qpsbgd_runtime"]}
TESTS["native_common"] = [test for tests in TESTS.values() for test in tests]
FILES = "native_common/binding.hpp", "qpsbgd_qubo/kernels/*.[ch]pp", "qpsbgd_runtime/kernels/binding.cpp"
CHECK = re.compile(r"(?<=[;{})])(\s*)(expect\w*\()")
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
CHOICE = """
#include <cstdlib>
inline int mutant() {
  const char* chosen = std::getenv("QPSBGD_MUTANT");
  return chosen ? std::atoi(chosen) : -1;
}
"""


def end_of(text, start):
    """The place after the semicolon of the call that begins at `start`, or None for a definition."""
    depth, at = 0, text.index("(", start)
    while True:
        if text[at] == '"':
            at = text.index('"', at + 1)
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
        if not depth:
            return at + 1 if text[at] == ";" else None


def changes(name, text, first):
    """The text with all changes to choose from, and these changes; `first` is the number of the first."""
    found, parts, last = [], [], 0
    for match in CHECK.finditer(text):
        start = match.start(2)
        end = end_of(text, start)
        if start < last or end is None or text[:start].rsplit("\n", 1)[-1].lstrip().startswith("//"):
            continue
        check, line = text[start:end], text[:start].count("\n") + 1
        variants = [("", "removed")]
        outside = re.sub(r'"[^"]*"', lambda quoted: " " * len(quoted[0]), check)
        for operator in re.finditer(r"(?<= )(<=?|>=?|==|!=|&&|\|\|)(?= )", outside):
            wrong = SWAPS[operator[0]]
            variants.append((check[: operator.start()] + wrong + check[operator.end() :], f"{operator[0]} → {wrong}"))
        chain = ""
        for variant, became in variants:
            short = " ".join(check.split())
            chain += f"if (mutant() == {first + len(found)}) {{ {variant} }} else "
            found.append({"file": name, "line": line, "code": short, "was": short[:100], "became": became})
        parts += [text[last:start], f"{{ {chain}{check} }}"]
        last = end
    return "".join(parts) + text[last:], found


def built(folder):
    """Every change, and the folder of the extensions that have them all."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "CMakeLists.txt", folder)
    sites = []
    for pattern in FILES:
        for file in sorted((folder / "src").glob(pattern)):
            text, found = changes(str(file.relative_to(folder / "src")), file.read_text(), len(sites))
            file.write_text(text)
            sites += found
    common = folder / "src" / "native_common" / "matrix.hpp"
    common.write_text(common.read_text().replace("#pragma once\n", "#pragma once\n" + CHOICE, 1))
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-w"]
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, stdout=subprocess.DEVNULL)
    return sites


def noticed(number, package, log):
    """Whether a test of the package's kernels fails or does not end with this change."""
    import pytest

    def work():
        os.environ["QPSBGD_MUTANT"] = str(number)
        return pytest.main([*QUIET, "-x", *(str(ROOT / "tests" / test) for test in TESTS[package])])

    return in_fork(work, log=log, patience=4 * PATIENCE) != 0


def main():
    options = options_of(__doc__, sample=30, out="mutants_bindings.json").parse_args()
    os.chdir(ROOT)
    folder = Path(tempfile.mkdtemp())
    sites = built(folder)
    work = copied(folder / "build")
    for package, tests in TESTS.items():
        if noticed(-1, package, work / "log"):
            raise SystemExit(f"the tests of {tests} fail unchanged:\n{(work / 'log').read_text()[-3000:]}")

    def attempt(number):
        return noticed(number, sites[number]["file"].partition("/")[0], work / "log")

    study([(number,) for number in range(len(sites))], sites.__getitem__, attempt, options)
    shutil.rmtree(folder)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
