"""The tapes of an optimiser's layers: which layers record what, and what they have recorded."""

import math
from collections.abc import Iterator

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord, MomentTape, Tape
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection

_READ_AT_ONCE = 2**20
"""Numbers in rows that are read together for their moments, 4 MiB in single precision; all 2,048 rows of a layer with
4,608 inputs are 36. Larger parts raise the peak memory in reproduction/benchmarks/training/step_cost.py."""

_SILENT_STEPS = 10  # steps after which a layer that has never recorded anything is reported


class Recorder:
    """Attaches a tape to every layer, reads and clears them all, and notices layers that record nothing."""

    def __init__(self) -> None:
        self._tapes: dict[BinaryLayer, MomentTape | Tape] = {}
        self._steps = 0
        self._heard: set[BinaryLayer] = set()
        self._reported: set[BinaryLayer] = set()

    def attach_tape(self, layer: BinaryLayer, projection: Projection | None, *, ranks: int, step: int) -> None:
        """Give a layer the tape that its projection needs in place of any earlier one; none without a projection.

        The projection's `rows` are shared by so many ranks, and `step` is the number of steps made, as it counts them.
        """
        if layer.tape is not None:
            layer.tape.close()
            layer.tape = None
        if projection is None:
            return
        most = None if projection.rows is None else -(-projection.rows // ranks)
        wanted, moments = projection.records_at(step), projection.moments(layer)
        tape: MomentTape | Tape
        if moments is None:
            tape = Tape(layer.weight, most, wanted=wanted)
        else:
            at_once = max(1, _READ_AT_ONCE // (layer.groups * math.prod(layer.weight.shape[1:])))
            tape = MomentTape(moments, most, wanted=wanted, at_once=at_once, sharded=is_sharded(layer.weight))
        layer.tape = self._tapes[layer] = tape

    def check_attached(self, layer: BinaryLayer) -> None:
        """Raise RuntimeError if another optimiser has attached its own tape since."""
        if layer.tape is not self._tapes[layer]:
            raise RuntimeError(f"{layer} is trained by another optimiser, made later; step that, or make a new one")

    @property
    def inside_join(self) -> bool:
        """Whether layers have recorded inside torch's `Join`, where ranks may end before the others."""
        return any(tape.inside_join for tape in self._tapes.values())

    def records_now(self, layer: BinaryLayer) -> bool:
        """Whether the layer records in the present step."""
        return self._tapes[layer].wanted

    def set_records(self, layer: BinaryLayer, value: bool) -> None:
        """Let the layer record from now on, or not."""
        self._tapes[layer].wanted = value

    def read(self, layer: BinaryLayer) -> LayerRecord | LayerMoments | None:
        """All records of a layer since the last `clear` as one; None if there are none."""
        return self._tapes[layer].read()

    def clear(self) -> None:
        """Drop the records of all layers."""
        for tape in self._tapes.values():
            tape.clear()

    def silent(self, moved: set[BinaryLayer]) -> Iterator[str]:
        """A message, given once, for every layer that could be trained but is not, after a step that `moved` others."""
        self._steps += 1
        self._heard |= moved
        for layer in self._tapes:
            if layer in moved or layer in self._reported or not layer.weight.requires_grad:
                continue
            if not layer.training:
                reason = "is in evaluation mode, so it records nothing; call train() on it, or freeze its weight"
            elif layer not in self._heard and self._steps >= _SILENT_STEPS:
                reason = (
                    f"has recorded nothing in {self._steps} steps: either no loss depends on it, or a module reads "
                    "its .weight instead of calling it"
                )
            else:
                continue
            self._reported.add(layer)
            yield f"{layer} is not trained: it {reason}"
