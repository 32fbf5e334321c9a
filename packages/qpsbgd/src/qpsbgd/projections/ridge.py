"""The ridge projection: the paper's relaxed map (Prop. 1) for a whole batch, over the reals."""

from collections.abc import Sequence
from dataclasses import dataclass

from qpsbgd.projections.protocol import Capabilities, Direction, LayerInputs
from qpsbgd.projections.system import System, SystemProjection, SystemState, invert, unit_rms


@dataclass(frozen=True)
class Ridge(SystemProjection):
    """G = A⁻¹ S̄, divided by its root mean square over the layer: many bits per entry instead of one.

    Prop. 1 relaxes {−1, +1}ⁿ to ℝⁿ, where one row's projection is its gradient. For many rows it is a least-squares
    problem, with a ridge δ because batches are noisy. See `SystemProjection` for the options.
    """

    name = "ridge"
    capabilities = Capabilities(state=SystemState, sharded={"gradient": 0})

    def capturable(self, inputs: LayerInputs) -> bool:
        """Once A⁻¹ is there; with new moments if its successors are sure to exist."""
        return inputs.state.inverse is not None and (inputs.record is None or self.sure)

    def solve(self, systems: Sequence[System]) -> list[Direction]:
        """The normalised solutions of the systems."""
        invert(systems)
        return [
            system.direction(
                unit_rms(system.solution(), system.shards, system.size),
                figures=lambda s=system: {"penalty": float(s.state.penalty)},
            )
            for system in systems
        ]
