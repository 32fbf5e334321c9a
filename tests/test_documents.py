import ast
import gzip
import importlib
import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import qpsbgd
from qpsbgd import cli

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "reproduction" / "benchmarks"
RESULTS = ROOT / "reproduction" / "results"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += [*(ROOT / "packages").glob("*/README.md"), ROOT / "reproduction" / "README.md"]
TUTORIAL = ROOT / "docs" / "tutorial.md"
EXAMPLES_TOOL = importlib.import_module("benchmarks.tools.examples")


def blocks(document):
    """The Python in a document; what needs a token is marked ```python no-run."""
    return re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)


SNIPPETS = [
    (document.name, number, block)
    for document in DOCUMENTS
    if document != TUTORIAL
    for number, block in enumerate(blocks(document))
]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:`torch.jit:DeprecationWarning", str(path)],
        check=True,
        capture_output=True,
        timeout=300,
    )


def assert_alike(printed, kept, *, within):
    """The same words, and numbers that differ by at most 3 % and `within`."""
    number = r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
    assert re.sub(number, "#", printed) == re.sub(number, "#", kept)
    for new, old in zip(re.findall(number, printed), re.findall(number, kept), strict=True):
        new, old = (float(text.replace(",", "").replace("−", "-")) for text in (new, old))
        assert new == pytest.approx(old, rel=0.03, abs=within), f"{printed}\nis kept as\n{kept}"


def shown(notebook):
    """The text of all outputs, and what kinds there are; without times."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    kinds = [sorted(output.get("data", ("stream",))) for output in outputs]
    texts = ("".join(o.get("text") or o["data"].get("text/html") or o["data"]["text/plain"]) for o in outputs)
    return "\n".join(re.sub(r"[\d.]+(?=</td></tr></tbody>)", "", text) for text in texts), kinds


@pytest.mark.slow
@pytest.mark.parametrize("path", list((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_is_kept_with_the_outputs_that_it_has(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept, kinds = shown(notebook)
    assert kept.count("flips per step") == 4 and ["image/png", "text/plain"] in kinds
    printed, now = shown(EXAMPLES_TOOL.ran_notebook(notebook))
    assert now == kinds
    assert_alike(printed, kept, within=0.1)


@pytest.mark.parametrize(("name", "number", "block"), SNIPPETS, ids=[f"{name}-{count}" for name, count, _ in SNIPPETS])
def test_the_code_in_the_documents_runs(name, number, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(block, encoding="utf-8")
    runpy.run_path(str(script))


def test_the_commands_of_the_page_on_qubos_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    qubo = "p qubo 0 2 2 1\n0 0 1\n1 1 -1\n0 1 2\n"
    Path("problem.coo").write_text("0 0 1\n0 1 -2\n", encoding="utf-8")
    Path("G22").write_text("3 3\n1 2 1\n2 3 1\n1 3 1\n", encoding="utf-8")
    Path("bqp1000.txt").write_text("3\n" + "2 2\n1 1 7\n1 2 -9\n" * 3, encoding="utf-8")
    Path("p.qubo.gz").write_bytes(gzip.compress(qubo.encode()))
    text = (ROOT / "docs" / "qubo.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (qpsbgd .*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        monkeypatch.setattr(sys, "argv", line.split())
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0, line
        assert "written to" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tutorial_prints_what_stands_below_its_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = TUTORIAL.read_text(encoding="utf-8")
    printed = EXAMPLES_TOOL.ran_page(kept)
    assert kept.count("```text") >= 8
    assert_alike(printed, kept, within=0.02)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda path: path.stem)
def test_the_reference_has_every_public_name(path, site):
    name = {"index": "qpsbgd", "qpsbgd": "qpsbgd", "qpsbgd_qubo": "qpsbgd_qubo"}.get(path.stem, f"qpsbgd.{path.stem}")
    pages = [site / "reference" / folder / "index.html" for folder in ("", "qpsbgd", path.stem)]
    text = "".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    package = importlib.import_module(name)
    own = [key for key, value in vars(package).items() if getattr(value, "__module__", None) == name and key[0] != "_"]
    for public in getattr(package, "__all__", own):
        value = getattr(package, public)
        homes = {f"{name}.{public}", f"qpsbgd.{public}", f"{getattr(value, '__module__', '')}.{public}"}
        assert public == "__version__" or any(f'id="{home}"' in text for home in homes), public
    for solver in getattr(package, "SOLVERS", ()):
        assert f'id="{solver}"' in text, solver


@pytest.mark.slow
def test_pages_of_the_site_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r'(?:src|<link[^>]* href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded == [], page


def test_links_out_of_the_documents_lead_to_pages_or_to_the_repository():
    linked = runpy.run_path(str(ROOT / "docs" / "outside.py"))["linked"]
    docs = ROOT / "docs"
    text = (
        "[a](../README.md) [b](../examples/01_train_a_binary_network.py) [c](../reproduction/results) [d](design.md#x)"
    )
    pages = "[a](index.md) [b](examples.md#01_train_a_binary_network) {} [d](design.md#x)"
    assert linked(text, docs, None) == pages.format("c")
    assert linked(text, docs, "https://host/it") == pages.format("[c](https://host/it/blob/HEAD/reproduction/results)")
    assert linked("![x](docs/figures/chip.svg)", ROOT, None) == "![x](figures/chip.svg)"
    assert linked("[x](../tutorial.md)", docs / "reference", None) == "[x](../tutorial.md)"


def test_files_that_the_documents_name_exist():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


SCRIPTS = sorted({*BENCHMARKS.rglob("*.py"), *EXAMPLES})


def in_scripts(kind):
    """Every part of this kind in benchmarks and examples, beside its file."""
    trees = [(path.name, ast.parse(path.read_text(encoding="utf-8"))) for path in SCRIPTS]
    return [(name, node) for name, tree in trees for node in ast.walk(tree) if isinstance(node, kind)]


def test_scripts_import_what_the_packages_have():
    imports = [(name, node) for name, node in in_scripts(ast.ImportFrom) if node.module.startswith("qpsbgd")]
    assert len(imports) > 100
    for script, node in imports:
        module = importlib.import_module(node.module)
        for alias in node.names:
            found = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
            assert found, f"{script} imports {alias.name} from {node.module}"


def test_versions_agree():
    version = qpsbgd.__version__
    for project in (*(ROOT / "packages").iterdir(), ROOT / "reproduction"):
        assert f'version = "{version}"' in (project / "pyproject.toml").read_text(encoding="utf-8"), project.name
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_tables_of_the_documents_are_the_measured_ones():
    documents = runpy.run_path(str(BENCHMARKS / "documents.py"))
    for path in documents["PAGES"]:
        text = path.read_text(encoding="utf-8")
        assert "<!-- end -->" not in text or documents["written"](text) == text, "run benchmarks/documents.py"


GENERATED = re.compile(r"<!-- \w+ -->\n.*?<!-- end -->", re.DOTALL)
DECIMAL = re.compile(r"(?<![\w.,^(−-])\d+\.\d+(?![\w.^])")


def numbers_in(content):
    """All numbers in a result, and the means of its lists."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        plain = [one for one in content if isinstance(one, int | float)]
        yield from [sum(plain) / len(plain)] if plain else []
        for one in content:
            yield from numbers_in(one)
    elif isinstance(content, int | float):
        yield content


def measured_in(section):
    """The numbers in the results that a section names, by file, script or experiment."""
    names = re.findall(r"([\w-]+)(?:_\*)?\.json|benchmarks/\w+/(\w+)\.py|qpsbgd run ([\w-]+)", section)
    for name in {"".join(found) for found in names}:
        for path in {
            *RESULTS.glob(f"{name}.json"),
            *RESULTS.glob(f"{name}_*.json"),
            *RESULTS.glob(f"paper/{name}.json"),
        }:
            yield from numbers_in(json.loads(path.read_text(encoding="utf-8")))


def unmeasured(text):
    """Decimal numbers in the prose of a page that are neither in its tables nor in the results its section names."""
    shown = {number for block in GENERATED.findall(text) for number in re.findall(r"\d+\.\d+", block)}
    prose = re.sub(r"```.*?```|^    .*?$|^\|.*?$", "", GENERATED.sub("", text), flags=re.DOTALL | re.MULTILINE)
    for section in re.split(r"\n(?=#+ )", prose):
        found = [factor * value for value in measured_in(section) for factor in (1, 100, 1000)]
        for number in DECIMAL.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", section)) if found else ():
            digits = len(number.split(".")[1])
            if number not in shown and not any(f"{abs(value):.{digits}f}" == number for value in found):
                yield number


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_numbers_in_prose_are_those_of_the_results_that_a_section_names(path):
    assert not list(unmeasured(path.read_text(encoding="utf-8")))


def test_the_solver_figures_keep_their_promises():
    claims, quality = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("solver_claims", "solver_quality")
    )
    proofs = claims["exact"]["against_gurobi"]
    assert quality["results"] and proofs
    for row in quality["results"]:
        assert row["solvers"]["auto"]["gap"] <= row["solvers"]["dwave SA, 100 sweeps × 4"]["gap"], row["family"]
    for row in proofs:
        assert row["proven"] and row["same_optimum"]
