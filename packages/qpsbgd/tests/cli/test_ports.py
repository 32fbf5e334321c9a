"""Commands open no port beyond loopback unless asked to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = """\
import os, sys

def watched(event, arguments):
    if event == "socket.bind":
        with open(os.environ["BOUND"], "a") as file:
            file.write(repr(arguments[1]) + "\\n")

sys.addaudithook(watched)
"""


def addresses(folder, *arguments):
    """Where a command, or a process that it starts, has opened a port."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    paths = [str(hook), *filter(None, [os.environ.get("PYTHONPATH")])]
    bound = folder / "bound"
    bound.write_text("", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "BOUND": str(bound)}
    done = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, cwd=folder, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return bound.read_text(encoding="utf-8").splitlines()


MAIN = "from qpsbgd.cli import main; main()"


def test_the_hook_sees_what_is_opened(tmp_path):
    opened = "import socket; socket.create_server(('127.0.0.1', 0)).close()"
    assert addresses(tmp_path, opened) == ["('127.0.0.1', 0)"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("solve", "p.coo"),
        ("qpu", "estimate", "4-2"),
        ("run", "logreg", "--quick", "--seeds", "1", "--workers", "2", "--out", "results"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_open_no_port(tmp_path, arguments):
    Path(tmp_path / "p.coo").write_text("0 1 1\n", encoding="utf-8")
    beyond = [address for address in addresses(tmp_path, MAIN, *arguments) if "127.0.0.1" not in address]
    assert [address for address in beyond if address.startswith("(")] == [], "the others are names of local sockets"
