import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def documents():
    return runpy.run_path(str(ROOT / "reproduction" / "benchmarks" / "documents.py"))


def test_every_marked_block_of_a_document_is_what_the_measurements_make(documents):
    for name in documents["DOCUMENTS"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert documents["written"](name, text) == text, name


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("<!-- exact -->\n", ""),
        lambda text: text.replace("<!-- exact -->", "<!-- tpu -->"),
        lambda text: text + "\n<!-- exact -->\n<!-- end -->\n",
        lambda text: text.replace("<!-- end -->", "", 1),
        lambda text: "",
    ],
)
def test_a_document_without_its_markers_is_refused(documents, change):
    text = (ROOT / "docs" / "qubo.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/qubo.md must have each of the blocks constraint_problems, dense"):
        documents["written"]("docs/qubo.md", change(text))


def test_a_document_without_a_block_is_named_also_where_its_markers_are_odd(documents):
    with pytest.raises(ValueError, match=r"docs/annealers\.md must have"):
        documents["written"]("docs/annealers.md", "<!-- cost -->\n<!-- cost -->\n")


QUOTED = re.compile(r"(−?[\d.]+)( ?%| ms| µs)?<!-- from: ([\w./-]+\.json) ([\w/ ]+) -->")
UNITS = {"%": 100, "ms": 1e3, "µs": 1e6, "": 1}


def misquoted(text):
    """The quotations in a text whose number is not the one in the file that it names, and those that cannot be read."""
    found = []
    for number, unit, file, path in QUOTED.findall(text):
        value = json.loads((ROOT / "reproduction" / "results" / file).read_text(encoding="utf-8"))
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        decimals = len(number.partition(".")[2])
        if f"{value * UNITS[unit.strip()]:.{decimals}f}" != number.replace("−", "-"):
            found.append(f"{number}{unit} is {value} in {file}, {path}")
    return found + ["not readable"] * (text.count("<!-- from:") - len(QUOTED.findall(text)))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_every_number_that_names_a_file_is_the_one_in_it(path):
    assert misquoted(path.read_text(encoding="utf-8")) == []
