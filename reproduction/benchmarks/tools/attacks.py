"""Does the library hold where something around it is hostile or broken?

    export OMP_NUM_THREADS=1 PYTHONPATH=packages/qpsbgd/tests/shared:reproduction
    python reproduction/benchmarks/tools/attacks.py                     all attacks
    python reproduction/benchmarks/tools/attacks.py ledgers             this one, into the same file

An attack yields whether each of its trials held: the answer is that of an undisturbed run, or a documented error is
raised and nothing has changed. One thread, since OpenMP itself ends a process in which it cannot start threads. Writes
reproduction/results/attacks.json. The other trials there were made by attacks.py of commit af1c5b87, those with packed
files by attacks_on_files.py of commit d83c8907; tests make fewer of the same kind (test_budget.py, test_replay.py,
test_readers.py).
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import onnxruntime
import torch
import torch._dynamo  # which the first optimiser loads: here once for all forks
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tools.random_networks import deployed_alike, random_network
from qpsbgd import QPSBGD, Checkpoint, QuboDescent, binarize
from qpsbgd.nn import BinaryLinear
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.checksums import without_checksum
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo.annealers.budget import Budget, BudgetSpent
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.annealers.recordings import Recording

ROOT = Path(__file__).parents[3]
from rank_runs import Processes, fully_sharded

OUT = ROOT / "reproduction" / "results" / "attacks.json"
SEED = 0
FORKS = multiprocessing.get_context("fork")
PATIENCE = 20  # seconds that ranks wait for one another


def in_fork(function, *arguments):
    """What a function returns in a fork of this process; None if it does not end well."""
    here, there = FORKS.Pipe(duplex=False)

    def work():
        os.setsid()
        there.send(function(*arguments))
        os._exit(0)

    child = FORKS.Process(target=work)
    child.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return answer


def limit(memory, seconds):
    """Let this process have so many bytes more than now, and end it after so many seconds."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
    signal.alarm(seconds)


def starved(source, trials):
    """`binarize(copy=False)` with 20 to 300 MB of memory left: an error and the model as before, or all of it binary"""
    batches = [torch.randn(64, 6) for _ in range(3)]
    for _ in range(trials):
        yield in_fork(_binarize_starved, batches, source.randrange(2 * 10**7, 3 * 10**8)) is True


def _binarize_starved(batches, memory):
    torch.manual_seed(0)
    hidden = (nn.Linear(6, 1500), nn.BatchNorm1d(1500), nn.Linear(1500, 8), nn.BatchNorm1d(8), nn.Linear(8, 2000))
    model = nn.Sequential(*hidden, nn.ReLU(), nn.Linear(2000, 4), nn.Linear(4, 2))
    before = [(name, type(module), module.training, len(vars(module))) for name, module in model.named_modules()]
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    limit(0, 120)
    ballast = []  # torch's allocator has reserved more than it uses
    with contextlib.suppress(RuntimeError):
        while True:
            ballast.append(torch.empty(2**22, dtype=torch.uint8))
    del ballast[: memory >> 22]
    warnings.simplefilter("ignore")
    try:
        binarize(model, batches, copy=False, solver="rounding")
    except (MemoryError, RuntimeError) as error:
        ballast.clear()
        after = [(name, type(module), module.training, len(vars(module))) for name, module in model.named_modules()]
        same = all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
        return "memory" in str(error).lower() + type(error).__name__.lower() and before == after and same
    return sum(isinstance(module, BinaryLinear) for module in model.modules()) == 3


def killed_runs(source, trials):
    """`qpsbgd run`, all its processes killed at a random time: started again, it ends like an undisturbed one"""
    with tempfile.TemporaryDirectory() as place:
        expected, whole = _finish(Path(place) / "whole")
        for trial in range(trials):
            folder = Path(place) / str(trial)
            process = subprocess.Popen(_command(folder), stdout=subprocess.DEVNULL, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(source.uniform(0.1, 0.98) * whole)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            results, _ = _finish(folder)
            yield results == expected and not list(folder.rglob("*.part"))


def _command(folder):
    program = [sys.executable, "-c", "from qpsbgd.cli import main; main()"]
    return [*program, "run", "logreg", "--quick", "--seeds", "2", "--workers", "2", "--out", str(folder)]


def _finish(folder):
    """What a run found, and how long it took."""
    begin = time.perf_counter()
    subprocess.run(_command(folder), check=True, stdout=subprocess.DEVNULL)
    content = without_checksum((folder / "logreg.json").read_bytes())
    compared = {key: value for key, value in content.items() if key not in ("made with", "seconds of training")}
    return compared, time.perf_counter() - begin


def dying_ranks(source, trials):
    """Two to four ranks under DistributedDataParallel or FSDP2, one killed at a random time: all others raise soon"""
    ranks = Processes()
    for trial in range(trials):
        size, projection = source.choice((2, 3, 4)), source.choice(("ridge", "spins"))
        seconds, victim = 1.5 * source.random(), source.randrange(size)
        how = {"projection": projection, "sharded": trial % 2 == 0, "victim": victim, "seconds": seconds}
        ends = ranks.run(size, until_error, dies=(victim,), **how)
        del ends[victim]
        yield all("Error" in text and waited < 2 * PATIENCE for text, waited in ends)
    ranks.close()


def until_error(rank, size, *, projection, sharded, victim, seconds):
    """The error that ends training, and seconds since the last step; the victim is killed some time after its first."""
    _set_pg_timeout(timedelta(seconds=PATIENCE))
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(40, 32), nn.Hardtanh(), nn.Linear(32, 16), BinaryLinear(16, 8))
    wrapped = fully_sharded(model, size) if sharded else DistributedDataParallel(model)
    optimizer, last = QPSBGD(model, projection=projection, real=True, steps=10**6), time.monotonic()
    try:
        for step in itertools.count():
            optimizer.zero_grad()
            wrapped(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
            last = time.monotonic()
            if step == 0 and rank == victim:
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - last


def ledgers(source, trials):
    """Four processes that spend from one ledger, some killed: the limit is kept, and all that was sent is counted"""
    for trial in range(trials):
        yield in_fork(_ledger, source.randrange(2**32), trial % 2 == 1) is True


def _ledger(seed, kills):
    limit_s, each, source = 2.0, 0.03125, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qpu.ledger"
        spending = [(path, Path(folder) / f"spent{number}", limit_s, each) for number in range(4)]
        children = [FORKS.Process(target=_spend, args=arguments) for arguments in spending]
        for child in children:
            child.start()
        for child in children[: 2 if kills else 0]:
            time.sleep(source.random() * 0.2)
            child.kill()
        for child in children:
            child.join()
        spent = sum(len(file.read_bytes()) for file in Path(folder).glob("spent*"))
        ledger = Ledger(path)
        counted = ledger.qpu_seconds == ledger.submissions * each <= limit_s
        exact = spent <= ledger.submissions <= spent + (2 if kills else 0)
        return counted and exact and {child.exitcode for child in children} <= ({0, -signal.SIGKILL} if kills else {0})


def _spend(path, spent, limit_s, each):
    budget = Budget(Ledger(path), limit=limit_s)
    with spent.open("ab", buffering=0) as file, contextlib.suppress(BudgetSpent):
        while True:
            budget.reserve([each])
            file.write(b".")


def killed_steps(source, trials):
    """`QuboDescent` on a simulated chip, killed three times: it ends as an undisturbed run, all sent is counted"""
    with tempfile.TemporaryDirectory() as place:
        begin = time.perf_counter()
        expected = in_fork(_chip_run, Path(place) / "whole")
        whole = time.perf_counter() - begin
        for trial in range(trials):
            folder = Path(place) / str(trial)
            for _ in range(3):
                child = FORKS.Process(target=_chip_run, args=(folder,))
                child.start()
                child.join(source.uniform(0.1, 0.7) * whole)
                child.kill()
                child.join()
            weights, (answers, seconds), (submissions, billed) = in_fork(_chip_run, folder)
            same = (weights, (answers, seconds)) == expected[:2] and not list(folder.glob("*.part"))
            yield same and answers <= submissions <= answers + 3 * 2 and seconds <= billed * (1 + 1e-9)


def _chip_run(folder):
    """Weights; answers and their QPU time by the recording; submissions and QPU time by the ledger."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(7, 6), nn.Hardtanh(), BinaryLinear(6, 3))
    files = {"record": folder / "run.rec", "ledger": folder / "qpu.ledger", "cache": folder.parent / "cache"}
    solver = make_solver("virtual-qpu", size=3, num_reads=4, sweeps=8, max_qpu_seconds=60, **files)
    optimizer = QuboDescent(model, window=5, solver=solver, steps=10)
    with Checkpoint(folder / "run.pt", every=1, model=model, optimizer=optimizer) as run:
        for _ in run.steps(10):
            optimizer.zero_grad()
            model(torch.randn(20, 7)).square().mean().backward()
            optimizer.step()
    recording, ledger = Recording(files["record"]), Ledger(files["ledger"])
    weights = [layer.binary_weight.tolist() for layer in (model[0], model[2])]
    return weights, (len(recording), recording.qpu_seconds), (ledger.submissions, ledger.qpu_seconds)


def full_disks(source, trials):
    """The same on a disk of 40 to 200 KB: an OSError, no answer lost, and with more space it ends as undisturbed"""
    with tempfile.TemporaryDirectory() as place:
        expected = in_fork(_chip_run, Path(place) / "whole")
        for trial in range(trials):
            disk = Path(place) / f"disk{trial}"
            disk.mkdir()
            size = source.randrange(40, 200)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=True)
            try:
                failed = in_fork(_until_full, disk)
                subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
                weights, (answers, seconds), (submissions, billed) = in_fork(_chip_run, disk)
            finally:
                subprocess.run(["umount", disk], check=True)
            same = (weights, (answers, seconds)) == expected[:2]
            yield failed and same and submissions == answers and seconds <= billed * (1 + 1e-9)


def _until_full(disk):
    try:
        _chip_run(disk)
    except OSError:
        return True
    return True  # the disk was large enough


def networks(source, trials):
    """Random networks of binary and real layers: packed, as C and as ONNX they give torch's outputs, ties aside"""
    onnxruntime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(trials):
            torch.manual_seed(source.randrange(2**31))
            model, rows = random_network(source)
            yield deployed_alike(model.eval(), rows, Path(folder))


ATTACKS = {starved: 200, killed_runs: 20, dying_ranks: 40, ledgers: 100, killed_steps: 20, full_disks: 20}
ATTACKS |= {networks: 1000}
"""How many trials."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=", ".join(attack.__name__ for attack in ATTACKS))
    options = parser.parse_args()
    for attack, trials in ATTACKS.items():
        if options.attacks and attack.__name__ not in options.attacks:
            continue
        held = in_fork(lambda: list(map(bool, attack(random.Random(SEED), trials))))  # noqa: B023
        if held is None:
            raise SystemExit(f"{attack.__name__} did not end")
        content = json.loads(OUT.read_text())
        result = {"about": attack.__doc__, "trials": len(held), "held": sum(held)}
        content["attacks"][attack.__name__] = {**result, "seed": SEED, "made with": environment()}
        print(
            attack.__name__, len(held), sum(held), [trial for trial, holds in enumerate(held) if not holds], flush=True
        )
        write_json(OUT, content)


if __name__ == "__main__":
    main()
