"""Which start and which search lose least per second when trained layers are binarised: families of real networks.

    python benchmarks/binarize_search.py [--columns 48]

One layer of the MLP and three of all-MiniLM-L6-v2, each with the covariance of its inputs in the float
network; some columns, one thread, CPU seconds. Every line ends with scales refitted. Results: binarize_search.json.
"""

import argparse
import time
from pathlib import Path

import torch
from binarize_networks import SUBJECTS, Absent

from qpsbgd.binarization import kicks, planes
from qpsbgd.binarization.layer_fit import RIDGE
from qpsbgd.binarization.layer_kinds import binary_like, matrices
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.result_files import environment, write_json

RESULT = Path(__file__).parent / "results" / "binarize_search.json"
LAYERS = {
    "mlp": ["0"],
    "minilm": ["layers.0.query", "layers.3.wide", "layers.3.narrow"],
}
LINES = {
    "feedback": ("feedback", 0),
    "feedback, 40 kicks": ("from feedback", 40),
    "feedback, 200 kicks": ("from feedback", 200),
    "within range": ("within range", 0),
    "within range, tabu moves": ("kicks", 0),
    "within range, 40 kicks": ("kicks", 40),
    "within range, 200 kicks": ("kicks", 200),
    "auto, four times": ("auto", 0),
}


def family(model, name, batches, columns):
    """Q and W of a layer, with its inputs in the float network."""
    layer = model.get_submodule(name)
    weights = matrices(layer)[0]
    reader, moments = binary_like(layer, bits=1, bias=False), Moments(1, len(weights))
    hook = layer.register_forward_pre_hook(lambda _, args: moments.add(reader.plain_rows(args[0])))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    hook.remove()
    metric = moments.covariance()[0]
    metric.diagonal().add_(RIDGE * metric.diagonal().mean())
    return metric, weights[:, :columns].contiguous()


def lost(metric, weights, *, bits, way, rounds):
    """The share of output energy that is lost, and the CPU seconds after the rounding."""
    fit = Fit.rounded(metric, weights, bits=bits)
    start = time.process_time()
    effort = Effort(make_solver("auto") if way == "auto" else way, rounds, torch.Generator().manual_seed(0))
    if way in ("from feedback", "within range"):
        list(fit.improve(Effort("feedback", 0, effort.generator)))
        fit._kick(effort) if way == "from feedback" else fit._feed_back_within_range()
    elif way == "auto":
        fit._ask(effort)  # from signs, as a solver of families
    else:
        list(fit.improve(effort))
    seconds = time.process_time() - start
    return (fit.energies().sum() / (weights * (metric @ weights)).sum()).item(), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=48)
    columns = parser.parse_args().columns
    torch.set_num_threads(1)
    rows = []
    for subject, names in LAYERS.items():
        try:
            model, batches = SUBJECTS[subject].network(), SUBJECTS[subject].calibration(512, 0)
        except Absent as error:
            print(f"{subject} is left out: {error}")
            continue
        for name in names:
            metric, weights = family(model, name, batches, columns)
            for bits in (1, 2):
                for line, (way, rounds) in LINES.items():
                    share, seconds = lost(metric, weights, bits=bits, way=way, rounds=rounds)
                    shape = list(weights.shape)
                    row = {"network": subject, "layer": name, "shape": shape, "bits": bits, "line": line}
                    rows.append({**row, "lost": share, "seconds": seconds})
                    print(f"{subject} {name} {bits} bits, {line}: {100 * share:.3f} % in {seconds:.2f} s", flush=True)
    settings = {"columns": columns, "kicked": kicks.KICKED, "sweeps": planes.SWEEPS}
    write_json(RESULT, {"environment": environment(), "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
