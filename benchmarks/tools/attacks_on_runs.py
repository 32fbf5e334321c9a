"""Attacks on runs: too little memory, killed processes, ranks that die, one ledger for many; see attacks.py."""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from forks import in_fork, limit
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from qpsbgd import QPSBGD, binarize
from qpsbgd.nn import BinaryLinear
from qpsbgd_files.atomic import without_checksum
from qpsbgd_qubo.annealers.budget import Budget, BudgetSpent
from qpsbgd_qubo.annealers.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))
from rank_runs import Processes, fully_sharded

PATIENCE = 20  # seconds that ranks wait for one another


def starved(source, trials):
    """`binarize(copy=False)` with 20 to 300 MB of memory left: an error and the model as before, or all of it binary"""
    batches = [torch.randn(64, 6) for _ in range(3)]
    for _ in range(trials):
        yield in_fork(_starved, batches, source.randrange(2 * 10**7, 3 * 10**8)) is True


def _starved(batches, memory):
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
        expected, whole = _finished(Path(place) / "whole")
        for trial in range(trials):
            folder = Path(place) / str(trial)
            process = subprocess.Popen(_command(folder), stdout=subprocess.DEVNULL, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(source.uniform(0.1, 0.98) * whole)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            found, _ = _finished(folder)
            yield found == expected and not list(folder.rglob("*.part"))


def _command(folder):
    program = [sys.executable, "-c", "from qpsbgd.cli import main; main()"]
    return [*program, "run", "logreg", "--quick", "--seeds", "2", "--workers", "2", "--out", str(folder)]


def _finished(folder):
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
        path, context = Path(folder) / "qpu.ledger", multiprocessing.get_context("fork")
        spending = [(path, Path(folder) / f"spent{number}", limit_s, each) for number in range(4)]
        children = [context.Process(target=_spend, args=arguments) for arguments in spending]
        for child in children:
            child.start()
        for child in children[: 2 if kills else 0]:
            time.sleep(source.random() * 0.2)
            child.kill()
        for child in children:
            child.join()
        spent = sum(len(file.read_bytes()) for file in Path(folder).glob("spent*"))
        found = Ledger(path)
        counted = found.qpu_seconds == found.submissions * each <= limit_s
        exact = spent <= found.submissions <= spent + (2 if kills else 0)
        return counted and exact and {child.exitcode for child in children} <= ({0, -signal.SIGKILL} if kills else {0})


def _spend(path, spent, limit_s, each):
    budget = Budget(Ledger(path), limit=limit_s)
    with spent.open("ab", buffering=0) as file, contextlib.suppress(BudgetSpent):
        while True:
            budget.reserve([each])
            file.write(b".")
