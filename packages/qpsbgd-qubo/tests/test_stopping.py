import signal
import subprocess
import sys

import numpy as np
import pytest

from qpsbgd_qubo.solvers import best_on_interrupt


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C otherwise")
def test_ctrl_c_writes_the_best_so_far_and_says_that_it_was_stopped(tmp_path):
    ends = np.random.default_rng(0).integers(1, 401, (4000, 2))
    edges = sorted({(min(pair), max(pair)) for pair in ends.tolist() if pair[0] != pair[1]})
    lines = [f"400 {len(edges)}", *(f"{a} {b} 1" for a, b in edges)]
    (tmp_path / "graph.txt").write_text("\n".join(lines) + "\n")
    code = (
        "import sys\nfrom qpsbgd_qubo.solvers.portfolio import portfolio\n"
        "portfolio.report = lambda *_: print('searching', flush=True)\n"
        "from qpsbgd_qubo.command import main; sys.exit(main())"
    )
    command = ["solve", "graph.txt", "--format", "maxcut", "--option", "time_limit=100"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert any("searching" in line for line in process.stdout)  # reads until then
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopped        by Ctrl-C; this is the best so far" in output
    assert len([line for line in (tmp_path / "spins.txt").read_text().splitlines() if line[0] != "#"]) == 400


def test_a_handler_of_ctrl_c_that_python_did_not_install_stays(monkeypatch):
    installed = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *arguments: installed.append(arguments))
    with best_on_interrupt():
        pass
    assert installed == []
