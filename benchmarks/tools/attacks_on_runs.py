"""Attacks on runs: interrupts, too little memory, ranks that die, one ledger for many; see attacks.py."""

import contextlib
import io
import logging
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from forks import in_fork, limit
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import qpsbgd.binarization
from qpsbgd import QPSBGD, binarize
from qpsbgd.nn import BinaryLinear
from qpsbgd_qubo.annealers.budget import Budget, BudgetSpent
from qpsbgd_qubo.annealers.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))
from interrupting import Interrupt, watched_model
from rank_runs import fully_sharded

PATIENCE = 20  # seconds that ranks wait for one another


class Residual(nn.Module):
    """Attention, an encoder layer, norms and a residual branch: all that `binarize` changes or watches."""

    def __init__(self, width):
        super().__init__()
        self.first, self.attention = nn.Linear(6, width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
        self.norm, self.hidden, self.behind = nn.BatchNorm1d(width), nn.Linear(width, width), nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        """Classes of sequences."""
        x = self.first(x)
        x = self.encoder(x + self.attention(x, x, x)[0])
        x = self.norm(x.mean(1))
        return self.last(x + self.behind(self.hidden(x)))


def residual(width):
    torch.manual_seed(0)
    return Residual(width)


def in_place(model, batches, **options):
    warnings.simplefilter("ignore")
    binarize(model, batches, copy=False, **options)


def interrupted(source, trials):
    """`binarize(copy=False)`, Ctrl-C at a random operation of its code: the model is as before or binary as a whole"""
    folder = [Path(qpsbgd.binarization.__file__).parent]
    batches = [torch.randn(5, 4, 6) for _ in range(3)]
    for targets in ("own", "float"):
        options = {"rounds": 2, "bits": 2, "targets": targets}
        model, count = residual(8), Interrupt(folder)
        before = watched_model(model)
        count(in_place, model, batches, **options)
        states, places = {before, watched_model(model)}, list(count.places.values())
        for _ in range(trials // 2):
            model = residual(8)
            hit = Interrupt(folder, source.choice(source.choice(places)))(in_place, model, batches, **options)
            yield hit and watched_model(model) in states


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
    try:
        in_place(model, batches, solver="rounding")
    except (MemoryError, RuntimeError) as error:
        ballast.clear()
        after = [(name, type(module), module.training, len(vars(module))) for name, module in model.named_modules()]
        same = all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
        return "memory" in str(error).lower() + type(error).__name__.lower() and before == after and same
    return sum(isinstance(module, BinaryLinear) for module in model.modules()) == 3


def dying_ranks(source, trials):
    """Two to four ranks under DistributedDataParallel or FSDP2, one killed at a random time: all others raise soon"""
    for trial in range(trials):
        size, sharded = source.choice((2, 3, 4)), trial % 2 == 0
        projection = source.choice(("ridge", "spins"))
        yield in_fork(_dying, size, sharded, projection, source.random(), source.randrange(size)) is True


def _dying(size, sharded, projection, share, victim):
    """Whether all ranks but the killed one end in time with an error that a user can read."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = {}
        for rank in range(size):
            ranks[rank] = os.fork()
            if ranks[rank] == 0:
                _rank(Path(folder), rank, size, sharded, projection)
        while not all((Path(folder) / f"began{rank}").exists() for rank in range(size)):
            time.sleep(0.01)
        time.sleep(1.5 * share)
        os.kill(ranks[victim], signal.SIGKILL)
        end, left = time.monotonic() + 2 * PATIENCE, dict(ranks)
        while left and time.monotonic() < end:
            for rank, process in list(left.items()):
                if os.waitpid(process, os.WNOHANG)[0]:
                    del left[rank]
            time.sleep(0.02)
        for process in left.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        texts = [Path(folder, f"end{rank}") for rank in range(size) if rank != victim]
        return not left and all(text.exists() and "Error" in text.read_text() for text in texts)


def _rank(folder, rank, size, sharded, projection):
    try:
        torch.set_num_threads(1)
        wait = timedelta(seconds=PATIENCE)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=wait)
        torch.manual_seed(0)
        model = nn.Sequential(BinaryLinear(40, 32), nn.Hardtanh(), nn.Linear(32, 16), BinaryLinear(16, 8))
        wrapped = fully_sharded(model, size) if sharded else DistributedDataParallel(model)
        optimizer = QPSBGD(model, projection=projection, real=True, steps=10**6)
        for step in range(10**6):
            optimizer.zero_grad()
            wrapped(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
            if step == 0:
                (folder / f"began{rank}").touch()
    except Exception as error:
        (folder / f"end{rank}").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def ports(source, trials):
    """MASTER_PORT in use, out of range or no number, and hosts that are none: an error in words within a minute"""
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        taken = str(used.getsockname()[1])
        for port in (taken, "0x1f", "-1", "65536", "99999999999", "", " ", "1 2", "²"):
            yield in_fork(_port, "127.0.0.1", port) is True
        for host in ("256.1.1.1", "no such host", "", "\n"):
            yield in_fork(_port, host, "29871") is True


def _port(host, port):
    signal.alarm(60)
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    except (RuntimeError, ValueError, OSError) as error:
        return bool(str(error))
    return False


def tokens(source, trials):
    """D-Wave tokens of any characters: those that no request can carry are refused, and none is ever shown"""
    import dwave.system  # noqa: F401  # once, not in every fork

    odd = ("\n", " ", "\r", "\t", "\u2603", "\u00e9", "\u00a0", "\x1b[31m", "\x7f", "\udc80", "X: 1\r\n")
    for trial in range(trials):
        secret = "DEV-" + "".join(source.choice("0123456789abcdef") for _ in range(40))
        at = source.randrange(len(secret) + 1)
        yield in_fork(_token, secret[:at], source.choice(odd) if trial % 2 else "", secret[at:]) is True


def _token(begin, odd, end):
    from qpsbgd.solvers import make_solver

    os.environ |= {"DWAVE_API_TOKEN": begin + odd + end, "DWAVE_CONFIG_FILE": os.devnull}
    shown = io.StringIO()
    logging.basicConfig(stream=shown, level=logging.WARNING)
    refused = []
    for name in ("dwave", "leap-hybrid"):
        try:
            solver = make_solver(name, max_qpu_seconds=1.0)
            shown.write(f"{solver!r} {solver} {pickle.dumps(solver)} {solver.state_dict()}")
            refused.append(False)
        except RuntimeError:  # noqa: PERF203
            shown.write(traceback.format_exc())
            refused.append("must be printable ASCII" in shown.getvalue())
    hidden = not any(len(part) > 4 and part in shown.getvalue() for part in (begin, end))
    return hidden and refused == [bool(odd)] * 2


def ledgers(source, trials):
    """Four processes that spend from one ledger, some killed: the limit is kept, and all that was sent is counted"""
    for trial in range(trials):
        yield in_fork(_ledger, source.randrange(2**32), trial % 2 == 1) is True


def _ledger(seed, kills):
    limit_s, each, source = 2.0, 0.03125, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path, children = Path(folder) / "qpu.ledger", []
        for number in range(4):
            child = os.fork()
            if child == 0:
                _spend(path, Path(folder) / f"spent{number}", limit_s, each)
            children.append(child)
        for child in children[: 2 if kills else 0]:
            time.sleep(source.random() * 0.2)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        spent = sum(len(file.read_bytes()) for file in Path(folder).glob("spent*"))
        found = Ledger(path)
        counted = found.qpu_seconds == found.submissions * each <= limit_s
        exact = spent <= found.submissions <= spent + (2 if kills else 0)
        return counted and exact and set(ended) <= ({0, -signal.SIGKILL} if kills else {0})


def _spend(path, spent, limit_s, each):
    try:
        budget = Budget(Ledger(path), limit=limit_s)
        with spent.open("ab", buffering=0) as file:
            while True:
                budget.reserve([each])
                file.write(b".")
    except BudgetSpent:
        os._exit(0)
    finally:
        os._exit(1)
