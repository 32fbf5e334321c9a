"""D-Wave's mocks of its services, made observable; a module of its own because loading dwave.system takes seconds."""

from dwave.samplers import SimulatedAnnealingSampler
from dwave.system import EmbeddingComposite, LeapHybridSampler
from dwave.system.testing import MockDWaveSampler, MockLeapHybridSolver

__all__ = ["Counting", "EmbeddingComposite", "MockDWaveSampler", "Seeded", "Service"]


class Counting(MockDWaveSampler):
    """Keeps the problems and parameters it was sent, and can be made to fail."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sent, self.parameters_sent, self.failures, self.closed = [], [], [], 0

    def sample(self, bqm, **parameters):
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(bqm)
        self.parameters_sent.append(parameters)
        return super().sample(bqm, **parameters)

    def close(self):
        self.closed += 1


class Service(LeapHybridSampler):
    """The real sampler's code on D-Wave's mock of the service; says what it charges, as the service does."""

    def __init__(self, **limits):
        self.solver = MockLeapHybridSolver()
        self.solver.properties = {**MockLeapHybridSolver.properties, **limits}
        self.sent, self.closed = [], 0

    def sample(self, bqm, time_limit=None, *, label=None, **others):  # the mock's solver knows no label
        self.sent.append((bqm.copy(), time_limit))
        answer = super().sample(bqm, time_limit=time_limit, **others)
        answer.info.update({"qpu_access_time": 30e3, "charge_time": time_limit * 1e6, "run_time": time_limit * 1e6})
        return answer

    def close(self):
        self.closed += 1


class Seeded(Service):
    """Answers the same problem in the same way, which the service does not."""

    def _sample(self, bqm, **parameters):
        return SimulatedAnnealingSampler().sample(bqm, num_reads=3, seed=0)
