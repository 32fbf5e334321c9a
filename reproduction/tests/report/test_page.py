import html
import re
from html.parser import HTMLParser

from qpsbgd_paper.report.page import page

HOSTILE = """</script><b id="evil">&'"<!--"""


class Elements(HTMLParser):
    """Names and attributes of all elements, and the text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data if data.strip() else " "

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_loads_nothing_and_runs_no_script(toy, study):
    found = Elements(page([toy, study], title="T", intro="See https://example.org/paper."))
    for tag, attributes in found.found:
        assert tag not in ("script", "link", "iframe", "object")
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href") or value.startswith(("#", "data:image/svg+xml;base64,"))
    assert not re.search(r"url\(|@import", page([toy], title="T"))


def test_every_claim_is_there_with_what_was_measured_and_its_verdict(toy, study):
    text = Elements(page([toy, study], title="T")).text
    lead = "Of 2 statements of the paper, each judged on its own form and setting, 2 hold here."
    first = ("QP-SBGD is best", "yes", "0.85 against 0.75 (BinaryConnect (SGD)), two standard errors 0.05", "the paper")
    second = ("QP-SBGD reaches 0.95", "no", "0.85 ± 0.07, to be reached: 0.95", "our aim")
    for part in (lead, *first, *second, "It fits", "yes", "10 tiles"):
        assert part in text
        text = text[text.index(part) :]


def test_every_experiment_has_a_section_with_figures_tables_options_seeds_command_and_environment(toy, study):
    found = Elements(page([toy, {**toy, "title": "The same again"}, {**study, "paper": "(G) is best."}], title="T"))
    sections = [attributes["id"] for attributes in found.named("section")]
    assert len(sections) == len(set(sections)) == 3
    pictures = [attributes["alt"] for attributes in found.named("img")]
    assert pictures[1:] == ["Accuracy so far", "Accuracy so far", "a | graph", "A map"], (
        "the first one has the verdicts"
    )
    for part in (
        *("0.850 ± 0.071", "lr 0.03, clip none", "qpsbgd run toy", "machine abacus", "2 min of processor time"),
        *("Two *spins*.", "The paper: (G) is best.", "mean ± standard deviation of 2 seeds", "tiles"),
    ):
        assert part in found.text
    assert "0.66" in found.text, "the paper's own figure"


def test_runs_that_diverged_are_said_to_have(toy):
    row = toy["cases"][0]["rows"][1]
    row["curves"]["curve"].update(mean=[None] * 3, deviation=[None] * 3)
    row["values"]["score"] = [None, None]
    assert "<td>diverged</td>" in page([toy], title="T")


def test_hostile_names_are_only_text(toy):
    toy.update(dict.fromkeys(("title", "about", "command", "paper", "test", "chosen by", "chosen in view"), HOSTILE))
    toy.update({"headline": HOSTILE, "undecided": HOSTILE, "made with": {HOSTILE: HOSTILE}})
    toy["tiles"] = [{"value": HOSTILE, "note": HOSTILE}]
    toy["tables"] = [{"title": HOSTILE, "head": [HOSTILE], "body": [[HOSTILE]]}]
    toy["series"][0].update(label=HOSTILE, x_label=HOSTILE)
    toy["metrics"][0]["label"] = HOSTILE
    for claim in toy["claims"]:
        claim.update(text=HOSTILE, detail=HOSTILE, verdict=HOSTILE, source=HOSTILE, number=HOSTILE)
    for row in toy["cases"][0]["rows"]:
        row.update(label=HOSTILE, options={HOSTILE: HOSTILE}, reported=HOSTILE)
    toy["cases"][0]["label"] = HOSTILE
    panel = {"title": HOSTILE, "nodes": [[0, 0]], "labels": [HOSTILE]}
    toy["figures"] = [{"name": "x", "title": HOSTILE, "caption": HOSTILE, "kind": "graphs", "panels": [panel]}]
    text = page([toy], title=HOSTILE, intro=HOSTILE)
    assert '<b id="evil">' not in text and "<!--" not in text
    assert html.unescape(text).count(HOSTILE) > 25
