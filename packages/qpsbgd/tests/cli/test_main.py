import os
import re
import subprocess
import sys

import pytest


def qpsbgd(*arguments, hide=(), **environment):
    """Run the command in a process that finds none of the packages in `hide`."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(hide)!r})); sys.argv[1:] = {list(arguments)!r}; "
        "from qpsbgd.cli import main; main()"
    )
    without = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=without | environment)


@pytest.mark.parametrize("command", ["solvers", "--version"])
def test_without_its_packages_the_command_line_says_what_to_install(command):
    done = qpsbgd(command, hide=["typer"])
    assert done.returncode == 1
    assert "pip install 'qpsbgd[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_overview_names_all_commands_without_loading_torch():
    done = qpsbgd("--help", hide=["torch", "sklearn", "matplotlib"])  # loading one of them would fail
    assert done.returncode == 0, done.stderr
    for command in ("data", "demo", "deploy", "qpu", "report", "run", "solve", "solvers"):
        assert re.search(rf"\W{command} +[A-Z]", done.stdout), command


def policy_when_torch_is_loaded(**environment):
    """OMP_WAIT_POLICY at the moment when torch is first imported under the command line."""
    code = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print('policy', os.environ.get('OMP_WAIT_POLICY')); os._exit(0)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['demo']\n"
        "from qpsbgd.cli import main; main()"
    )
    without = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True, env=without | environment)
    return done.stdout.strip()


def test_commands_set_the_wait_policy_before_torch_loads_openmp_unless_the_user_has():
    assert policy_when_torch_is_loaded() == "policy passive"
    assert policy_when_torch_is_loaded(OMP_WAIT_POLICY="active") == "policy active"


@pytest.mark.parametrize(("arguments", "module"), [(["solvers"], "typer"), (["solve", "x.coo"], "numpy")])
def test_ctrl_c_while_python_imports_ends_the_command_without_a_traceback(arguments, module):
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv[1:] = {arguments}\n"
        "from qpsbgd.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
