"""A ledger where files cannot be locked: on some network file systems."""

import errno
import subprocess
import sys

import pytest

pytest.importorskip("qpsbgd", reason="needs qpsbgd")
pytest.importorskip("dimod", reason="needs dimod")
pytest.importorskip("dwave.system", reason="needs dwave.system")

from qpsbgd.testing import random_family
from qpsbgd_qubo.annealers.budget import Budget
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.files import atomic

pytest.importorskip("fcntl")


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def no_locks(request, monkeypatch):
    def refuse(file, operation):
        raise OSError(request.param, "no locks here")

    monkeypatch.setattr(atomic.fcntl, "flock", refuse)


def test_nothing_is_counted_or_sent_where_files_cannot_be_locked(no_locks, tmp_path):
    ledger = Ledger(tmp_path / "qpu.ledger")
    with pytest.raises(OSError, match=r"cannot lock files; choose a folder on a local disk: .*qpu\.ledger"):
        Budget(ledger, limit=1.0).reserve([0.1])
    assert (ledger.submissions, ledger.qpu_seconds) == (0, 0.0)
    assert not ledger.path.exists()


def test_a_solver_whose_ledger_cannot_be_locked_sends_nothing(no_locks, tmp_path, monkeypatch):
    pytest.importorskip("dwave.graphs")
    from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU

    with VirtualQPU(size=2, cache=tmp_path, num_reads=2, ledger=tmp_path / "qpu.ledger") as solver:
        for name in ("sample", "sample_ising", "sample_qubo"):  # whoever calls one of them fails otherwise
            monkeypatch.setattr(solver.connect(), name, None)
        with pytest.raises(OSError, match="cannot lock files"):
            solver.solve(random_family(4, 2, 8))


def test_machines_whose_locks_do_not_reach_each_other_lose_no_submission(tmp_path):
    """As on some network file systems: two host names, no lock in common, neither of files nor of SQLite."""
    script = (
        "import pathlib, socket, sqlite3, sys\n"
        "machine, connect, with_name = sys.argv[2], sqlite3.connect, pathlib.Path.with_name\n"
        "socket.gethostname = lambda: machine\n"
        "sqlite3.connect = lambda name, **options: connect(name + '&vfs=unix-none', **options)\n"
        "def own_lock(path, name): return with_name(path, name + machine if name.endswith('.lock') else name)\n"
        "pathlib.Path.with_name = own_lock\n"
        "from qpsbgd_qubo.annealers.ledger import Ledger\n"
        "ledger = Ledger(sys.argv[1])\n"
        "for _ in range(100):\n"
        "    with ledger.changing() as counts: counts.submissions += 1\n"
        "    assert ledger.submissions\n"
    )
    path = tmp_path / "qpu.ledger"
    runs = [subprocess.Popen([sys.executable, "-c", script, path, machine]) for machine in ("one", "other")]
    assert [run.wait() for run in runs] == [0, 0]
    assert Ledger(path).submissions == 200


def test_a_ledger_makes_its_folders_once(tmp_path):
    path = tmp_path / "new" / "folder" / "qpu.ledger"
    for submissions in (1, 2):
        with Ledger(path).changing() as counts:
            counts.submissions += 1
        assert Ledger(path).submissions == submissions
