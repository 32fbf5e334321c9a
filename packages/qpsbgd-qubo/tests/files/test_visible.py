# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd", "dimod")

import json
import os
import subprocess
import sys

import dimod
import numpy as np
import pytest
from torch import nn

from qpsbgd import summary
from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryLinear, SignActivation
from qpsbgd_qubo.files.visible import visible
from qpsbgd_qubo.problem_files import read_problem, save_assignment

HOSTILE = "\x1b[31m\x1b]0;title\x07"


def command(*arguments, folder):
    code = "from qpsbgd.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, cwd=folder)
    assert b"\x1b" not in done.stdout + done.stderr and b"\x07" not in done.stdout + done.stderr
    return done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [text] ü ±", "plain [text] ü ±"),
        (HOSTILE, "\\x1b[31m\\x1b]0;title\\x07"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x9bb\x7f", "a\\x9bb\\x7f"),
        ("two\nlines\tand", "two\nlines\tand"),
        ("\ud800", "\\ud800"),
        ("\r", "\\r"),
    ],
)
def test_control_characters_are_spelt_out(text, shown):
    assert visible(text) == shown


def test_labels_of_variables_reach_neither_the_terminal_nor_the_file(tmp_path):
    bqm = dimod.BinaryQuadraticModel({HOSTILE: 1.0, "b": -1.0}, {(HOSTILE, "b"): 1.0}, 0.0, "SPIN")
    with bqm.to_file() as file:
        (tmp_path / "p.bqm").write_bytes(file.read())
    command("solve", "p.bqm", "--out", "spins.txt", folder=tmp_path)
    written = (tmp_path / "spins.txt").read_bytes()
    assert b"\x1b" not in written
    problem = read_problem(tmp_path / "p.bqm")
    save_assignment(tmp_path / "again.txt", problem, np.ones((2, 1)))
    lines = (tmp_path / "again.txt").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0].rpartition(" ")[0]) == HOSTILE, "it can be read back"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_names_of_files_do_not_reach_the_terminal(tmp_path):
    (tmp_path / f"{HOSTILE}.coo").write_text("0 1 1\n", encoding="utf-8")
    assert "written to" in command("solve", f"{HOSTILE}.coo", "--out", f"{HOSTILE}.txt", folder=tmp_path)
    assert "error:" in command("solve", f"{HOSTILE}.npz", folder=tmp_path)
    assert "error:" in command("solve", "p.coo", f"--{HOSTILE}", folder=tmp_path)


def test_names_of_layers_do_not_reach_the_terminal(tmp_path):
    model = nn.Sequential(SignActivation())
    model.add_module(HOSTILE, BinaryLinear(4, 3))
    assert "\x1b" not in str(summary(model)) and "title" in str(summary(model))
    pack(model, tmp_path / "net.safetensors")
    arguments = ("deploy", "net.safetensors", "--to", "c", "--out", f"{HOSTILE}", "--input-shape", "5")
    assert "title" in command(*arguments, folder=tmp_path)
