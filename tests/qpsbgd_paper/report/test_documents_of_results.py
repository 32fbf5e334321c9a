import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def documents():
    return runpy.run_path(str(ROOT / "benchmarks" / "documents.py"))


def test_the_page_of_results_is_what_the_results_make(documents):
    assert documents["document"]() == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_of_solvers_is_what_the_measurements_make(documents):
    text = (ROOT / "docs" / "solving.md").read_text(encoding="utf-8")
    assert documents["written"]("docs/solving.md", text) == text


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("<!-- gpu -->\n", ""),
        lambda text: text.replace("<!-- gpu -->", "<!-- tpu -->"),
        lambda text: text + "\n<!-- gpu -->\n<!-- end -->\n",
        lambda text: text.replace("<!-- end -->", "", 1),
        lambda text: "",
    ],
)
def test_a_document_without_its_markers_is_refused(documents, change):
    text = (ROOT / "docs" / "solving.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/solving.md must have each of the blocks layer, layer_inputs, exact,"):
        documents["written"]("docs/solving.md", change(text))


def test_a_document_without_a_block_is_named_also_where_its_markers_are_odd(documents):
    with pytest.raises(ValueError, match=r"docs/annealers\.md must have"):
        documents["written"]("docs/annealers.md", "<!-- cost -->\n<!-- cost -->\n")


def test_every_experiment_shows_a_picture_that_is_kept(documents):
    text = documents["document"]()
    for experiment in documents["EXPERIMENTS"]:
        shown = [name for name in documents["LINK"].findall(text) if name.startswith(experiment)]
        assert shown, experiment
        assert all((ROOT / "docs" / "figures" / name).exists() for name in shown)


def test_the_page_of_the_released_form_is_what_the_results_make(documents):
    text = (ROOT / "docs" / "released.md").read_text(encoding="utf-8")
    assert documents["written"]("docs/released.md", text) == text


def test_the_pictures_of_the_readme_are_kept():
    for name in ("chip.svg", "digits.svg"):
        assert (ROOT / "docs" / "figures" / name).read_text(encoding="utf-8").startswith("<svg")
