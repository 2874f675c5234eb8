"""Pictures are well-formed, self-contained, and match the plan."""

from __future__ import annotations

import base64
import gzip
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutback
from cutback import report
from cutback.report import timeline
from cutback.report.folding import Fold, best_fold, folds
from cutback.report.model import CATEGORIES
from cutback.report.svg import nice_ticks

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "img", "link"}


def layers(params, x):
    for w in params:
        x = cutback.nn.functional.gelu(cutback.nn.functional.layer_norm(x) @ w)
    return (x * x).mean()


@pytest.fixture(scope="module")
def step():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((16, 16)) for _ in range(8)]
    x = rng.standard_normal((64, 16))
    step = cutback.compile(layers, budget="0.6x", optimizer=cutback.optim.AdamW())
    step(params, x)
    step.profile(params, x)
    return step


@pytest.fixture(scope="module")
def picture(step):
    return report.read(step.plan)


# ---- folding -------------------------------------------------------------------------------------


def is_repeat(items, fold):
    copies = [
        items[fold.start + c * fold.period : fold.start + (c + 1) * fold.period]
        for c in range(fold.count)
    ]
    return fold.stop <= len(items) and all(copy == copies[0] for copy in copies)


def most_hidden(items, min_period):
    """The number of items hidden by the best repeat, found by trying all of them."""
    best = 0
    for start in range(len(items)):
        for period in range(min_period, (len(items) - start) // 2 + 1):
            count = 2
            while is_repeat(items, Fold(start, period, count)):
                best = max(best, (count - 1) * period)
                count += 1
    return best


sequences = st.lists(st.integers(0, 2), max_size=24)
repeated = st.builds(
    lambda a, b, n, c: a + b * n + c,
    st.lists(st.integers(0, 2), max_size=4),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(1, 4),
    st.lists(st.integers(0, 2), max_size=4),
)


@given(sequences | repeated, st.integers(1, 3))
def test_the_best_fold_hides_most(items, min_period):
    fold = best_fold(items, min_period)
    if fold is None:
        assert most_hidden(items, min_period) == 0
    else:
        assert fold.period >= min_period and fold.count >= 2
        assert is_repeat(items, fold)
        assert (fold.count - 1) * fold.period == most_hidden(items, min_period)


@given(sequences | repeated)
def test_folds_do_not_overlap(items):
    found = folds(items, min_period=1, limit=3)
    assert len(found) <= 3
    assert all(is_repeat(items, fold) for fold in found)
    assert all(a.stop <= b.start for a, b in pairwise(found))


# ---- pictures ------------------------------------------------------------------------------------


def test_the_graph_draws_every_step_once(picture):
    svg = ET.fromstring(report.graph_svg(picture))
    width, height = (float(svg.get(key)) for key in ("width", "height"))
    boxes = svg.findall(f".//{SVG}rect")
    drawn = sum(1 for step in picture.steps if not picture.ops[step].view)
    assert 0 < len(boxes) < drawn  # repeated layers are folded
    for box in boxes:
        x, y, w, h = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
    marks = [t.text for t in svg.iter(f"{SVG}text") if t.text.startswith("\N{MULTIPLICATION SIGN}")]
    assert marks
    assert len(svg.findall(f".//{SVG}g[@class='recomputed']")) > 0
    assert len(svg.findall(f".//{SVG}path")) > 0  # rungs


def test_what_is_kept_has_the_colour_of_what_is_saved(picture):
    svg = ET.fromstring(report.graph_svg(picture))
    y_of = {
        float(box.get("y")): group.get("class")
        for group in svg.iter(f"{SVG}g")
        for box in group.findall(f"{SVG}rect")
        if float(box.get("x")) < 300
    }
    for rung in svg.iter(f"{SVG}path"):
        y = float(re.match(r"M\S+ (\S+)", rung.get("d"))[1]) - 7
        assert y_of[y] == "saved"


def test_the_timeline_adds_up(picture, step):
    by_category = {c: [0] * picture.n_step for c in CATEGORIES}
    made = {(life.made, life.offset) for life in picture.lives}
    for life in picture.lives:  # at its last step, memory that is reused counts for the new life
        is_taken = life.made < life.last and (life.last, life.offset) in made
        end = life.last if is_taken else life.last + 1
        for at in range(life.made, min(end, picture.n_step)):
            by_category[life.category][at] += life.bytes
    total = [sum(row) for row in zip(*by_category.values(), strict=True)]
    assert total == picture.live == step.plan.timeline()
    assert max(total) == step.plan.numbers["live_bytes"]

    svg = ET.fromstring(report.timeline_svg(picture, step.executable.timeline))
    areas = svg.findall(f".//{SVG}polygon")
    assert len(areas) == sum(any(row) for row in by_category.values())
    assert len(svg.findall(f".//{SVG}polyline")) == 1  # what was measured
    rectangles = [r for r in svg.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert len(rectangles) == sum(life.bytes > 0 for life in picture.lives)
    texts = " ".join(t.text for t in svg.iter(f"{SVG}text"))
    assert "peak" in texts and "budget" in texts
    alone = ET.fromstring(report.timeline_svg(picture))
    assert not alone.findall(f".//{SVG}polyline")


def test_no_line_goes_through_the_words_at_the_peak():
    """The label at the peak stays clear of the budget's line just above it."""
    params = [np.ones((64, 64), np.float32)] * 12
    x = np.ones((256, 64), np.float32)
    for share in (0.48, 0.5, 0.55, 0.6, 0.7):
        plan = cutback.plan(layers, params, x, budget=f"{share}x")
        svg = ET.fromstring(report.timeline_svg(report.read(plan)))
        (words,) = [t for t in svg.iter(f"{SVG}text") if (t.text or "").startswith("peak")]
        for line in svg.iter(f"{SVG}line"):
            if line.get("class") == "budget" and words.get("text-anchor") == "start":
                above = float(words.get("y")) - float(line.get("y1"))
                assert above <= -3 or above >= 10, share  # or a letter's height below it


def test_measured_is_planned(step):
    """The program's measured bytes equal its planned ones; groups never need more than the plan."""
    planned = step.plan.timeline()
    measured = step.executable.timeline
    assert len(measured) == len(planned)
    assert max(measured) == step.planned.live_bytes <= max(planned)


# ---- pages ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that elements nest; collects text, links and anything loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.text, self.links, self.loads = [], "", {}, []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "a":
            self.links[attributes["download"]] = attributes["href"]
        self.loads += [attributes[key] for key in ("src", "srcset") if key in attributes]
        assert tag not in ("script", "link", "iframe")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_says_what_is_printed():
    """It names the arena if the budget bounds it, and the smaller arena of the groups."""
    x = np.ones((256, 256), np.float32)
    step = cutback.value_and_grad(lambda x: cutback.tanh(cutback.sin(x) + 1).sum())
    step(x)
    printed = str(step.plan)
    text = Page(report.render_html(
        step.plan, {}, "plan", json.loads(step.executable.text("kernels")),
    )).text  # fmt: skip
    arena, everything = re.match(
        r"arena (\S+ \S+) \(save everything: (\S+ \S+)\)", printed
    ).groups()
    compiled = re.search(r"compiled: an arena of (\S+ \S+),", printed)[1]
    assert compiled != arena
    assert f"{arena} at the peak instead of {everything} (100.0 %)" in text
    assert f"; compiled, an arena of {compiled}." in text
    assert f"operations in groups{compiled}" in text


def test_the_page_stands_alone(step, tmp_path):
    path = tmp_path / "plan.html"
    step.plan.report(path, title="a <b> & c")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert "a <b> & c" in page.text and "a <b>" not in text
    assert not page.loads and "url(" not in text and "@import" not in text
    core = step.plan.core
    for name, kept in (("problem", core.problem), ("plan", core)):
        data = page.links[f"{name}.json.gz"].removeprefix("data:application/gzip;base64,")
        assert gzip.decompress(base64.b64decode(data)).decode() == kept.to_json()
    for entry in step.plan.saved:
        assert entry.name in page.text
    assert "measured peak" in page.text and "dotted: measured" in page.text


def test_notebooks_get_a_fragment(step):
    bundle = step.plan._repr_mimebundle_()
    assert bundle["text/plain"] == str(step.plan)
    page = Page(bundle["text/html"])
    assert "save everything" in page.text and not page.loads and not page.links


def test_notebooks_show_steps_and_what_belongs_to_them(step):
    fresh = cutback.compile(layers)
    assert "none before the first call" in Page(fresh._repr_html_()).text
    shown = Page(step._repr_html_()).text
    assert "save everything" in shown and "peak of the latest run" in shown
    size = report.human_bytes(step.stats.peak_bytes)
    assert size in Page(step.stats._repr_html_()).text and size in shown
    traced = Page(step.traced._repr_html_()).text
    assert "f64[16,16]" in traced and "arguments9" in traced and "layer_norm" in traced


@pytest.mark.parametrize("f", [lambda x: (x * x).sum(), lambda x: x, lambda x: x.reshape(-1)])
@pytest.mark.parametrize("shape", [(3,), (0, 2)])
def test_plans_with_next_to_nothing_in_them(f, shape, tmp_path):
    for argnums in (0, None):
        if argnums == 0 and f(np.ones(shape)).shape:
            continue
        step = cutback.compile(f, argnums=argnums)
        step(np.ones(shape))
        step.plan.report(tmp_path / "plan.html")
        Page((tmp_path / "plan.html").read_text(encoding="utf-8"))
        Page(step.plan._repr_mimebundle_()["text/html"])


def test_a_table_escapes_its_cells():
    page = Page(report.table(("<a>", "n"), [("x & y", 3)], numeric=(1,)))
    assert page.text == "<a>nx & y3"


def test_long_schedules_are_drawn_by_columns():
    live = [i % 7 for i in range(10_000)]
    live[4321] = 100
    spans = timeline.columns(live)
    assert len(spans) == timeline.MOST_COLUMNS
    assert [low for low, _, _ in spans[1:]] == [high for _, high, _ in spans[:-1]]
    assert spans[0][0] == 0 and spans[-1][1] == len(live)
    for low, high, at in spans:
        assert low <= at < high and live[at] == max(live[low:high])
    assert timeline.columns([]) == [] and timeline.columns([5]) == [(0, 1, 0)]
    assert (
        timeline.staircase([(0, 1, 2), (1, 2, 2), (2, 3, 4)]) == "0.0,2.0 2.0,2.0 2.0,4.0 3.0,4.0"
    )


@pytest.mark.very_slow
def test_a_page_of_a_large_graph_is_small(tmp_path):
    graph = Path(__file__).parents[2] / "data" / "graphs" / "gpt_96layers_plain.json.gz"
    plan = cutback.plan(graph, preset="aggressive", device="a100")
    plan.report(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").stat().st_size < 3_000_000
    Page((tmp_path / "plan.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (2**30, "1.00 GiB"), (2**41, "2.00 TiB")],
)
def test_human_bytes(n, text):
    assert report.human_bytes(n) == text


@given(st.floats(0, 2**50, allow_nan=False))
def test_ticks(top):
    ticks = nice_ticks(top)
    assert ticks[0] == 0 and ticks[-1] <= max(top, 0) and 1 <= len(ticks) <= 6
