"""Which tape a layer gets for its projection."""

import math

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import MomentTape, Tape
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection

_READ_AT_ONCE = 2**20
"""Numbers in rows that are read together for their moments, 4 MiB in single precision; all 2,048 rows of a layer with
4,608 inputs are 36. Larger parts raise the peak memory in reproduction/benchmarks/training/step_cost.py."""


def make_tape(layer: BinaryLayer, projection: Projection, *, ranks: int, step: int) -> MomentTape | Tape:
    """The tape that a projection needs of a layer, after so many steps; its `rows` are shared by so many ranks."""
    most = None if projection.rows is None else -(-projection.rows // ranks)
    wanted, moments = projection.records_at(step), projection.moments(layer)
    if moments is None:
        return Tape(layer.weight, most, wanted=wanted)
    at_once = max(1, _READ_AT_ONCE // (layer.groups * math.prod(layer.weight.shape[1:])))
    return MomentTape(moments, most, wanted=wanted, at_once=at_once, sharded=is_sharded(layer.weight))
