"""Tests reports in a real browser: zoom, card, search, links between chart and table, narrow
screens, names from a graph that look like HTML. Needs Chromium and Playwright
(``requirements/browser.txt``)."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import numpy as np
import pytest

import cutback
from cutback import report

pytestmark = pytest.mark.very_slow
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHART = "figure.chart > svg"
HOSTILE = "<script>window.hit = 1</script>"
BIDI = "x\N{RIGHT-TO-LEFT OVERRIDE}txt.exe"


def mlp(params, x):
    for w in params["blocks"]:
        x = cutback.nn.functional.gelu(x @ w)
    return (x * x).mean()


@pytest.fixture(scope="module")
def plan():
    rng = np.random.default_rng(0)
    params = {"blocks": [rng.standard_normal((32, 32)) for _ in range(8)]}
    return cutback.plan(mlp, params, rng.standard_normal((64, 32)), budget=0.5)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page of HTML. At the end nothing may have been logged or loaded."""

    @contextmanager
    def opened(html, width=1400, scheme="light"):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        yield page
        page.close()
        assert not said
        assert asked == [path.as_uri()]

    return opened


def place(page, share):
    """Returns the coordinates of a place in the timeline, from 0, its left edge, to 1."""
    box = page.locator("figure.chart svg.over").first.bounding_box()
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def zoom_of(page):
    return float(page.locator("figure.chart").get_attribute("data-zoom") or 1)


def open_all(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def ticks(page):
    return page.locator("figure.chart g.ticks text").all_inner_texts()


def test_zoom(show, plan):
    with show(report.render_html(plan, {}, "zoom")) as page:
        whole = ticks(page)
        page.mouse.move(*place(page, 0.4))
        page.mouse.down()
        page.mouse.move(*place(page, 0.6), steps=4)
        page.mouse.up()
        assert zoom_of(page) == pytest.approx(5, rel=0.05)
        assert ticks(page) != whole
        page.locator(CHART).dblclick(position={"x": 500, "y": 150})
        assert zoom_of(page) == 1 and ticks(page) == whole
        page.get_by_label("zoom in").click()
        assert zoom_of(page) == 2
        page.locator(CHART).focus()
        page.keyboard.press("+")
        assert zoom_of(page) == 4
        page.keyboard.press("0")
        assert zoom_of(page) == 1


def test_the_x_axis_is_steps_or_time(show, plan):
    """An op is as wide as its share of the steps, or of the time."""
    picture = report.read(plan)
    longest = max(range(picture.n_step), key=lambda step: picture.times_ps[step])
    starts = np.cumsum([0, *picture.times_ps])
    shares = {
        "steps": (longest + 0.5) / picture.n_step,
        "time": (starts[longest] + starts[longest + 1]) / 2 / starts[-1],
    }
    with show(report.render_html(plan, {}, "axis")) as page:
        for axis, share in shares.items():
            page.get_by_label("x axis").select_option(axis)
            page.mouse.move(*place(page, share))
            assert f"step {longest}" in page.locator(".card").inner_text()


def test_the_card_says_what_the_plan_says(show, plan):
    picture = report.read(plan)
    peak = max(range(picture.n_step), key=lambda step: picture.live[step])
    op = picture.ops[picture.steps[peak]]
    with show(report.render_html(plan, {}, "card")) as page:
        card = page.locator(".card")
        assert not card.is_visible()
        page.mouse.move(*place(page, (peak + 0.5) / picture.n_step))
        shown = card.inner_text()
        for text in (op.name, op.kind, f"step {peak}", report.human_bytes(picture.live[peak])):
            assert text in shown
        page.mouse.move(5, 5)
        assert not card.is_visible()
        page.locator(CHART).focus()  # arrow keys go on from there
        page.keyboard.press("ArrowRight")
        assert f"step {peak + 1}\n" in card.inner_text()
        page.keyboard.press("PageUp")
        assert f"step {peak - 9}\n" in card.inner_text()


def test_search_and_links(show, plan):
    with show(report.render_html(plan, {}, "search")) as page:
        rows = page.locator("tr[data-s]:not([hidden])")
        n = rows.count()
        page.get_by_role("searchbox").fill(plan.entries[0].name)
        found = rows.count()
        assert 0 < found < n and page.locator("output").inner_text().startswith(f"{found} values")
        assert page.locator("rect.chosen").count() > 0
        page.get_by_role("searchbox").fill("no such name")
        assert rows.count() == 0 and page.locator("rect.chosen").count() == 0
        page.get_by_role("searchbox").fill("")
        assert rows.count() == n and page.locator(".choosing").count() == 0

        storage = page.locator("tr[data-s]").first.get_attribute("data-s")
        page.locator(f'rect[data-s="{storage}"]').first.dispatch_event("click")
        row = page.locator(f'tr[data-s="{storage}"]')
        assert row.is_visible() and "chosen" in row.get_attribute("class")
        page.locator("tr[data-layers]").filter(has_text="blocks.").first.click()
        marked = page.locator("rect.layer.chosen")
        assert marked.count() >= 1
        assert {marked.nth(i).get_attribute("data-t") for i in range(marked.count())} <= {
            f"blocks.{i}" for i in range(8)
        }


@pytest.mark.parametrize("width", [320, 420, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_do_not_scroll_sideways(show, plan, width, scheme, tmp_path):
    other = cutback.Plan.of(plan.core.problem.plan(device=plan.core.device))
    plan.diff(other).report(tmp_path / "diff.html")
    cutback.frontier(plan.problem).report(tmp_path / "frontier.html", peaks=True)
    pages = [(tmp_path / f"{name}.html").read_text("utf-8") for name in ("diff", "frontier")]
    for html in (report.render_html(plan, {}, "a page"), *pages):
        with show(html, width, scheme) as page:
            open_all(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert contrasts(page) > 4.5


def contrasts(page):
    """Returns the least contrast of headings, cells and labels with the page behind them (WCAG
    2)."""
    return page.evaluate("""() => {
      const light = (c) => c.match(/[\\d.]+/g).slice(0, 3)
        .map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (e) => {
        for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (!/, 0\\)$/.test(c) && !/, 0\\.\\d+\\)$/.test(c)) return c;
        }
        const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
        return isDark ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)";
      };
      const of = (e) => {
        const [a, b] = [getComputedStyle(e).color, behind(e)].map(light).sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
      };
      return Math.min(...[...document.querySelectorAll("h1,h2,th,td,summary,p,svg text")].map(of));
    }""")


def test_names_are_text(show):
    """Names of arguments come from the caller, and those of operations from a file."""
    plan = cutback.plan(
        lambda p: sum((cutback.tanh(w) * w).sum() for w in p.values()),
        {HOSTILE: np.ones((4, 4)), BIDI: np.ones((4, 4))},
        budget=0.0,
    )
    parts = plan.parts
    for op in parts.ops:
        op.name = f"{HOSTILE}{op.name}"
        op.location = f"{BIDI}:1 ({HOSTILE})"
    hostile = cutback.plan(parts.to_json(), budget=0.0)
    with show(report.render_html(hostile, {}, f"{HOSTILE} {BIDI}")) as page:
        open_all(page)
        page.mouse.move(*place(page, 0.5))
        shown = page.locator(".card").inner_text()
        assert HOSTILE in shown and "\\u202e" in shown
        assert HOSTILE in page.locator("h1").inner_text()
        page.get_by_role("searchbox").fill("<script>")
        assert page.locator("output").inner_text() != ""
        assert page.evaluate("window.hit") is None
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in page.locator("body").inner_text()


def test_pictures_have_names_and_tables(show, plan):
    with show(report.render_html(plan, {}, "names")) as page:
        for svg in page.locator("svg[role=img]").all():
            assert len(svg.get_attribute("aria-label")) > 5
        for control in page.locator("button, select, input").all():
            name = control.get_attribute("aria-label") or control.evaluate(
                "e => e.closest('label')?.textContent"
            )
            assert name
        assert page.locator("figure.chart ~ details table").count() >= 2


# What JupyterLab's dark theme sets, while the system is light.
JUPYTER = """
body { background: #111; } .jp-RenderedHTMLCommon { color: #fff; }
.jp-RenderedHTMLCommon table { color: #fff; border-collapse: collapse; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: #111; }
.jp-RenderedHTMLCommon tbody tr:nth-child(even) { background: #212121; }
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_notebooks_under_any_system(show, plan, scheme):
    """A dark notebook works under a light system, and a light notebook under a dark one."""
    other = cutback.Plan.of(plan.core.problem.plan(device=plan.core.device))
    step = cutback.compile(mlp)
    step({"blocks": [np.ones((4, 4))]}, np.ones((2, 4)))
    shown = [
        plan._repr_mimebundle_()["text/html"],
        plan.diff(other)._repr_mimebundle_()["text/html"],
        cutback.frontier(plan.problem)._repr_mimebundle_()["text/html"],
        step._repr_html_(),
        step.stats._repr_html_(),
        step.traced._repr_html_(),
    ]
    css = JUPYTER
    if scheme == "dark":
        for dark, light in (("#111", "#fefefe"), ("#212121", "#f5f5f5"), ("#fff", "#000")):
            css = css.replace(dark, light)
    body = f'<div class="jp-RenderedHTMLCommon">{"".join(shown)}</div>'
    html = f'<meta charset="utf-8"><style>{css}</style><body>{body}</body>'
    with show(html, scheme=scheme) as page:
        open_all(page)
        assert contrasts(page) > 4.5
