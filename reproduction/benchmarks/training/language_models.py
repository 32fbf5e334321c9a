"""What do language models lose when they become binary without training, here and by others, at equal stored bits?

    python benchmarks/training/language_models.py [subject=NAME … | part=trained | part=layers] [--processes N]

writes results/language_models.json. Subjects are gpt-12x768, gpt-6x384, minilm and llama.

1. `binarize` beside GPTQ, BiLLM, ARB-LLM and double binary factorisation (binary_rivals.py) and other forms found by
our search (binary_forms.py), on the Llama of tiny_llama.py, character GPTs that are trained here first (kept in the
folder QPSBGD_BINARIZE) and MiniLM (sentences.py); all linear layers but the head. Stored bits per weight count
everything: signs, masks, and scales, means and biases in 16 bits. Rivals as published, fitted to a layer's own outputs,
and with our targets, the float network's outputs. Calibration on 32 windows of 256 for the Llama, 64 for the GPTs, 1024
sentences for MiniLM, the same ones for all. Models, moments and searches are on a GPU where there is one; seconds are
those of a job beside the others.
2. `part=trained`: 100 steps of 8 windows from our binarised Llama, towards the float model's logits by `distill` and
   with labels, by QP-SBGD and straight-through AdamW at several rates.
3. `part=layers`: the share of output energy that single layers of the Llama lose at equal stored bits by the search, by
   double binary factorisation, and by that with its halves solved as QUBO families.
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import copy
import time
from contextlib import nullcontext
from functools import cache, partial
from itertools import chain, product
from pathlib import Path

import torch
from benchmarks.study import arguments as command_line
from benchmarks.training import binary_forms
from benchmarks.training.binarize import SUBJECTS as BINARIZED
from benchmarks.training.binarize import chosen_layers
from benchmarks.training.binarize_networks import GPT, Characters
from benchmarks.training.binary_rivals import NUMBER, arb_rc, billm, double_binary, double_family
from benchmarks.training.tiny_llama import Stories
from benchmarks.training.training_parts import DEVICE, clock
from torch.nn import functional as F

from qpsbgd import QPSBGD, StraightThrough, binarize
from qpsbgd.binarization.distillation import REAL_RATE, distill, logit_loss
from qpsbgd.binarization.layer_fit import fit_layer, target_weights
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.passes import Passes, arguments
from qpsbgd.binarization.planes import Effort
from qpsbgd.nn import BinaryLayer
from qpsbgd_paper.framework.training import fit

big_gpt = partial(GPT, layers=12, width=768, heads=12)
SIZE, STEPS, BATCH = 32, 100, 8
"""Calibration windows of the Llama; steps of training, and windows in each."""
SUBJECTS = {
    subject.name: subject
    for subject in (
        Stories("llama", "Llama of 260,000 parameters", "loss", SIZE),
        Characters("gpt-12x768", "character GPT, 12 layers of 768", "loss", 64, big_gpt, (1500, 6e-4)),
        Characters("gpt-6x384", "character GPT, 6 layers of 384", "loss", 64, partial(GPT, layers=6), (3000, 1e-3)),
        BINARIZED["minilm"],
    )
}
RIVALS = {"BiLLM": billm, "ARB-LLM": arb_rc, "double binary": double_binary, "double binary, families": double_family}
FORMS = {
    "groups of 128": binary_forms.grouped,
    "second vector for 10 %": binary_forms.salient,
    "scales per input": binary_forms.input_scales,
}
GPTQ = {"solver": "feedback", "targets": "own", "bias": False}
OURS = {"GPTQ": GPTQ, "feedback": {"solver": "feedback"}, "search": {}, "search, no bias": {"bias": False}}


def output_norms(model, batches, names):
    """The mean square of the gradients at every layer's outputs, for the model's own loss.

    An encoder has none: for it, of a random linear function of its embeddings.
    """
    norms, hooks, draw = dict.fromkeys(names, 0.0), [], torch.Generator().manual_seed(0)
    for name in names:

        def forward(module, args, output, name=name):
            def backward(grad):
                norms[name] = norms[name] + grad.double().square().flatten(0, -2).mean(0)

            output.register_hook(backward)

        hooks.append(model.get_submodule(name).register_forward_hook(forward))
    for batch in chain.from_iterable(whole.split(16) for whole in batches):  # as much as a backward pass can keep
        output = model(batch)
        output = getattr(output, "logits", output)
        if output.dim() == 3:
            loss = F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        else:
            loss = (output * torch.randn(output.shape, generator=draw).to(output)).sum()
        loss.backward()
    for hook in hooks:
        hook.remove()
    return norms


def layer_bits(bits, name):
    """A layer's bits: the same for all layers, or by the last part of their names, with a number for all "others"."""
    return bits.get(name.rpartition(".")[2], bits["others"]) if isinstance(bits, dict) else bits


def approximate_layers(model, batches, names, rival, *, bits, norms, targets):
    """A copy with the weights of these layers as a rival has them, one after the other, and the bits it stores.

    Inputs are those in the partly binary network.
    """
    model, stored = copy.deepcopy(model), 0
    data = [arguments(model, batch) for batch in batches]
    passes, reference = Passes(model, data), Passes(copy.deepcopy(model), data)
    calls, layers = passes.calls(), {model.get_submodule(name): name for name in names}
    reference.calls()
    with passes.watching(), reference.watching() if targets else nullcontext(), torch.no_grad():
        for layer in (module for module in calls if module in layers):
            moments = Moments(1, layer.in_features)
            for number in range(len(data)):
                seen = passes.layer_call(layer, number, sums=targets)
                wanted = reference.targets(layers[layer], number, seen).flatten(0, -2) if targets else None
                if wanted is not None and layer.bias is not None:
                    wanted = wanted - layer.bias
                moments.add(seen.x.flatten(0, -2), wanted)
            metric, weights = moments.metric(centred=False), layer.weight.double().T[None]
            if targets:
                weights = target_weights(metric, moments.cross(centred=False), weights)
            name = layers[layer]
            close, more = rival(weights[0].T, metric[0], layer_bits(bits, name), norms[name])
            layer.weight.copy_(close)
            stored += more + NUMBER * (0 if layer.bias is None else layer.bias.numel())
    return model, stored


def stored_bits(model):
    """Bits of the binary layers: signs, scales and biases."""
    layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
    return sum(
        layer.weight.numel() + NUMBER * sum(p.numel() for p in (layer.scale, layer.bias) if p is not None)
        for layer in layers
    )


def peak_memory(reset=False):
    """Bytes that the process has held at most since the last reset, on the GPU or else as Linux alone knows."""
    if DEVICE == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def run(job):
    """The row of a job of any part."""
    return {"trained": train, "layers": layer_job}.get(job.get("part"), approximation)(job)


def approximation(job):
    """Part 1."""
    subject = SUBJECTS[job["subject"]]
    model = subject.network()
    if job["method"] == "float":
        return {"job": job, **subject.scores(model)}
    names, batches = chosen_layers(model), subject.calibration(subject.size, job["seed"])
    if hasattr(model, "lm_head"):
        names.remove("lm_head")
    weights = sum(model.get_submodule(name).weight.numel() for name in names)
    before, start = peak_memory(reset=True), clock()
    if job["method"] in OURS:
        bits, options = {name: layer_bits(job["bits"], name) for name in names}, OURS[job["method"]]
        made = binarize(model, batches, bits=bits, layers=names, seed=job["seed"], **options).model
        stored = stored_bits(made)
    else:
        wanted, targets = job["bits"], job["targets"] == "float"
        norms = output_norms(model, batches, names)
        made, stored = approximate_layers(
            model, batches, names, (RIVALS | FORMS)[job["method"]], bits=wanted, norms=norms, targets=targets
        )
    spent, memory = clock() - start, peak_memory() - before
    return {"job": job, **subject.scores(made), "stored": stored / weights, "seconds": spent, "memory": memory}


@cache
def start(bits):
    """Our binarised Llama."""
    subject = SUBJECTS["llama"]
    return binarize(subject.network(), subject.calibration(SIZE, 0), bits=bits).model


def train(job):
    """Part 2; embeddings and head stay as they are."""
    subject = Stories("llama", "", "loss", batch=BATCH)
    model, real = copy.deepcopy(start(job["bits"])), {"lr": REAL_RATE, "weight_decay": 0.0}
    model.model.embed_tokens.weight.requires_grad_(False)
    before, begun = subject.scores(model), clock()
    if job["method"] == "straight-through":
        optimizer = StraightThrough(model, job["lr"], steps=STEPS, real=real, weight_decay=0.0)
    else:
        options = {"projection": job["method"], "relative": True, "clip": "range"}
        optimizer = QPSBGD(model, job["lr"], steps=STEPS, real=real, **options)
    batches = subject.batches(STEPS, 1 + job["seed"])
    if job["loss"] == "labels":
        fit(model, partial(subject.loss, model), rows=batches, optimizers=[optimizer])
    else:
        distill(model, subject.network(), batches, steps=STEPS, loss=logit_loss, optimizer=optimizer)
    return {"job": job, **subject.scores(model.eval()), "before": before["loss"], "seconds": clock() - begun}


def trainings():
    """Part 2, the most telling first."""
    ridge = {1: (0.01, 0.003, 0.001), 2: (0.003, 0.001, 0.01, 0.03)}
    straight_through = {1: (0.003,), 2: (0.001, 0.003, 0.01)}
    for bits, loss in product((1, 2), ("logits", "labels")):
        shared = {"part": "trained", "loss": loss, "bits": bits, "seed": 0}
        yield from ({**shared, "method": "ridge", "lr": lr} for lr in ridge[bits])
        yield from ({**shared, "method": "straight-through", "lr": lr} for lr in straight_through[bits])


def jobs():
    """Ours at one to three bits, BiLLM and ARB-LLM as they are, double binary factorisation near our stored bits."""
    for name, near in (("gpt-12x768", (1.02, 2.04)), ("gpt-6x384", (1.04, 2.07)), ("minilm", (1.04, 2.07))):
        yield from wide_jobs({"subject": name, "seed": 0}, near)
    shared = {"subject": "llama", "seed": 0}
    yield {**shared, "method": "float", "bits": 32}
    yield from ({**shared, "method": method, "bits": bits} for method in OURS for bits in (1, 2, 3))
    for targets in ("own", "float"):
        yield from ({**shared, "method": way, "bits": 1, "targets": targets} for way in ("BiLLM", "ARB-LLM"))
        yield from ({**shared, "method": "double binary", "bits": b, "targets": targets} for b in (1.5, 2.75))
    forms = [form for form in FORMS if form != "groups of 128"]  # wider than most of the layers
    yield from ({**shared, "method": f, "bits": b, "targets": "float"} for b in (1, 2) for f in forms)
    form = {**shared, "method": "double binary, families", "targets": "float"}
    yield from ({**form, "bits": bits} for bits in (1.424, 2.636))
    ours = {"k_proj": 3, "v_proj": 3, "others": 2}  # two heads share each of these keys and values
    wider = {"k_proj": 4.0, "v_proj": 4.0, "others": 2.63}  # as much stored as ours, layer by layer
    yield {**shared, "method": "search, no bias", "bits": ours}
    rival = {**shared, "method": "double binary", "targets": "float"}
    for seed in range(3):
        yield from ({**shared, "seed": seed, "method": "search", "bits": bits} for bits in (2, ours))
        yield from ({**rival, "seed": seed, "bits": bits} for bits in (2.75, wider))


def wide_jobs(shared, near):
    """Jobs of a network whose layers have a few groups of 128 inputs each, those that take long first."""
    yield {**shared, "method": "float", "bits": 32}
    for bits, double in zip((2, 1), near[::-1], strict=True):
        yield {**shared, "method": "search", "bits": bits}
        rival = {**shared, "method": "double binary", "bits": double}
        yield from ({**rival, "targets": targets} for targets in ("float", "own"))
        yield {**shared, "method": "groups of 128", "bits": bits, "targets": "float"}
    for targets, method in product(("own", "float"), ("BiLLM", "ARB-LLM")):
        yield {**shared, "method": method, "bits": 1, "targets": targets}
    yield from ({**shared, "method": method, "bits": bits} for bits in (1, 2) for method in ("GPTQ", "feedback"))
    yield from ({**shared, "method": method, "bits": 3} for method in ("search", "GPTQ"))  # beside BiLLM's stored bits


def layer_job(job):
    """Part 3, of a layer in the float model."""
    subject = SUBJECTS["llama"]
    model = subject.network()
    layer = model.get_submodule(job["layer"])
    moments = Moments(1, layer.in_features)
    hook = layer.register_forward_pre_hook(lambda module, args: moments.add(args[0].flatten(0, -2)))
    with torch.no_grad():
        for batch in subject.calibration(SIZE, 0):
            model(batch)
    hook.remove()
    weights, metric = layer.weight.detach().double(), moments.metric(centred=False)[0]
    stored, start = job["bits"] * (1 + NUMBER / layer.in_features), time.process_time()
    if job["method"] == "search":
        effort = Effort("kicks", 40, torch.Generator().manual_seed(0))
        fit = fit_layer(metric[None].clone(), weights.T[None].contiguous(), bits=job["bits"], effort=effort)
        close = weights - fit.errors[0].T
    else:
        ones = torch.ones(len(weights), dtype=torch.float64)
        close, bits = RIVALS[job["method"]](weights, metric, stored, ones)
        stored = bits / weights.numel()
    seconds, rest = time.process_time() - start, weights - close
    lost = (rest @ metric * rest).sum() / (weights @ metric * weights).sum()
    return {"job": job, "stored": stored, "lost": float(lost), "seconds": seconds}


def layer_jobs():
    for name in ("self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"):
        for bits, method in product((1, 2), ("search", "double binary", "double binary, families")):
            yield {"part": "layers", "layer": f"model.layers.2.{name}", "bits": bits, "method": method}


def prepare(name):
    """Train and keep a subject's network."""
    SUBJECTS[name].network()


def main():
    given, rows = command_line("language_models")
    wanted = given.only([*jobs(), *trainings(), *layer_jobs()])
    subjects = [SUBJECTS[name] for name in dict.fromkeys(job["subject"] for job in wanted if "subject" in job)]
    missing = [each.name for each in subjects if isinstance(each, Characters) and not each.path.exists()]
    if missing:  # before processes ask for them
        with torch.multiprocessing.get_context("spawn").Pool(min(given.processes, len(missing))) as pool:
            pool.map(prepare, missing, chunksize=1)
    rows.measured(run, wanted)


if __name__ == "__main__":
    main()
