import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")

from qpsbgd_paper.report.figures import figures
from qpsbgd_paper.report.page import page
from qpsbgd_paper.report.styles import KNOWN

HOSTILE = """</script><b id="evil">&'"<!--"""
EXTERNAL = re.compile(
    r"""(?:(?:src|href|action)\s*=|url\()\s*(?!["']?(?:\#|data:image/png))\S|@import|\bfetch\(|XMLHttpRequest""",
    re.IGNORECASE,
)


class Elements(HTMLParser):
    """Every element's name, attributes and own text, without what stands in <noscript>."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.text = []
        self.still = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.still = self.still or tag == "noscript"
        if not self.still:
            self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.still = self.still and tag != "noscript"

    def handle_data(self, data):
        if not self.still:
            self.text.append(data)

    def classed(self, name):
        return [attributes for _, attributes in self.found if name in (attributes.get("class") or "").split()]


def embedded(text):
    return [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)]


def test_the_page_refers_to_nothing_outside(toy):
    text = page([toy], title="T", intro="See https://example.org/paper.")
    scripts = re.sub(r"http://www.w3.org/\d+/\w+", "", text)
    assert not EXTERNAL.search(scripts)
    assert "<link" not in text and "<img" not in text and "<iframe" not in text


def test_every_experiment_has_a_section_and_every_claim_stands_once_with_its_badge(toy):
    other = {**toy, "experiment": "toy", "title": "The same again"}
    found = Elements(page([toy, other], title="T"))
    sections = [attributes["id"] for tag, attributes in found.found if tag == "section"]
    assert sections == ["overview", "toy", "toy-2"]
    links = [attributes["href"].removeprefix("#") for tag, attributes in found.found if tag == "a"]
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(links) <= set(ids)
    assert {"toy-claim-1", "toy-claim-2", "toy-2-claim-1", "toy-2-claim-2"} <= set(ids)
    badges = [attributes["class"] for attributes in found.classed("badge")]
    # Two experiments with a yes and a no each, and once each in the counts.
    assert badges.count("badge yes") == badges.count("badge no") == 4
    assert "".join(found.text).count("QP-SBGD reaches 0.95") == 2


def test_one_sentence_and_one_picture_stand_first_and_the_machine_last(toy):
    text = page([toy], title="T", intro="What words mean.")
    begin = text.index(
        '<p class="lead">Of 1 statements of the paper, each judged on its own form and setting, 1 hold here.</p>'
    )
    assert begin < text.index("<svg") < text.index("What words mean.") < text.index('id="toy"')
    assert text.index("</section>") < text.index("<footer>Made with python 3.11, machine abacus.</footer>")


def test_panels_of_one_kind_have_one_scale(make_row, make_experiment):
    cases = {
        name: [make_row("qpsbgd", "Ours", kind="ours", mean=(0.1, high))] for name, high in (("a", 0.5), ("b", 0.9))
    }
    (series,) = embedded(page([make_experiment(cases)], title="T"))[0]["series"]
    first, second = (panel["y"] for group in series["groups"] for panel in group["panels"])
    assert first == second and first[1] > 0.9


def test_what_the_paper_says_stands_beside_what_was_found_here(toy):
    assert "The paper: " not in page([toy], title="T")
    assert "<p>The paper: (G) is best.</p>" in page([{**toy, "paper": "(G) is best."}], title="T")


def test_tables_options_command_and_versions_are_there(toy):
    text = html.unescape(page([toy], title="T"))
    for part in (
        'class="best">0.850 ± 0.071<',
        'class="quoted">0.66<',
        "lr 0.03, clip none",
        "qpsbgd run toy",
        "abacus",
    ):
        assert part in text
    assert "2 seeds" in text


def test_a_page_without_claims_or_curves_is_still_a_page(toy):
    bare = {"experiment": "bare", "title": "Bare", "tables": [{"title": "Every run", "head": ["run"], "body": [["1"]]}]}
    found = Elements(page([bare, {**toy, "claims": [], "series": []}], title="T"))
    assert not found.classed("badge") and not found.classed("curves")
    assert "Every run" in found.text


def test_a_study_has_its_figures_with_titles_and_captions_and_its_table(study):
    again = {**study, "experiment": "again"}
    text = page([study, again], title="T")
    found = Elements(text)
    assert text.count("<svg") == 5 and len(found.classed("drawing")) == 5, "with the picture of verdicts"
    for part in ("a | graph", "Two *spins*.", "A map", "Rows", "It fits"):
        assert part in "".join(found.text)
    assert "Made with python 3.11." in text and "10 s of processor time" in text
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not EXTERNAL.search(re.sub(r"http://www.w3.org/\d+/\w+", "", text))


def test_hostile_names_are_only_text(toy):
    toy.update(title=HOSTILE, about=HOSTILE, command=HOSTILE, paper=HOSTILE, test=HOSTILE)
    toy["made with"] = {HOSTILE: HOSTILE}
    toy["tables"] = [{"title": HOSTILE, "head": [HOSTILE], "body": [[HOSTILE]]}]
    toy["series"][0].update(label=HOSTILE, x_label=HOSTILE)
    toy["metrics"][0]["label"] = HOSTILE
    toy["chosen by"] = HOSTILE
    for claim in toy["claims"]:
        claim.update(text=HOSTILE, detail=HOSTILE, verdict=HOSTILE, source=HOSTILE)
    for row in toy["cases"][0]["rows"]:
        row.update(label=HOSTILE, options={HOSTILE: HOSTILE}, reported=HOSTILE)
    toy["cases"][0]["label"] = HOSTILE
    panel = {"title": HOSTILE, "nodes": [[0, 0]], "labels": [HOSTILE]}
    toy["figures"] = [
        {"name": "x", "title": HOSTILE, "caption": HOSTILE, "kind": "graphs", "panels": [panel]},
    ]
    text = page([toy], title=HOSTILE, intro=HOSTILE)
    assert '<b id="evil">' not in text and "<!--" not in text
    assert not [attributes for _, attributes in Elements(text).found if attributes.get("id") == "evil"]
    assert embedded(text)[0]["lines"][0]["label"] == f"{HOSTILE} (qpsbgd)"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "a\\b", "x\0", ""])
def test_names_that_lead_out_of_the_folder_are_refused(name, toy, study):
    study["figures"][0]["name"] = name
    for summary in (study, {**toy, "experiment": name}, {**toy, "series": [{"key": name, "label": "x"}]}):
        for make in (figures, lambda summary: page([summary], title="T")):
            with pytest.raises(ValueError, match="cannot be part of a file name"):
                make(summary)


def test_who_won_stands_first_in_every_section_and_in_the_overview(toy, study):
    text = page([toy, study], title="T")
    toy_won = "QP-SBGD won; QP-SBGD, as printed lost to the best baseline."
    assert f"</h2><p><strong>{toy_won}</strong></p>" in text
    assert f'<li><a href="#toy">Title of toy</a>: {toy_won}</li>' in text
    assert '<li><a href="#study">A study</a>: The paper&#x27;s claim holds here.</li>' in text


def test_a_page_without_the_papers_claims_opens_with_its_first_experiment(toy):
    toy["claims"] = []
    text = page([toy, {**toy, "experiment": "other"}], title="T")
    assert text.index("<section") == text.index('<section id="toy"')
    assert text.count("QP-SBGD won; QP-SBGD, as printed lost to the best baseline.") == 2
    assert text.count("<svg") == 2 * len(toy["series"])  # those for browsers without scripts


def test_why_claims_cannot_be_told_stands_beside_their_number(toy):
    toy["claims"][0]["verdict"], toy["undecided"] = "cannot tell", "a <tiny> data set"
    text = page([toy], title="T")
    assert '1 × <span class="badge noise">≈ cannot tell</span></span> <span>(a &lt;tiny&gt; data set)</span>' in text
    toy["claims"][0]["verdict"] = "yes"
    assert "data set" not in page([toy], title="T")


def test_what_was_chosen_with_results_in_view_is_said(toy):
    toy["chosen in view"] = "The <recipe>."
    assert "<p>Chosen with results in view: The &lt;recipe&gt;.</p>" in page([toy], title="T")


def test_curves_that_are_not_finite_are_embedded_as_json(toy):
    toy["cases"][0]["rows"][0]["curves"]["curve"]["mean"] = [0.5, float("nan"), float("inf")]
    toy["cases"][0]["rows"][1]["curves"]["curve"].update(mean=[None] * 3, deviation=[None] * 3)
    toy["cases"][0]["rows"][1]["values"]["score"] = [None, None]
    text = page([toy], title="T")
    panel = embedded(text)[0]["series"][0]["groups"][0]["panels"][0]
    assert panel["curves"][0]["mean"] == [0.5, None, None]
    assert panel["curves"][1]["mean"] == [None] * 3
    assert "<td>diverged</td>" in text


def test_without_a_script_a_still_figure_is_shown(toy):
    still = re.search(r"<noscript>(.*?)</noscript>", page([toy], title="T"), re.DOTALL)
    assert still and "<svg" in still[1] and "BC (SGD)" in still[1]


PROBE = """<!doctype html><body><iframe id="frame" style="width:375px;height:800px;border:0" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById("frame"), found = {{}};
const wait = (time) => new Promise((done) => setTimeout(done, time));
frame.addEventListener("load", async () => {{
  await wait(300);
  const view = frame.contentWindow, inside = frame.contentDocument, svg = inside.querySelector(".plot svg");
  const drawn = (path) => path.getAttribute("d").length > 5;
  const lines = () => [...inside.querySelectorAll("path.line")].filter(drawn).length;
  const box = svg.getBoundingClientRect();
  const point = (type, place) => svg.dispatchEvent(new view.PointerEvent(type, {{ clientX: box.left + box.width * place,
    clientY: box.top + 40, pointerType: "mouse", button: 0, bubbles: true }}));
  const first = () => inside.querySelector("path.line").getAttribute("d");
  const hidden = (node) => view.getComputedStyle(node).display === "none";
  found.lines = lines();
  found.room = inside.documentElement.clientWidth;
  found.width = inside.documentElement.scrollWidth;
  found.tip = [hidden(inside.querySelector(".tip"))];
  point("pointermove", 0.99);
  found.tip.push(hidden(inside.querySelector(".tip")), inside.querySelector(".tip").innerText.replace(/\\s+/g, " "));
  found.widthWithTip = inside.documentElement.scrollWidth;
  const whole = first();
  point("pointerdown", 0.2); point("pointermove", 0.6); point("pointerup", 0.6);
  found.zoomed = first() !== whole;
  svg.dispatchEvent(new view.MouseEvent("dblclick", {{ bubbles: true }}));
  found.reset = first() === whole;
  const entry = inside.querySelector(".legend button");
  entry.click();
  found.hidden = [lines(), entry.getAttribute("aria-pressed")];
  entry.click();
  found.shown = [lines(), entry.getAttribute("aria-pressed")];
  const back = () => view.getComputedStyle(inside.body).backgroundColor, before = back();
  inside.getElementById("theme").click();
  found.theme = before !== back();
  inside.querySelectorAll(".tabs button")[1].click();
  await wait(200);
  found.tab = [lines(), inside.querySelector(".panel-title").textContent];
  document.body.replaceChildren(JSON.stringify(found));
}});
</script></body>"""


@pytest.fixture
def settings_page(make_row, make_experiment):
    """Two settings of two cases, with names too long for a phone."""

    def rows(shift):
        return [
            make_row("qpsbgd", "QP-SBGD (a solver of a rather long name)", kind="ours", mean=[0.5, 0.7, 0.9 + shift]),
            make_row("bc-sgd", "BC (SGD)", mean=[0.5, 0.6, 0.7]),
            make_row("bc-adam", "BC (Adam)", mean=[0.5, None, 0.75]),
        ]

    labels = [(pair, setting) for setting in ("paper", "long") for pair in ("0/2", "1/2")]
    claim = {"text": "QP-SBGD is best " * 6, "source": "paper", "verdict": "cannot tell", "detail": "x" * 120}
    return page(
        [make_experiment({label: rows(0.01 * k) for k, label in enumerate(labels)}, claims=[claim])], title="T" * 60
    )


def in_a_browser(probe, text, folder):
    """What a script beside the page found out about it."""
    path = folder / "probe.html"
    path.write_text(probe.format(page=html.escape(text)), encoding="utf-8")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--virtual-time-budget=6000", "--window-size=800,900", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(html.unescape(re.search(r"<body>(\{.*\})\s*</body>", dom, re.DOTALL)[1]))


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium to run the page's script")


@pytest.mark.slow
@needs_chromium
def test_in_a_browser_curves_are_drawn_explored_and_fit_a_phone(settings_page, tmp_path):
    found = in_a_browser(PROBE, settings_page, tmp_path)
    assert found["lines"] == 6
    assert 350 < found["room"] <= 375  # less a scroll bar
    assert found["width"] == found["widthWithTip"] == found["room"]
    assert found["tip"][:2] == [True, False]
    assert found["tip"][2].startswith("step 2 QP-SBGD (a solver of a rather long name) 0.9 ± 0.1 BC (Adam) 0.75")
    assert found["zoomed"] and found["reset"] and found["theme"]
    assert found["hidden"] == [4, "false"]
    assert found["shown"] == [6, "true"]
    assert found["tab"] == [6, "0/2"]


READ = """<!doctype html><body><iframe id="frame" style="width:375px;height:800px;border:0" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById("frame");
frame.addEventListener("load", async () => {{
  await new Promise((done) => setTimeout(done, 300));
  const inside = frame.contentDocument, all = (name) => [...inside.querySelectorAll(name)];
  const wide = inside.querySelector(".wide"), paint = frame.contentWindow.getComputedStyle(wide);
  document.body.replaceChildren(JSON.stringify({{
    texts: all(".plot").map((plot) => [...plot.querySelectorAll(".tick")].map((text) => text.textContent)),
    arrows: all("path.exit").map((arrow) => [arrow.dataset.line, arrow.getAttribute("fill")]),
    words: all("text.exit").map((text) => text.textContent),
    parts: all("path.line").map((line) => line.getAttribute("d").split("M").length - 1),
    dots: all(".plot circle").length,
    scrolls: wide.scrollWidth > wide.clientWidth,
    shadow: paint.backgroundAttachment,
  }}));
}});
</script></body>"""


@pytest.mark.slow
@needs_chromium
def test_in_a_browser_epochs_are_whole_lines_off_the_scale_are_marked_and_tables_show_that_they_scroll(
    make_row, make_experiment, tmp_path
):
    def rows(epochs):
        found = [
            make_row("qpsbgd", "QP-SBGD", kind="ours", mean=[0.9001, 0.9002, 0.9003][:epochs]),
            make_row("bc-sgd", "BC (SGD)", mean=[0.9001, None, 0.9002][:epochs]),
            make_row("bc-adam", "BC (Adam)", mean=[0.9002, 5.0, 700.0][:epochs]),
            make_row("bc-sign", "BC (signSGD)", mean=[0.9001, 0.9002, 0.9001][:epochs]),
        ]
        for row in found:
            row["curves"]["curve"].update(x=list(range(1, epochs + 1)), deviation=[0.0] * epochs)
        return found

    cases = {f"{epochs} epochs of a long name": rows(epochs) for epochs in (1, 2, 3)}
    summary = make_experiment(cases, series=[{"key": "curve", "label": "accuracy", "x_label": "epoch"}])
    found = in_a_browser(READ, page([summary], title="T"), tmp_path)
    for texts, epochs in zip(found["texts"], (1, 2, 3), strict=True):
        end = texts.index("epoch")
        ticks = texts[:end]
        assert ticks[-epochs:] == [str(epoch) for epoch in range(1, epochs + 1)]
        assert len(set(ticks[:-epochs])) == len(ticks[:-epochs]) >= 2  # of the other axis, all different
    colour = KNOWN["bc-adam"].colour
    assert found["arrows"] == [["2", colour]] * 2 and found["words"] == ["to 5", "to 700"]
    assert 2 in found["parts"] and found["dots"] >= 4
    assert found["scrolls"] and "local" in found["shadow"]
