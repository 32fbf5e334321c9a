"""What do constants of the search and blocks of wide layers change when layers are binarised?

    python benchmarks/training/binarize_search.py [constants | blocks]

constants: each constant of the search halved and doubled, on layers of the MLP and the CNN: what is lost relative to
the default, mean over layers and over one and two bits; on the calibration inputs and on others.
blocks: the MLP's first layer whole and cut into blocks, with one sweep over the blocks and more.

Every part is a key of reproduction/results/binarize_search.json.
"""

import json
import sys
import time
from pathlib import Path
from statistics import geometric_mean
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.training.binarize import SUBJECTS

from qpsbgd import binarize
from qpsbgd.binarization import feedback, kicks, layer_fit, planes, wide_layers
from qpsbgd.binarization.layer_fit import empty_like, fitted, matrices
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.planes import Effort
from qpsbgd_paper.framework.measurements import shown
from qpsbgd_paper.framework.result_files import environment, write_json

RESULT = Path(__file__).parents[2] / "results" / "binarize_search.json"
VARIED = {"mlp": ["0", "2"], "cnn": ["1", "5", "9"]}
"""Layers of the part "constants"; the CNN's first has 9 inputs per output."""
COLUMNS = 48
"""Outputs of these layers that are fitted."""
CONSTANTS = {
    kicks: ("KICKED", "LEAST_KICKED", "PATIENCE", "SHORT_PATIENCE", "TENURE", "MOST_REFITS"),
    planes: ("RIDGES", "STEPS", "SWEEPS"),
    feedback: ("PENALTY",),
    layer_fit: ("RIDGE",),
}


def family(model, name, batches):
    """Q without a ridge and W of a layer, with its inputs in the float network."""
    layer = model.get_submodule(name)
    weights = matrices(layer)[0]
    reader, moments = empty_like(layer, bits=1, bias=False), Moments(1, len(weights))
    hook = layer.register_forward_pre_hook(lambda _, args: moments.add(reader.plain_rows(args[0])))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    hook.remove()
    return moments.metric(centred=True)[0], weights[:, :COLUMNS].contiguous()


def scaled(value, factor):
    """A constant of the search times a factor; whole numbers stay whole and at least 1."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def lost_by_search(seen, unseen, weights, bits):
    """Shares lost on the inputs of a family and on others, and CPU seconds."""
    start = time.process_time()
    effort = Effort("kicks", 40, torch.Generator().manual_seed(0))
    found = fitted(seen[None], weights[None], bits=bits, effort=effort)
    seconds, rest = time.process_time() - start, found.errors[0]
    others = (rest * (unseen @ rest)).sum() / (weights * (unseen @ weights)).sum()
    return found.lost["search"], others.item(), seconds


def constants():
    families = []
    for subject, names in VARIED.items():
        model = SUBJECTS[subject].network()
        draws = [SUBJECTS[subject].calibration(512, seed) for seed in (0, 1)]
        for name in names:
            (seen, weights), (unseen, _) = (family(model, name, batches) for batches in draws)
            families += [(seen, unseen, weights, bits) for bits in (1, 2)]

    def measured():
        return [lost_by_search(*one) for one in families]

    plain = measured()
    for module, name, factor in [(m, name, f) for m, names in CONSTANTS.items() for name in names for f in (0.5, 2.0)]:
        default = getattr(module, name)
        value = scaled(default, factor)
        with patch.object(module, name, value):
            ratios = np.divide(measured(), plain).T.tolist()
        row = {"constant": f"{module.__name__.rpartition('.')[2]}.{name}", "default": default, "value": value}
        row |= dict(zip(("lost", "lost on others", "seconds"), map(geometric_mean, ratios), strict=True))
        yield {**row, "least": min(ratios[0]), "most": max(ratios[0])}


def blocks():
    subject, usual = SUBJECTS["mlp"], wide_layers.SWEEPS
    model, data = subject.network(), subject.calibration(1024, 0)
    for bits in (1, 2):
        for most, sweeps in ((784, None), (196, 1), (196, 2), (196, usual)):
            wide_layers.SWEEPS = sweeps or usual
            start = time.process_time()
            line = binarize(model, data, bits=bits, layers=["0"], most_inputs=most).report.rows[0]
            row = {"bits": bits, "blocks": 784 // most, "sweeps": sweeps, "rounding": line.rounding}
            yield row | {"lost": line.lost, "seconds": time.process_time() - start}


PARTS = {"constants": constants, "blocks": blocks}


def main(part):
    torch.set_num_threads(1)
    rows = shown(PARTS[part]())
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    settings = {"columns": COLUMNS, "kicked": kicks.KICKED, "sweeps": planes.SWEEPS}
    kept[part] = {"environment": environment(), "settings": settings, "rows": rows}
    write_json(RESULT, kept)


if __name__ == "__main__":
    main(sys.argv[1])
