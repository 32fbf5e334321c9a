"""Generated C: compiled strictly, and run on samples."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

COMPILERS = [path for path in map(shutil.which, ("gcc", "clang")) if path]
STRICT = (
    *("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"),
    *("-Wconversion", "-Wshadow", "-Wdouble-promotion"),
)
SANITIZED = ("-fsanitize=undefined,address",)
"""Without optimisation, which would take twice as long to compile, and could hide what the sanitizers look for."""

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler: neither gcc nor clang is installed")


def built(source, *flags, compiler=0):
    program = source.files[0].parent / "program"
    files = [str(path) for path in source.files if path.suffix == ".c"]
    subprocess.run([COMPILERS[compiler], *STRICT, *flags, *files, "-o", str(program), "-lm"], check=True)
    return program


def ran(program, text, *arguments):
    """What a program did with the text; without a search for leaks, since no code allocates and it may take seconds."""
    settings = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([str(program), *arguments], input=text, capture_output=True, text=True, env=settings)


def results(program, inputs):
    """Classes and outputs (B, m) that a program prints."""
    done = ran(program, "\n".join(" ".join(f"{value:.9g}" for value in row.ravel()) for row in inputs))
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ") for line in done.stdout.splitlines()]
    return [int(line[0]) for line in lines], np.array([line[1].split() for line in lines], np.float64)


def output_step(source):
    found = re.search(r"define \w+_OUTPUT_STEP (\S+)", source.files[0].read_text())
    return float(found[1]) if found else 1.0


def outputs_in_c(source, inputs, *flags):
    """Outputs (B, m) as the trained network counts them."""
    return results(built(source, *flags), inputs)[1] * output_step(source)


def check_in_c(source, model, inputs, *flags, **close):
    """Torch's outputs, equal or as close as said."""
    expected = model(inputs).detach().flatten(1).numpy()
    np.testing.assert_allclose(outputs_in_c(source, inputs.numpy(), *flags), expected, **{"rtol": 0, **close})
