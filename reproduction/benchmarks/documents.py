"""Writes what the documents show of results/: their marked tables, and figures.

    python benchmarks/documents.py

Run it after a measurement, or after a change to the report. To keep the results of `qpsbgd run all` and `qpsbgd demo`
first: python benchmarks/documents.py results/paper results/demo
"""

import re
import sys
from pathlib import Path

from benchmarks import paper_tables as paper
from benchmarks.deploy import deploy_tables as deploy
from benchmarks.solvers import solver_tables as solving
from benchmarks.tables import RESULTS, ROOT, results
from benchmarks.training import binarize_tables as binarizing
from benchmarks.training import family_tables as families
from benchmarks.training import solver_study_tables as studies
from benchmarks.training import training_tables as training
from qpsbgd_paper.experiments import EXPERIMENTS
from qpsbgd_paper.framework.checksums import with_checksum, without_checksum
from qpsbgd_paper.report.curves import plot_verdicts
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.figures import pictures as pictures_of
from qpsbgd_paper.report.rendering import image

FIGURES = ROOT / "docs" / "figures"
LINK = re.compile(r"figures/([\w.-]+\.svg)")

DOCUMENTS = {
    "README.md": (training.today_shortly,),
    "docs/qubo.md": (
        *(solving.constraint_problems, solving.dense_problems, solving.graph_problems),
        *(solving.layer, solving.exact),
    ),
    "docs/annealers.md": (solving.many, solving.cost, solving.virtual_sizes),
    "docs/training.md": (
        *(
            families.families,
            families.deep_controls,
            training.today,
            training.unseen,
            training.winner,
            training.verdicts,
        ),
        *(training.step_cost, training.large, training.large_binarized),
    ),
    "docs/qubo_training.md": (
        *(studies.qubo_training, studies.trained_starts, families.deep_weights, studies.frozen_features),
    ),
    "docs/deployment.md": (deploy.deployed_times, deploy.deployed_bytes),
    "docs/microcontrollers.md": (deploy.microcontrollers, deploy.resnet8_accuracy),
    "docs/design.md": (paper.attacked,),
    "docs/integrations.md": (training.estimators,),
    "docs/paper.md": (paper.claims, paper.methods, paper.released, paper.drawn, paper.released_qubos),
    "docs/binarize.md": (
        *(binarizing.binarized_targets, binarizing.binarized, binarizing.binarized_times, binarizing.binarized_sizes),
        *(binarizing.pretrained, binarizing.fine_tuned),
        *(binarizing.sentence_bits,),
        *(binarizing.language_models, binarizing.trained_llama),
    ),
}
"""What stands between `<!-- name -->` and `<!-- end -->` in these, by the functions that make it."""

DRAWN = {
    "time_to_target": solving.time_figure,
    "binarize": binarizing.binarize_figure,
    "families": families.families_figure,
    "today": training.today_figure,
    "controls": studies.controls_figure,
    "qubo_training": studies.qubo_training_figure,
    "microcontrollers": deploy.microcontrollers_figure,
    "verdicts": lambda: plot_verdicts(paper.summaries()),
    "chip": lambda: plot_panels(paper.chip_figure()),
}
"""Figures of measurements, by name."""


def written(name, text):
    """A document with every marked block made anew.

    Raises:
        ValueError: A marker is missing, unknown or there twice, or a block has no end.
    """
    makers = {make.__name__: make for make in DOCUMENTS[name]}
    marks = re.findall(r"<!-- (\w+) -->", text)
    wanted = [mark for begin in marks[::2] for mark in (begin, "end")]
    if sorted(marks[::2]) != sorted(makers) or marks != wanted:
        raise ValueError(
            f"{name} must have each of the blocks {', '.join(makers)} once, from <!-- name --> to <!-- end -->; "
            f"its markers are {', '.join(marks)}"
        )

    def block(match):
        return f"<!-- {match[1]} -->\n{makers[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def pictures():
    """Everything in docs/figures that a document shows, by name."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    linked = {name for path in pages for name in LINK.findall(path.read_text(encoding="utf-8"))}
    drawings = dict(DRAWN)
    for name in (*(f"paper/{name}" for name in EXPERIMENTS), "demo/digits"):
        drawings |= {name: picture.draw for name, picture in pictures_of(results(name)).items()}
    return {f"{name}.svg": image(draw, "svg") for name, draw in drawings.items() if f"{name}.svg" in linked}


def keep(folder):
    """Copy the results of a run, in compact form."""
    target = RESULTS / folder.name
    if not (folder.is_dir() and target.is_dir()):
        raise SystemExit(f"{folder} is not a folder of results named paper or demo")
    for path in folder.glob("*.json"):
        if path.stem in (*EXPERIMENTS, "digits"):
            (target / path.name).write_bytes(with_checksum(without_checksum(path.read_bytes())))


def main(folders):
    for folder in folders:
        keep(Path(folder))
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(written(name, text), encoding="utf-8")
    (ROOT / "docs" / "solvers.svg").write_bytes(image(lambda: plot_panels(solving.solvers_figure()), "svg"))
    made = pictures()
    for path in FIGURES.iterdir():
        if path.name not in made:
            path.unlink()
    for file, content in made.items():
        (FIGURES / file).write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
