"""Pictures are well-formed, self-contained, and match the plan."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import combinations, groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutback
from cutback import report
from cutback.report import chart, plot, summary, timeline
from cutback.report import layers as layer_names
from cutback.report.folding import Fold, best_fold, folds
from cutback.report.model import CATEGORIES, longest_in_order
from cutback.report.svg import human_bytes, nice_ticks

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "img", "link", "input"}


def layers(params, x):
    for w in params:
        x = cutback.nn.functional.gelu(cutback.nn.functional.layer_norm(x) @ w)
    return (x * x).mean()


def waves(params, x):
    for w in params:
        x = np.sin(x @ w)
    return x.sum()


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
    """Returns the number of items hidden by the best repeat, found by trying all of them."""
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
    assert len(svg.findall(f".//{SVG}polyline[@class='measured']")) == 1
    boxes = [r for r in svg.iter(f"{SVG}rect") if r.get("class").split()[-1] in CATEGORIES]
    assert len(boxes) == sum(life.bytes > 0 for life in picture.lives)
    texts = " ".join(t.text for t in svg.iter(f"{SVG}text"))
    assert "peak" in texts and "budget" in texts
    alone = ET.fromstring(report.timeline_svg(picture))
    assert not alone.findall(f".//{SVG}polyline[@class='measured']")


def test_the_legend_stays_inside_of_the_picture(picture):
    svg = ET.fromstring(report.timeline_svg(picture))
    names = {"saved", "optimizer states and the rest", "saving everything; dashed: the floor"}
    found = [t for t in svg.iter(f"{SVG}text") if t.text in names]
    assert {t.text for t in found} == names
    for t in found:
        assert float(t.get("x")) + 6 * len(t.text) < float(svg.get("width"))
        assert float(t.get("y")) < float(svg.get("height"))


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


def test_outlines_are_those_of_other_plans(picture, step):
    """The grey outlines are those of saving everything, at the steps of this plan, and of the
    floor."""
    whole = step.plan.core.problem.plan(device=step.plan.core.device)
    everything = cutback.Plan.of(whole)
    assert (
        max(picture.everything)
        == whole.numbers["live_bytes"]
        <= step.plan.numbers["save_all_live_bytes"]
    )
    assert (
        report.read(everything).everything == everything.timeline() == report.read(everything).live
    )
    assert picture.floor_bytes <= min(max(picture.live), max(picture.everything))
    svg = report.timeline_svg(picture)
    for size in (max(picture.everything), picture.floor_bytes):
        assert report.human_bytes(size) in svg


@given(st.lists(st.integers(0, 5), max_size=7))
def test_the_longest_part_in_order(numbers):
    found = longest_in_order(numbers)
    part = [numbers[i] for i in found]
    assert found == sorted(set(found)) and part == sorted(part)
    for size in range(len(found) + 1, len(numbers) + 1):
        assert all(list(other) != sorted(other) for other in combinations(numbers, size))


def test_the_outline_of_saving_everything_has_no_dips_of_moved_steps():
    """Some steps run earlier or later in a plan that recomputes; the outline leaves them out."""
    params, x = [np.full((8, 8), 0.1)] * 4, np.ones((64, 8))
    plan = cutback.plan(waves, params, x, budget=0.0)
    picture = report.read(plan)
    whole = report.read(cutback.Plan.of(plan.core.problem.plan(device=plan.core.device)))
    ops = [op for op, again in zip(picture.steps, picture.is_rerun, strict=True) if not again]
    assert ops != whole.steps
    rest = iter(whole.live)  # the outline has sizes of that plan, in its order
    changes = [size for size, _ in groupby(picture.everything)]
    assert all(any(size == other for other in rest) for size in changes)


def test_steps_take_the_time_of_the_plan(picture, step):
    assert len(picture.times_ps) == picture.n_step
    assert sum(picture.times_ps) == step.plan.numbers["time_ps"]
    data = chart.data_of(picture)
    assert data["ps"][0] == 0 and data["ps"][-1] == sum(picture.times_ps)
    assert data["edges"][-1] == picture.n_step
    live = next(values for name, _, values in data["series"] if name == "live")
    assert max(live) == step.plan.numbers["live_bytes"]


def test_what_the_caller_holds_is_the_base(picture, step):
    arguments = sum(
        storage.bytes
        for op in step.plan.parts.ops if "placeholder" in op.flags
        for storage in [step.plan.parts.storages[op.outputs[0].storage]]
    )  # fmt: skip
    assert dict(picture.base)["parameters and inputs"] == arguments
    held = sum(size for _, size in picture.base)
    assert held == max(arguments, step.plan.parts.static_bytes)


# ---- layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "module"),
    [
        ("model.py:12 (layers.0.norm)", "layers.0.norm"),
        ("layers.0.norm", "layers.0.norm"),
        ("model.py:12", ""),
        ("", ""),
    ],
)
def test_modules(location, module):
    assert layer_names.module_of(location) == module


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("bert.encoder.layer.3.output.dense", "bert.encoder.layer.3"),
        ("bert.embeddings.norm", "bert.embeddings"),
        ("head", "head"),
        ("", ""),
    ],
)
def test_blocks(path, block):
    assert layer_names.block_of(path) == block


def test_ops_belong_to_the_layer_of_their_parameters(picture):
    """Each layer is a matrix of a list; ``blocks_of`` finds the eight of them in the forward and in
    the backward."""
    spans = timeline.blocks_of(picture)
    assert [span.first for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert spans[0].first == 0 and spans[-1].stop == picture.n_step
    names = [f"params.{i}" for i in range(8)]
    assert [span.layer for span in spans[:8]] == names
    there = [span.layer for span in spans if span.first < picture.backward_starts]
    back = [span.layer for span in spans if span.first >= picture.backward_starts]
    assert there == names and back[:2] == ["params.6", "params.5"]  # the last one goes on


def test_short_interruptions_of_a_layer_belong_to_it():
    assert layer_names.spans(["a", "a", "b", "a", "c", "c", "c", "a"]) == [
        layer_names.Span("a", 0, 4), layer_names.Span("c", 4, 7), layer_names.Span("a", 7, 8)
    ]  # fmt: skip
    assert layer_names.spans([]) == []


def test_equal_layers_share_a_row():
    rows = [summary.Layer(f"layers.{i}", saved=8 if i < 3 else 9) for i in range(5)]
    groups = summary.folded([summary.Layer("in"), *rows, summary.Layer("out")])
    assert [len(group) for group in groups] == [1, 3, 2, 1]
    assert (
        layer_names.common([layer.name for layer in groups[1]])
        == "layers.0 \N{HORIZONTAL ELLIPSIS} 2"
    )
    assert not layer_names.is_next("a.1", "b.2") and not layer_names.is_next("a.1", "a.3")


def test_the_tables_say_what_the_picture_shows(picture):
    found = summary.layers_of(picture)
    assert sum(layer.saved for layer in found) == sum(
        life.bytes for life in picture.lives if life.category == "saved"
    )
    times = [layer.forward_ps + layer.backward_ps + layer.recomputed_ps for layer in found]
    assert sum(times) == sum(picture.times_ps)
    assert max(layer.peak for layer in found) == max(picture.live)
    assert summary.lives_table(picture, most=1000).count("<tr") == 1 + sum(
        life.bytes > 0 for life in picture.lives
    )


def test_the_line_of_the_budget_bounds_the_curve():
    """The curve is of live bytes: a budget in total is drawn without what is held throughout, and
    one of saved bytes is not drawn."""
    params = [np.full((16, 16), 0.1)] * 4
    x = np.ones((64, 16))
    for measure in ("live", "total", "saved"):
        plan = cutback.plan(layers, params, x, budget="0.7x", measure=measure)
        picture = report.read(plan)
        numbers = picture.numbers
        held = {"live": 0, "total": numbers["total_bytes"] - numbers["live_bytes"]}
        expected = (picture.budget_bytes or 0) - held[measure] if measure in held else None
        assert picture.live_budget == expected
        assert expected is None or max(picture.live) <= expected
        svg = report.timeline_svg(picture)
        assert ('class="budget"' in svg) == (measure != "saved")
        assert f", above {human_bytes(sum(size for _, size in picture.base))} always held" in svg


def test_only_later_runs_count_as_recomputation():
    """The cosines are of the forward, but only the backward needs them: if they run there first,
    they take no extra time."""

    params, x = [np.full((8, 8), 0.1)] * 4, np.ones((64, 8))
    plan = cutback.plan(waves, params, x, budget=0.5)
    picture = report.read(plan)
    late = [
        step
        for step, op in enumerate(picture.steps)
        if step >= picture.backward_starts
        and not picture.ops[op].backward
        and op not in picture.steps[:step]
    ]
    assert late and all(picture.phase(step) == "backward" for step in late)
    extra = sum(layer.recomputed_ps for layer in summary.layers_of(picture))
    assert 0 < extra == picture.numbers["time_ps"] - picture.numbers["once_ps"]


# ---- matplotlib ----------------------------------------------------------------------------------


def test_plots_without_matplotlib_say_what_to_install(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'cutback\[plots\]'"):
        step.plan.plot()


def test_plots(step):
    figure = pytest.importorskip("matplotlib.figure")
    for time in (False, True):
        axes = figure.Figure().subplots()
        assert step.plan.plot(axes, time=time) is axes
        axes.figure.canvas.draw()
        names = [label.get_text() for label in axes.get_legend().get_texts()]
        assert {"saved", "recomputed", "saving everything", "floor", "budget"} <= {*names}
        right = axes.get_xlim()[1]
        end = step.plan.numbers["time_ps"] / 1e9 if time else len(step.plan.core.steps)
        assert right == pytest.approx(end)
    axes = cutback.frontier(step.plan.problem).plot(figure.Figure().subplots())
    axes.figure.canvas.draw()


# ---- pages ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that elements nest; collects text, links and anything loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.text, self.links, self.loads, self.scripts = [], "", {}, [], 0
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
        assert tag not in ("link", "iframe")
        self.scripts += tag == "script"

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_says_what_is_printed():
    """The page names the arena if the budget bounds it, and the smaller arena of the groups."""
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
    compiled = re.search(r"compiled: arena (\S+ \S+),", printed)[1]
    assert compiled != arena
    assert f"{arena} at the peak: everything is saved" in text and everything in text
    assert f"; the compiled arena has {compiled}." in text
    assert f"operations in groups{compiled}" in text


def test_the_page_of_saving_everything_compares_it_with_nothing():
    x = np.ones((64, 64), np.float32)
    plan = cutback.plan(lambda x: cutback.tanh(cutback.sin(x)).sum(), x, budget=1.0)
    text = Page(report.render_html(plan, {}, "plan")).text
    assert " at the peak: everything is saved." in text and "instead of" not in text


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
    assert page.scripts == 2  # the data of the chart, and ours
    digest = base64.b64encode(hashlib.sha256(chart.script().encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_notebooks_get_a_fragment(step):
    bundle = step.plan._repr_mimebundle_()
    assert bundle["text/plain"] == str(step.plan)
    page = Page(bundle["text/html"])
    assert "save everything" in page.text and not page.loads and not page.links
    assert not page.scripts


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
    spans = plot.columns(live)
    assert len(spans) == plot.MOST_COLUMNS
    assert [low for low, _, _ in spans[1:]] == [high for _, high, _ in spans[:-1]]
    assert spans[0][0] == 0 and spans[-1][1] == len(live)
    for low, high, at in spans:
        assert low <= at < high and live[at] == max(live[low:high])
    assert plot.columns([]) == [] and plot.columns([5]) == [(0, 1, 0)]
    assert plot.staircase([(0, 1, 2), (1, 2, 2), (2, 3, 4)]) == "0.0,2.0 2.0,2.0 2.0,4.0 3.0,4.0"


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
