"""The experiments: settings as frozen dataclasses, results as JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qpsbgd_paper.framework.experiment import Experiment

EXPERIMENTS: Mapping[str, str] = {
    "logreg": "qpsbgd_paper.experiments.logreg:LogReg",
    "adult-2": "qpsbgd_paper.experiments.adult_convergence:Adult2",
    "adult-10": "qpsbgd_paper.experiments.adult_convergence:Adult10",
    "adult-acc": "qpsbgd_paper.experiments.adult_accuracy:AdultAccuracy",
    "figure3": "qpsbgd_paper.experiments.released:Figure3",
    "released-acc": "qpsbgd_paper.experiments.released:ReleasedThree",
    "mnist": "qpsbgd_paper.experiments.mnist:MnistPairs",
    "karate": "qpsbgd_paper.experiments.karate:Karate",
    "cora": "qpsbgd_paper.experiments.citation:Cora",
    "pubmed": "qpsbgd_paper.experiments.citation:PubMed",
    "cdp": "qpsbgd_paper.experiments.cdp:Cdp",
    "ablation": "qpsbgd_paper.experiments.ablation:Ablation",
    "fixed-points": "qpsbgd_paper.experiments.theorem:FixedPointStudy",
    "rosenbrock": "qpsbgd_paper.experiments.rosenbrock:Rosenbrock",
    "embedding": "qpsbgd_paper.chip_studies.embedding:Embedding",
    "evolution": "qpsbgd_paper.chip_studies.evolution:Evolution",
    "samples": "qpsbgd_paper.chip_studies.read_energies:ReadEnergies",
    "similarity": "qpsbgd_paper.chip_studies.similarity:Similarity",
    "gap": "qpsbgd_paper.chip_studies.gap:Gap",
}
"""The paper's experiments: name → "module:class"; modules are loaded when they are needed."""


def make_experiment(name: str) -> Experiment:
    """The experiment of that name at its full size."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}, or all")
    module, kind = EXPERIMENTS[name].split(":")
    return getattr(import_module(module), kind)()


__all__ = ["EXPERIMENTS", "make_experiment"]
