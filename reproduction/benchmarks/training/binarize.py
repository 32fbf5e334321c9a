"""What does a trained network lose when its weights become binary without training, and what brings it back?

1. `binarize` by rounding, by error feedback (GPTQ's order and update) and by searching the layers' QUBO families, at
   one bit and more, for three draws of calibration data and 64 to 2048 inputs of it: scores on held-out data beside
   the relative squared error of the layers' outputs.
2. From the one-bit network: 100 and 1000 steps with labels by QP-SBGD and BinaryConnect, beside the same network
   trained from scratch. From the binarised start each method takes the best of a grid of rates, on training data and
   another seed; from scratch both take their default rates.
3. MiniLM: distillation from the float model by `distill`, with one and two bits, by a few recipes.
4. `--times`: seconds of one call with nothing beside it.
5. `--targets`: layers fitted to their own outputs and to those of the float network, in networks that a CPU trains in
   minutes.

    python benchmarks/training/binarize.py [subject=mlp …] [--processes N] [--times | --targets]

Writes results/binarize.json. Runs on CUDA where there is one. Images are found through QPSBGD_DATA
(Fashion-MNIST in its folder `fashion`); trained networks are kept in results/binarize, or in QPSBGD_BINARIZE.
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import copy
import time
from contextlib import contextmanager
from functools import cache, partial

import torch
from benchmarks.study import arguments
from benchmarks.training.binarize_networks import Characters, Images, cnn, mlp, small_cnn, small_gpt, small_mlp
from benchmarks.training.sentences import Sentences
from benchmarks.training.training_parts import DEVICE, clock, fashion
from torch import nn
from torch.optim.swa_utils import update_bn

from qpsbgd import QPSBGD, BinaryConnect, binarize
from qpsbgd.binarization.distillation import REAL_RATE, distill, embedding_loss
from qpsbgd.nn import convert
from qpsbgd.projections import Ridge
from qpsbgd_paper.framework.training import fit

SUBJECTS = {
    subject.name: subject
    for subject in (
        Images("mlp", "MNIST, 784-512-512-10", "accuracy", build=mlp),
        Images("cnn", "MNIST, CNN", "accuracy", build=cnn),
        Characters("gpt", "character GPT, 4 layers of 384", "loss", 256),
        Sentences("minilm", "all-MiniLM-L6-v2", "cosine"),
        Images("fashion-mlp", "Fashion-MNIST, 784-512-512-10", "accuracy", build=mlp, data=fashion),
        Images("fashion-cnn", "Fashion-MNIST, CNN", "accuracy", build=cnn, data=fashion),
    )
}
BY_TARGETS = {
    subject.name: subject
    for subject in (
        Images("small-mlp", "MNIST, 784-256-256-10", "accuracy", 512, build=small_mlp, epochs=2),
        Images("small-cnn", "MNIST, CNN of 16, 32 and 64 channels", "accuracy", 512, build=small_cnn, epochs=1),
        Characters("small-gpt", "character GPT, 3 layers of 128", "loss", 64, small_gpt, (800, 3e-3), 8, windows=64),
    )
}
"""Subjects of part 5."""
ALL = SUBJECTS | BY_TARGETS
PLAIN = "rounding, mean size"
OWN = {"targets": "own"}
SEARCHES = {
    "rounding": OWN | {"solver": "rounding"},
    "feedback": OWN | {"solver": "feedback"},
    "no kicks": OWN | {"rounds": 0},
    "search": OWN,
    "200 kicks": OWN | {"rounds": 200},
    "feedback, float targets": {"solver": "feedback"},
    "search, float targets": {},
}
"""Methods that `binarize` has, with its options; the last is its default."""
SIZES = (64, 256, 1024, 2048)
STEPS, SEEDS = (100, 1000), 3
OPTIMIZERS = {"QP-SBGD": QPSBGD, "BinaryConnect": BinaryConnect}
RATES = {"QP-SBGD": (0.001, 0.003, 0.01), "BinaryConnect": (0.003, 0.01, 0.03)}
"""Of fine-tuning, in units of the initial range."""
TUNED = ("mlp", "cnn", "gpt", "fashion-mlp", "fashion-cnn")
"""Subjects of part 2."""
REAL = {"lr": 3e-4, "weight_decay": 0.0}
"""AdamW's options for scales, biases and norms in fine-tuning, of both methods."""
REAL_FRESH = {"lr": 1e-3, "weight_decay": 0.0}
"""The same from scratch."""
RECIPES = {
    (2, "QP-SBGD"): [(0.001, "auto"), (0.0005, 0.3), (0.001, 0.3), (0.001, 0.03)],
    (1, "QP-SBGD"): [(0.001, "auto"), (0.001, 0.3), (0.003, 0.3), (0.003, 0.03)],
    (2, "BinaryConnect"): [(0.005, "auto"), (0.015, "auto")],
    (1, "BinaryConnect"): [(0.005, "auto"), (0.015, "auto")],
}
"""Part 3, per number of bits and optimiser: rates in units of the initial range, and the ridge's δ."""
DISTILLED = 600
"""Steps of distillation."""


@cache
def reference(name):
    """A subject's float model, once per process."""
    return ALL[name].network()


def chosen_layers(model):
    """All linear layers and convolutions but the head of the GPT."""
    named = model.named_modules()
    return [name for name, module in named if isinstance(module, nn.Linear | nn.Conv2d) and name != "head"]


def binarize_job(job):
    """The binarised model of a job, and its row of results."""
    subject, model = ALL[job["subject"]], reference(job["subject"])
    batches = subject.calibration(job["size"] or subject.size, job["seed"])
    layers = chosen_layers(model)
    start = clock()
    if job["method"] == PLAIN:
        made, more = round_weights(model, layers, batches), {}
    else:
        options = SEARCHES[job.get("start", job["method"])]
        shared = {"layers": layers, "seed": job["seed"]}
        result = binarize(model, batches, bits=job["bits"], **shared, **options)
        made, lost = result.model, [row.lost for row in result.report.rows]
        more = {"lost": sum(lost) / len(lost), "bits per weight": result.report.bits_per_weight}
    return made.eval(), {**more, "binarize seconds": clock() - start}


@torch.no_grad()
def round_weights(model, layers, batches):
    """Signs times the mean size of an output's weights, as float weights, with batch norm estimated anew."""
    model = copy.deepcopy(model)
    for name in layers:
        weight = model.get_submodule(name).weight
        size = weight.abs().flatten(1).mean(1).reshape(-1, *(1,) * (weight.dim() - 1))
        weight.copy_(torch.where(weight >= 0, size, -size))
    update_bn(batches, model)
    return model


def start_of(job):
    """The network that training begins with: binarised, or fresh with the same layers binary."""
    if job["start"] != "scratch":
        return binarize_job(job)
    torch.manual_seed(job["seed"])
    model = SUBJECTS[job["subject"]].build().to(DEVICE)
    return convert(model, skip=["head"] if hasattr(model, "head") else []), {}


@contextmanager
def fast():
    """Products in training with TF32; calibration and scores are in full single precision."""
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


def tune(job):
    """Training with labels, from the start that the job names."""
    subject = SUBJECTS[job["subject"]]
    model, row = start_of(job)
    start = time.perf_counter()
    fresh = job["start"] == "scratch"
    options = {} if fresh else {"lr": job["lr"], "relative": True}
    if not fresh and job["method"] == "QP-SBGD":
        options["clip"] = "range"
    make = OPTIMIZERS[job["method"]]
    optimizer = make(model, steps=job["steps"], real=REAL_FRESH if fresh else REAL, **options)
    batches = subject.batches(job["steps"], job["seed"])
    with fast():
        fit(model, partial(subject.loss, model), rows=batches, optimizers=[optimizer])
    model.eval()
    row["training seconds"] = time.perf_counter() - start
    if job.get("choosing"):
        row["chosen by"] = subject.chosen(model)
    return model, row


def distill_job(job):
    """MiniLM after distillation of its outputs and of the hidden states after every block."""
    subject, teacher = SUBJECTS[job["subject"]], reference(job["subject"])
    model, row = binarize_job(job)
    before = subject.scores(model)
    for table in (model.words, model.places, model.kinds):
        table.weight.requires_grad_(False)
    recipe, start = dict(job["options"]), time.perf_counter()
    steps, lr, blocks = recipe["steps"], recipe["lr"], [f"layers.{k}" for k in range(len(model.layers))]
    options = {"relative": True, "steps": steps, "real": {"lr": REAL_RATE, "weight_decay": 0.0}}
    if job["method"] == "QP-SBGD":
        options |= {"clip": "range", "projection": Ridge(delta=recipe.get("delta", "auto"))}
    optimizer, batches = OPTIMIZERS[job["method"]](model, lr, **options), subject.batches(steps, job["seed"])
    with fast():
        losses = distill(model, teacher, batches, steps=steps, loss=embedding_loss, layers=blocks, optimizer=optimizer)
    row["training seconds"] = time.perf_counter() - start
    row["before"], row["last losses"] = before, sum(losses[-100:]) / len(losses[-100:])
    return model, row


def run(job):
    """The row of one cell."""
    start, model, row = time.perf_counter(), reference(job["subject"]), {}
    if job["method"] != "float":
        makers = {"binarize": binarize_job, "targets": binarize_job, "tune": tune, "distill": distill_job}
        model, row = makers[job["part"]](job)
    scores = ALL[job["subject"]].scores(model)
    return {"job": job, **scores, **row, "seconds": time.perf_counter() - start}


def binarizing_jobs(subject):
    """Part 1."""
    shared = {"part": "binarize", "subject": subject.name, "size": None}
    jobs = [{**shared, "method": "float", "bits": 32, "seed": 0}]
    for seed in range(SEEDS):
        most = 4 if isinstance(subject, Sentences) and seed == 0 else 2
        methods = [(PLAIN, 1), ("rounding", 1), ("rounding", 2)]
        methods += [(method, bits) for method in ("feedback", "search") for bits in range(1, most + 1)]
        if subject.name in TUNED:
            methods += [("no kicks", 1), ("200 kicks", 1)]
        jobs += [{**shared, "method": method, "bits": bits, "seed": seed} for method, bits in methods]
        for size in SIZES if subject.name in TUNED else ():
            if size != subject.size:
                jobs += [{**shared, "method": m, "bits": 1, "seed": seed, "size": size} for m in ("feedback", "search")]
    return jobs


def choosing_jobs(subject):
    """Part 2, the choice of rates."""
    shared = {"part": "tune", "subject": subject.name, "size": None, "bits": 1, "steps": STEPS[-1], "start": "search"}
    rates = [(method, lr) for method in OPTIMIZERS for lr in RATES[method]]
    return [{**shared, "method": method, "lr": lr, "seed": 1000, "choosing": True} for method, lr in rates]


def tuning_jobs(subject, rates):
    """Part 2."""
    shared = {"part": "tune", "subject": subject.name, "size": None, "bits": 1}
    return [
        {**shared, "start": start, "method": method, "steps": steps, "seed": seed, "lr": lr}
        for method in OPTIMIZERS
        for start, lr in (("search", rates[method]), ("scratch", None))
        for steps in STEPS
        for seed in range(SEEDS)
    ]


def best_rates(rows):
    """Per method, the rate with the best score on training data."""
    by_method = {method: [row for row in rows if row["job"]["method"] == method] for method in OPTIMIZERS}
    return {method: max(runs, key=lambda row: row["chosen by"])["job"]["lr"] for method, runs in by_method.items()}


def distilling_jobs(subject):
    """Part 3."""
    shared = {"part": "distill", "subject": subject.name, "size": None, "seed": 0, "start": "search"}
    jobs = []
    for (bits, method), recipes in RECIPES.items():
        for lr, delta in recipes:
            options = {"steps": DISTILLED, "layers": True, "lr": lr, **({} if delta == "auto" else {"delta": delta})}
            jobs.append({**shared, "bits": bits, "method": method, "options": options})
    return jobs


def time_job(job):
    """Part 4: the second of two calls, so that nothing is loaded or compiled in it."""
    for _ in range(2):
        _, row = binarize_job(job)
    return {"job": job, **row}


def timing_jobs():
    shared = {"part": "times", "size": None, "bits": 1, "seed": 0}
    shared |= {"device": DEVICE, "threads": torch.get_num_threads()}
    return [shared | {"subject": name, "method": how} for name in ("mlp", "gpt") for how in ("feedback", "search")]


def targets_jobs(seed):
    """Part 5."""
    ways = [f"{method}{more}" for method in ("feedback", "search") for more in ("", ", float targets")]
    jobs = []
    for subject in BY_TARGETS.values():
        shared = {"part": "targets", "subject": subject.name, "size": None}
        jobs.append({**shared, "method": "float", "bits": 32, "seed": 0})
        jobs += [{**shared, "method": way, "bits": bits, "seed": seed} for way in ways for bits in (1, 2)]
        for size in (size for size in SIZES if size < subject.size):
            jobs += [{**shared, "method": way, "bits": 1, "seed": seed, "size": size} for way in ways[2:]]
    return jobs


def main():
    flag = {"action": "store_true"}
    given, rows = arguments("binarize", times=flag, targets=flag)
    if given.targets:
        rows.measured(run, [job for seed in range(SEEDS) for job in targets_jobs(seed)])
        return
    if given.times:
        rows.again = True
        rows.measured(time_job, timing_jobs())
        return
    names = given.only({"subject": name} for name in SUBJECTS if not name.startswith("fashion"))
    subjects = [SUBJECTS[job["subject"]] for job in names]
    for subject in subjects:
        reference(subject.name)  # trained here, before processes ask for it
    texts, tuned = [s for s in subjects if isinstance(s, Sentences)], [s for s in subjects if s.name in TUNED]
    jobs = [job for subject in texts for job in distilling_jobs(subject)]
    jobs += [job for subject in tuned for job in choosing_jobs(subject)]
    jobs += [job for subject in subjects for job in binarizing_jobs(subject)]
    rows.measured(run, jobs)  # together, so that no process waits
    jobs = []
    for subject in tuned:
        jobs += tuning_jobs(subject, best_rates(rows.measured(run, choosing_jobs(subject))))
    rows.measured(run, jobs)


if __name__ == "__main__":
    main()
