"""What the ranks of the distributed tests do: each function is run by every rank, with its number and their count."""

import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.multiprocessing import get_context
from torch.nn.parallel import DistributedDataParallel

from qpsbgd import QPSBGD, BinaryConnect, Bop, Checkpoint, Monitor, ProxQuant, StraightThrough
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.parallel.shards import load_sharded
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.solvers.search import warm_start

MOST = 4
KINDS = {"qpsbgd": QPSBGD, "binaryconnect": BinaryConnect, "proxquant": ProxQuant}


class Processes:
    """Processes that wait for work; `run` gives it to the first so many of them, as ranks of one group."""

    def __init__(self):
        self._start()

    def _start(self):
        context = get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(MOST):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()  # so that the end of the process ends the pipe
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, size, function, *, dies=(), **arguments):
        """What the function returned on every rank, None of those that die, or the exception's type and text."""
        with tempfile.TemporaryDirectory() as folder:
            for rank, pipe in enumerate(self._pipes[:size]):
                pipe.send((function, rank, size, Path(folder) / "store", arguments))
            answers = []
            for rank, pipe in enumerate(self._pipes[:size]):
                if not pipe.poll(120):
                    self.close()
                    self._start()
                    raise AssertionError(f"rank {rank} did not answer")
                if rank in dies:
                    with pytest.raises(EOFError):
                        pipe.recv()
                    answers.append(("done", None))
                else:
                    answers.append(pipe.recv())
        if dies:
            self.close()
            self._start()
        for answer in answers:
            assert answer[0] != "failed", answer[1]
        return [answer[1] for answer in answers]

    def close(self):
        for process in self._processes:
            process.kill()


def _serve(pipe):
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        function, rank, size, store, arguments = job
        try:
            if size > 1:
                dist.init_process_group(
                    "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
                )
            pipe.send(("done", function(rank, size, **arguments)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def network(kind, dtype=torch.float64):
    torch.manual_seed(0)
    if kind == "convolutional":
        layers = [BinaryConv2d(2, 4, 3, padding=1, groups=2), nn.Hardtanh(), BinaryConv2d(4, 3, 3), nn.Flatten()]
        return nn.Sequential(*layers, BinaryLinear(48, 5)).to(dtype)
    between = nn.BatchNorm1d(9) if kind == "normed" else nn.Linear(9, 9)
    return nn.Sequential(BinaryLinear(12, 9), nn.Hardtanh(), between, BinaryLinear(9, 5)).to(dtype)


def batch(kind, step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    shape = (16, 2, 6, 6) if kind == "convolutional" else (16, 12)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), torch.randn(16, 5, generator=generator, dtype=torch.float64).to(dtype)


def parts(size, sizes=None):
    """The rows of every rank."""
    ends = torch.tensor(sizes or [16 // size] * size).cumsum(0).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def losses(model, kind, step, slices, dtype=torch.float64):
    inputs, targets = (rows.to(next(model.parameters()).device) for rows in batch(kind, step, dtype))
    return [(model(inputs[own]) - targets[own]).square().mean() for own in slices]


def train(rank, size, *, options, kind="dense", steps=5, sizes=None, dtype=torch.float64, way="qpsbgd", device="cpu"):
    """Weights after some steps, the last spins, and the bytes sent; one process takes the mean of the ranks' losses."""
    model = network(kind, dtype).to(device)
    trained = model
    if size > 1:
        trained = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    optimizer = KINDS[way](trained, **{"real": False, **options})
    every = parts(size, sizes)
    for step in range(steps):
        optimizer.zero_grad()
        own = every if size == 1 else [every[rank]]
        torch.stack(losses(trained, kind, step, own, dtype)).mean().backward()
        optimizer.step()
    spins = [solution.spins.cpu() for solution in getattr(optimizer, "solutions", [])]
    weights = {name: value.detach().cpu() for name, value in model.named_parameters() if value in optimizer._layers}
    sent = optimizer._ranks.sent if way == "qpsbgd" else 0
    return {"weights": weights, "spins": spins, "sent": sent}


def outcome(model, optimizer):
    """What a step does: the exception's type and text, or "", and whether weights have changed."""
    before = [value.detach().clone() for value in optimizer._layers]
    text = ""
    try:
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    return text, any(not torch.equal(old, new) for old, new in zip(before, optimizer._layers, strict=True))


class Moody(Solver):
    """Descent that can be broken."""

    broken = False

    def _solve(self, family):
        if self.broken:
            raise ValueError("out of order")
        return make_solver("descent").solve(family)


class Stateful(Solver):
    """Counts how often it was asked."""

    def __init__(self):
        self.calls = 0

    def _solve(self, family):
        self.calls += 1
        return make_solver("descent").solve(family)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def faulty(rank, size, *, fault, options):
    """The outcomes of three steps on this rank, the second of them with a fault on rank 1."""
    kind = "dense"
    model = network(kind)
    wrapped = DistributedDataParallel(model)
    optimizer = QPSBGD(model, **{"real": False, **options})
    if fault == "solver":
        optimizer.solver = Moody()
    found, own = [], parts(size)[rank]
    for step in range(3):
        faulted = step == 1 and rank == 1
        inputs, targets = batch(kind, step)
        if faulted and fault == "nan":
            inputs[own.start, 0] = torch.nan
        optimizer.zero_grad()
        loss = (wrapped(inputs[own]) - targets[own]).square().mean()
        if fault == "nan" and options["projection"].name == "printed":
            loss = loss.nan_to_num()
        loss.backward()
        if fault == "solver":
            optimizer.solver.broken = faulted
        if step == 1 and fault == "lost":
            store = dist.distributed_c10d._get_default_store()
            if faulted:
                store.wait(["in its step"])  # the other rank has done with the backward pass
                os._exit(1)
            store.set("in its step", "")
        found.append(outcome(model, optimizer))
        if fault == "lost" and found[-1][0]:
            break
    return found


def unused_on_some_ranks(rank, size, *, options):
    """Weights of two layers of which rank 0 uses one more than the others, or of one process that does the same."""
    torch.manual_seed(0)
    model = Branches().double()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if size > 1 else model
    optimizer = QPSBGD(model, **{"real": False, **options})
    for step in range(3):
        optimizer.zero_grad()
        inputs, targets = batch("dense", step)
        own = parts(2)
        found = [
            (wrapped(inputs[own[one]], both=one == 0) - targets[own[one]]).square().mean()
            for one in ([rank] if size > 1 else range(2))
        ]
        torch.stack(found).mean().backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = BinaryLinear(12, 5), BinaryLinear(12, 5)

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def asked(rank, size):
    """How often this rank asked a solver that keeps a state."""
    model = network("dense")
    wrapped, optimizer = DistributedDataParallel(model), QPSBGD(model, solver=Stateful(), real=False)
    losses(wrapped, "dense", 0, [parts(size)[rank]])[0].backward()
    optimizer.step()
    return optimizer.solver.calls, [weight.detach() for weight in optimizer._layers]


def observed(rank, size, *, options):
    """The figures of a monitor that only rank 0 has."""
    model = network("dense")
    wrapped, seen = DistributedDataParallel(model), []
    optimizer = QPSBGD(model, **{"real": False, **options})
    monitor = Monitor(model, optimizer, seen.extend) if rank == 0 else None
    for step in range(2):
        optimizer.zero_grad()
        losses(wrapped, "dense", step, [parts(size)[rank]])[0].backward()
        optimizer.step()
    if monitor is not None:
        monitor.close()
    return [sorted(one.figures) for one in seen], [weight.detach() for weight in optimizer._layers]


def scaled(rank, size, *, options, overflow):
    """Weights after a step with a GradScaler that finds gradients infinite on no rank or on all."""
    model = network("dense", torch.float32)
    wrapped = DistributedDataParallel(model)
    optimizer, scaler = QPSBGD(model, **{"real": False, **options}), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = [weight.detach().clone() for weight in optimizer._layers]
    loss = losses(wrapped, "dense", 0, [parts(size)[rank]], torch.float32)[0]
    scaler.scale(loss * (torch.inf if overflow == "all" and rank == 1 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    after = [weight.detach() for weight in optimizer._layers]
    return after, all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def resumed(rank, size, *, options, folder, stop):
    """Weights of a run that saves itself on every rank, stopped after some steps or not."""
    model = network("dense")
    optimizer = QPSBGD(model, **{"real": False, **options})
    with Checkpoint(f"{folder}/rank{rank}.pt", model=model, optimizer=optimizer) as run:
        wrapped = DistributedDataParallel(model)
        for step in run.steps(stop):
            optimizer.zero_grad()
            losses(wrapped, "dense", step, [parts(size)[rank]])[0].backward()
            optimizer.step()
    return [weight.detach() for weight in optimizer._layers]


SHARDABLE = {**KINDS, "straight_through": StraightThrough, "bop": Bop}


def sharded_network(kind):
    torch.manual_seed(0)
    if kind == "convolutional":
        layers = [BinaryConv2d(2, 4, 3, padding=1), nn.Hardtanh(), BinaryConv2d(4, 3, 3), nn.Flatten()]
        return nn.Sequential(*layers, BinaryLinear(48, 5)).double()
    if kind == "scaled":
        layers = [BinaryLinear(12, 31, scale="learned"), nn.Hardtanh(), BinaryLinear(31, 8, scale="learned")]
        return nn.Sequential(*layers, nn.Hardtanh(), BinaryLinear(8, 5, scale="magnitude")).double()
    return nn.Sequential(
        BinaryLinear(12, 9, bias=True), nn.Hardtanh(), nn.Linear(9, 9), BinaryLinear(9, 5, scale="magnitude")
    ).double()


def fully_sharded(model, size, **options):
    from torch.distributed.fsdp import fully_shard

    if size > 1:
        mesh = dist.init_device_mesh("cpu", (size,))
        for layer in [*model, model]:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh, **options)
    return model


def sharded_run(
    rank,
    size,
    *,
    options,
    way="qpsbgd",
    kind="dense",
    steps=range(5),
    load=None,
    save=None,
    accumulate=False,
    clip=None,
    frozen=False,
    warm=False,
    discarded=False,
    dead=False,
):
    """Whole weights after some steps with a model that FSDP2 has sharded, and the bytes that this rank sent."""
    import torch.distributed.checkpoint as dcp

    warm_start.COLD_START_LIMIT = 0 if warm else 2**24
    model = sharded_network(kind)
    model[0].weight.requires_grad_(not frozen)
    fully_sharded(model, size)
    optimizer = SHARDABLE[way](model, **{"real": False, **options})
    if load is not None:
        load_sharded(load, model=model, optimizer=optimizer)
    for step in steps:
        optimizer.zero_grad()
        inputs, targets = (rows.tensor_split(size)[rank] for rows in batch(kind, step))
        outputs = slice(1 if dead and step % 2 else None)  # those of one rank have no gradient
        if discarded:
            model(3 * inputs).sum().backward()
            model.zero_grad()
        count = 2 if accumulate else 1
        passes = zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True)
        for number, (x, target) in enumerate(passes, start=1):
            if size > 1:
                model.set_requires_gradient_sync(number == count)
            loss = (model(x) - target)[:, outputs].square().sum() * size / 80
            loss.backward()  # FSDP takes the mean of the ranks' losses
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    if save is not None:
        dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=save)
    whole = {name: p.full_tensor() if size > 1 else p for name, p in model.named_parameters()}
    return {name: value.detach() for name, value in whole.items()}, optimizer._ranks.sent


def mixed_precision(rank, size, *, options):
    """The types of weights, gradients and Q̄ after steps in half precision, and the losses."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = sharded_network("dense").float()
    fully_sharded(model, size, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    optimizer = QPSBGD(model, **options)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        x, target = batch("dense", 0, torch.float32)
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = model[0].weight
    return {weight.dtype, weight.grad.dtype, optimizer.state[weight]["gram"].dtype}, losses


def broken_solver(rank, size):
    """The errors of three steps, whether weights have changed, and in the second the solver of rank 1 is broken."""
    model = fully_sharded(sharded_network("dense"), size)
    optimizer = QPSBGD(model, solver=Moody(), real=False)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        model(batch("dense", step)[0]).sum().backward()
        optimizer.solver.broken = step == 1 and rank == 1
        before = model[0].weight.to_local().clone()
        found.append((_error(optimizer.step), not torch.equal(model[0].weight.to_local(), before)))
    return found


def nan_in_a_shard(rank, size, *, options, way="qpsbgd"):
    """The error of a step for which rank 1 has a gradient of NaN."""
    model = fully_sharded(sharded_network("dense"), size)
    optimizer = SHARDABLE[way](model, **options)
    model(batch("dense", 0)[0]).sum().backward()
    if rank == 1:
        model[0].weight.grad.to_local()[0, 0] = torch.nan
    return _error(optimizer.step)


def shard_errors(rank, size):
    """The errors of what cannot be trained with sharded weights."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import Shard, distribute_tensor

    def tensor_parallel():
        layer = BinaryLinear(6, 4)
        whole = distribute_tensor(layer.weight.detach(), dist.init_device_mesh("cpu", (size,)), [Shard(1)])
        layer.weight = nn.Parameter(whole)
        return QPSBGD(layer)

    def grouped():
        return QPSBGD(fully_sharded(nn.Sequential(BinaryConv2d(4, 4, 3, groups=2)), size))

    def flat(**options):
        model = nn.Sequential(BinaryLinear(12, 8), BinaryLinear(8, 5))
        return BinaryConnect(FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options))

    def late(kind):
        model = sharded_network("dense")
        optimizer = kind(model, real=False)
        fully_sharded(model, size)
        model(batch("dense", 0)[0]).sum().backward()
        optimizer.step()

    tried = {
        "printed": lambda: QPSBGD(fully_sharded(nn.Sequential(BinaryLinear(6, 4)), size), projection="printed"),
        "muon": lambda: BinaryConnect(fully_sharded(sharded_network("dense"), size), lr=0.1, update="muon"),
        "stateful": lambda: QPSBGD(fully_sharded(sharded_network("dense"), size), solver=Stateful()),
        "tensor parallel": tensor_parallel,
        "grouped": grouped,
        "flat": flat,
        "flat, original parameters": lambda: flat(use_orig_params=True),
        "late": lambda: late(QPSBGD),
        "late, BinaryConnect": lambda: late(BinaryConnect),
    }
    return {name: _error(act) for name, act in tried.items()}


def _error(act):
    try:
        act()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def uneven_batches(rank, size, kind):
    """Ranks with two and more batches inside Join; the error, or the parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(BinaryLinear(6, 4), nn.Hardtanh(), nn.Linear(4, 4), BinaryLinear(4, 3))
    optimizer, model = KINDS[kind](net, steps=9), DistributedDataParallel(net)
    torch.manual_seed(rank)
    try:
        with Join([model]):
            for _ in range(2 + rank):
                optimizer.zero_grad()
                model(torch.randn(5, 6)).square().mean().backward()
                optimizer.step()
    except RuntimeError as error:
        return str(error)
    return [p.tolist() for p in net.parameters()]
