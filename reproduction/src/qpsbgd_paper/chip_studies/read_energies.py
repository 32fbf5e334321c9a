"""Energies of all reads of an annealer: the paper's histograms, on a simulated chip."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd.qubo import QuboFamily
from qpsbgd_paper.chip_studies import mnist_qubos
from qpsbgd_paper.chip_studies.mnist_qubos import ABOUT, FIRST, FORMS, LAYERS, PRINTED, THIRD, UPDATES, QuboStudy
from qpsbgd_paper.framework.claims import Judged, Source, Verdict, half_interval, of_the_paper, verdict, with_verdict
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.runs import Result
from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU
from qpsbgd_qubo.solvers.exact.exact import Exact

BINS = 30
CHIP = (
    "The chip is the solver virtual-qpu without descent: Pegasus P16 with all qubits, path-integral Monte Carlo "
    f"({VirtualQPU.sweeps} sweeps, {VirtualQPU.slices} slices, field {VirtualQPU.field:g} to 0, temperature "
    f"{VirtualQPU.temperature:g} in units of the largest coupling), control errors {VirtualQPU.h_error:g} of h and "
    f"{VirtualQPU.j_error:g} of J, one spin reversal, chain strength {VirtualQPU.chain_strength:g}, broken chains by "
    "majority."
)
"""The chip that `chip` makes, in words."""


def chip(*, reads: int, size: int) -> VirtualQPU:
    """The simulated chip of the studies, and its reads as they are: nothing that looks at the energy touches them."""
    return VirtualQPU(num_reads=reads, size=size, descent=False, repair="majority")


def read(*, form: str, layer: int, seed: int, updates: Sequence[int], reads: int, size: int) -> Result:
    """Histogram and figures of the reads at these updates; None where the layer has no gradient."""
    solver = chip(reads=reads, size=size)
    families = [
        mnist_qubos.strongest_column(layers[layer]) for layers in mnist_qubos.qubos(form, seed=seed, updates=updates)
    ]
    measured = [None if family is None else _measure(solver, family) for family in families]
    return {"form": form, "layer": layer, "seed": seed, "at": measured}


def _measure(solver: VirtualQPU, family: QuboFamily) -> dict[str, Any]:
    exact = family.to(dtype=family.linear.double().dtype)
    samples = solver.sample(exact)
    energies = mnist_qubos.varying(exact, samples.energies)[:, 0].numpy()
    optimum = float(mnist_qubos.varying(exact, Exact().solve(exact).energies)[0])
    near = 1e-6 * abs(optimum)
    top = max(float(energies.max()), optimum + 0.1 * abs(optimum))
    counts, edges = np.histogram(energies, bins=BINS, range=(optimum - near, top))
    return {
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "counts": counts.tolist(),
        "optimum": optimum,
        "optimal": float((energies <= optimum + near).mean()),
        "mean": float(energies.mean()),
        "worst": float(energies.max()),
        "skewness": skewness(energies),
        "broken": samples.stats["chain_break_fraction"],
    }


def skewness(values: np.ndarray[Any, Any]) -> float | None:
    """Third central moment in units of the standard deviation; None where all values are the same."""
    centred = values - values.mean()
    spread = float(np.sqrt((centred**2).mean()))
    return float((centred**3).mean() / spread**3) if spread > 1e-9 * float(np.abs(values).max()) else None


def _cells(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    if not measured:
        return ["0", *["–"] * 5]

    def above(name: str) -> float:
        return float(np.mean([(at[name] - at["optimum"]) / abs(at["optimum"]) for at in measured]))

    skews = [at["skewness"] for at in measured if at["skewness"] is not None]
    mean = {name: float(np.mean([at[name] for at in measured])) for name in ("optimal", "broken")}
    return [
        f"{len(measured)}",
        f"{mean['optimal']:.0%}",
        f"{above('mean'):.1%}",
        f"{above('worst'):.0%}",
        f"{np.mean(skews):.1f}" if skews else "all the same",
        f"{mean['broken']:.2%}",
    ]


def _tail_claims(name: str, every: Sequence[Mapping[str, Any]], *, source: Source) -> list[Judged]:
    """A tail towards high energies is a positive skewness: judged by its mean and the 95 % interval."""
    skews = [at["skewness"] for at in every if at["skewness"] is not None]
    says: dict[str, Any] = {"number": "figure", "hardware": True, "source": source}
    held: bool | Verdict = False
    detail = "the reads of a QUBO are all the same"
    if len(skews) > 1:
        mean, noise = float(np.mean(skews)), half_interval(skews)
        held, detail = verdict(mean, noise=noise), f"skewness {mean:.2f} ± {noise:.2f} (95 %)"
    negative = float(np.mean([at["mean"] < 0 for at in every]))
    signs = (
        f"{negative:.0%} of {len(every)} means, but only without the constant of the squares, which an annealer does "
        "not see and which is left out here; with it an energy is a sum of squares and never negative"
    )
    return [
        with_verdict(f"Energies have a heavy upper tail ({name})", held, detail, **says),
        with_verdict(f"Energies are mostly negative ({name})", negative > 0.5, signs, **says),
    ]


@dataclass(frozen=True)
class ReadStudy(QuboStudy):
    """A study of the chip's reads of third-layer and first-layer QUBOs during training."""

    small = {"seeds": 2, "reads": 100, "size": 4, "updates": (0, 10)}
    seeds: int = 5
    reads: int = 1000
    size: int = 16
    updates: tuple[int, ...] = UPDATES

    def jobs(self) -> Sequence[Job]:
        settings = {name: value for name, value in vars(self).items() if name != "seeds"}
        return [
            {"form": form, "layer": layer, "seed": seed, **settings, "updates": list(self.updates)}
            for layer in (THIRD, FIRST)
            for form in FORMS
            for seed in range(self.seeds)
        ]

    @staticmethod
    def by_form(results: Sequence[Result]) -> Iterator[tuple[int, str, list[Result], list[Any]]]:
        """Layers and forms, each with its runs and with what they found wherever the layer has a gradient."""
        for layer in (THIRD, FIRST):
            for form in FORMS:
                runs = [run for run in results if (run["layer"], run["form"]) == (layer, form)]
                yield layer, form, runs, [at for run in runs for at in run["at"] if at is not None]


@dataclass(frozen=True)
class ReadEnergies(ReadStudy):
    """1000 reads of third-layer and first-layer QUBOs during training."""

    name = "samples"
    title = "Energies of 1000 reads"
    about = (
        f"{ABOUT} Reads are of the column with the largest gradient: 4 spins in the third layer, 16 in the first. "
        f"{CHIP} Energies leave out what is the same for all spins."
    )
    paper = "Histograms of the third layer at updates 0 to 50: tail-heavy, shifted towards negative numbers."
    work = staticmethod(read)

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        figures, body, claims = [], [], []
        for layer, form, runs, every in self.by_form(results):
            figures.append(self._figure(mnist_qubos.whole_run(runs)))
            for number, update in enumerate(self.updates):
                measured = [run["at"][number] for run in runs if run["at"][number] is not None]
                body.append([LAYERS[layer], form, str(update), *_cells(measured)])
            claims += _tail_claims(f"{LAYERS[layer]}, {form}", every, source=of_the_paper(form == PRINTED))
        head = ["layer", "form", "update", "runs", "optimal reads", "mean above optimum", "worst"]
        head += ["skewness", "broken chains"]
        title = "Reads: mean of all seeds; distances from the optimum in percent of its energy"
        return {"figures": figures, "tables": [{"title": title, "head": head, "body": body}], "claims": claims}

    def _figure(self, run: Mapping[str, Any]) -> dict[str, Any]:
        name = f"{LAYERS[run['layer']]}, {run['form']}"
        measured = [(update, at) for update, at in zip(self.updates, run["at"], strict=True) if at is not None]
        panels = []
        for number, (update, at) in enumerate(measured):
            axes = {"x_label": "energy" if number + 3 >= len(measured) else "", "y_label": "reads", "log": "y"}
            counts = {"edges": at["edges"], "counts": at["counts"]}
            mark = {"x": at["optimum"], "label": "optimum (exact solver)"}
            panels.append({"title": f"update {update}: {at['optimal']:.0%} optimal", **axes, **counts, "mark": mark})
        text = {
            "title": f"Energies of {self.reads} reads, {name}",
            "caption": f"Logarithmic counts. Seed {run['seed']}.",
        }
        look = {"kind": "histograms", "columns": 3}
        return {"name": name.replace(", ", "-").replace(" ", "-"), **text, **look, "panels": panels}
