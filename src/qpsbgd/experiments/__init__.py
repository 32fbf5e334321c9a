"""The experiments: settings as frozen dataclasses, results as JSON files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qpsbgd.experiments.experiment import Experiment

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "logreg": "qpsbgd.experiments.logreg:LogReg",
        "adult-2": "qpsbgd.experiments.adult_convergence:Adult2",
        "adult-10": "qpsbgd.experiments.adult_convergence:Adult10",
        "adult-acc": "qpsbgd.experiments.adult_accuracy:AdultAccuracy",
        "mnist": "qpsbgd.experiments.mnist:Mnist",
        "karate": "qpsbgd.experiments.karate:Karate",
        "cora": "qpsbgd.experiments.citation:Cora",
        "pubmed": "qpsbgd.experiments.citation:PubMed",
        "cdp": "qpsbgd.experiments.cdp:Cdp",
        "ablation": "qpsbgd.experiments.ablation:Ablation",
        "rosenbrock": "qpsbgd.experiments.rosenbrock:Rosenbrock",
        "embedding": "qpsbgd.experiments.embedding:Embedding",
        "evolution": "qpsbgd.experiments.evolution:Evolution",
        "samples": "qpsbgd.experiments.samples:Samples",
        "similarity": "qpsbgd.experiments.similarity:Similarity",
        "quality": "qpsbgd.experiments.quality:Quality",
        "gap": "qpsbgd.experiments.gap:Gap",
        "gap-options": "qpsbgd.experiments.gap_options:GapOptions",
    }
)
"""The paper's experiments, and studies beyond them: name → "module:class"; modules are loaded when asked for."""


def make_experiment(name: str) -> Experiment:
    """The experiment of that name at its full size.

    Raises:
        ValueError: The name is unknown.
        ImportError: The experiment needs a package that is not installed; the message has the `pip install` line.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown experiment {name!r}{hint} Choose from {', '.join(EXPERIMENTS)}, or all.")
    module, kind = EXPERIMENTS[name].split(":")
    made: Experiment = getattr(import_module(module), kind)()
    return made


__all__ = ["EXPERIMENTS", "make_experiment"]
