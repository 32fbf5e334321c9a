"""Writes what the documents show of results/: their marked tables, and figures.

    python benchmarks/documents.py

Run it after a measurement, or after a change to the report. To keep the results of `qpsbgd run all` and `qpsbgd demo`
first: python benchmarks/documents.py results/paper results/demo
"""

import re
import sys
from pathlib import Path

from benchmarks import paper_tables
from benchmarks.deploy import deploy_tables
from benchmarks.solvers import solver_tables
from benchmarks.tables import RESULTS, ROOT, results
from benchmarks.training import binarize_tables, family_tables, solver_study_tables, training_tables
from qpsbgd_paper.experiments import EXPERIMENTS
from qpsbgd_paper.framework.checksums import with_checksum, without_checksum
from qpsbgd_paper.report.figures import pictures as pictures_of
from qpsbgd_paper.report.rendering import image

FIGURES = ROOT / "docs" / "figures"
LINK = re.compile(r"figures/([\w.-]+\.svg)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

MODULES = (
    *(paper_tables, deploy_tables, solver_tables),
    *(binarize_tables, family_tables, solver_study_tables, training_tables),
)
MAKERS = {
    name: made
    for module in MODULES
    for name, made in vars(module).items()
    if getattr(made, "__module__", "") == module.__name__
}
"""What makes the block `<!-- name -->` of a page, and, as `name_figure`, the figure name.svg that a page shows."""


def written(text):
    """A page with every marked block made anew.

    Raises:
        ValueError: A marker is unknown, or a block has no end.
    """
    marks = re.findall(r"<!-- (\w+) -->", text)
    if [*marks[1::2]] != ["end"] * (len(marks) // 2) or len(marks) % 2 or not MAKERS.keys() >= set(marks[::2]):
        raise ValueError(
            f"blocks must go from <!-- name --> to <!-- end -->, name a function of {', '.join(MAKERS)}; "
            f"the markers are {', '.join(marks)}"
        )

    def block(match):
        return f"<!-- {match[1]} -->\n{MAKERS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def pictures():
    """Everything in docs/figures that a page shows, by name."""
    linked = {name for path in PAGES for name in LINK.findall(path.read_text(encoding="utf-8"))}
    drawings = {name.removesuffix("_figure"): make for name, make in MAKERS.items() if name.endswith("_figure")}
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
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        if "<!-- end -->" in text:
            path.write_text(written(text), encoding="utf-8")
    made = pictures()
    for path in FIGURES.iterdir():
        if path.name not in made:
            path.unlink()
    for file, content in made.items():
        (FIGURES / file).write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
