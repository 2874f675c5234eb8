"""Checks the demo's claims about its two models, in a few steps: the same bits under three plans
and any number of threads, and the planned peak, to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback

DEMO = Path(__file__).parents[3] / "examples" / "demo"
STEPS = 2
PLANS = {
    "save everything": {"preset": "autograd"},
    "min-cut": {"preset": "aggressive"},
    "half the memory": {"budget": "0.5x"},
}


@pytest.fixture(scope="module", autouse=True)
def demo_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(DEMO))
    yield
    sys.path.remove(str(DEMO))


def gpt_case(batch: int = 4) -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
    """Returns (loss, new arguments) of the GPT at the demo's sizes, on random tokens."""
    import gpt

    config = gpt.GPTConfig(vocab=96)
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, config.vocab, (batch, config.context + 1)).astype(np.int32)
    x, y = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    return (
        lambda params, x, y: gpt.loss(params, x, y, config),
        lambda: [gpt.init(config, np.random.default_rng(1)), x, y],
    )


def conv_case() -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
    """Returns (loss, fresh arguments) of the convolutional net, on random images."""
    import convnet

    config = convnet.ConvConfig()
    rng = np.random.default_rng(6)
    x = rng.random((128, 1, 8, 8), np.float32)
    y = rng.integers(0, config.classes, 128).astype(np.int32)
    return (
        lambda params, states, x, y: convnet.loss(params, states, x, y, config),
        lambda: [*convnet.init(config, np.random.default_rng(3)), x, y],
    )


def train(case: Any, backend: str, **options: Any) -> tuple[list[bytes], cutback.Step]:
    """Returns all arrays of the arguments after a few steps (parameters and running statistics),
    and the step."""
    loss, arguments = case
    step = cutback.compile(
        loss, optimizer=cutback.optim.AdamW(lr=1e-3), seed=7, backend=backend, **options
    )
    args = arguments()
    values = [float(step(*args)) for _ in range(STEPS)]
    assert np.isfinite(values).all()
    return [array.tobytes() for array in cutback.tree.flatten(args)[0]], step


@pytest.mark.parametrize("make", [gpt_case, conv_case])
def test_three_plans_one_result(make):
    case, threads = make(), cutback.get_num_threads()
    wanted, everything = None, None
    try:
        for options in PLANS.values():
            for n in (1, 2):
                cutback.set_num_threads(n)
                arrays, step = train(case, "cpu", **options)
                wanted = wanted or arrays
                everything = everything or step.planned
                assert arrays == wanted
                assert step.stats.peak_bytes == step.planned.arena_bytes
                assert step.stats.n_alloc == 0
            plan = step.plan.to_json()
            arrays, debug = train(case, "debug", plan=plan)
            assert arrays == wanted
            assert debug.stats.peak_bytes == debug.planned.live_bytes <= step.planned.live_bytes
    finally:
        cutback.set_num_threads(threads)
    assert step.planned.arena_bytes <= everything.arena_bytes // 2
    assert step.planned.saved_bytes < everything.saved_bytes


class Page(HTMLParser):
    """Headings, table rows and pictures of a page; ``open`` lists the unclosed elements."""

    ALONE = frozenset({"meta", "br", "hr", "link", "img", "input", "col"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.pictures: list[Counter[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in self.ALONE:
            return
        self.open.append(tag)
        if tag == "svg":
            self.pictures.append(Counter())
        elif "svg" in self.open:
            self.pictures[-1][tag] += 1
        elif tag in ("h1", "h2"):
            self.headings.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        if "svg" in self.open:
            self.pictures[-1][tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "h1" in self.open or "h2" in self.open:
            self.headings[-1] += data
        elif "td" in self.open and "svg" not in self.open:
            self.rows[-1][-1] += data


@pytest.mark.very_slow
def test_budgets_at_targets_of_the_search_are_spent():
    """Placement needs more than the live bytes: if a plan is within a target but its layout exceeds
    it, a twin that fits is kept (otherwise a target of a fifth leaves 6 % unused). The unused part
    of a budget is smaller than most of the model's tensors, and 3 % of the smallest budgets."""
    loss, start = gpt_case(batch=16)
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    step(*start())
    plan = step.plan
    whole, once = plan.numbers["arena_bytes"], plan.numbers["once_ps"]
    targets = [int(whole * thousandth / 1000) for thousandth in range(900, 180, -20)]
    plans, unused = cutback.plans(plan.problem, targets, measure="arena"), []
    for target, found in zip(targets, plans, strict=True):
        assert isinstance(found, cutback.Plan), f"{target}: {found}"
        if found.numbers["time_ps"] > once:
            unused.append(1 - found.numbers["arena_bytes"] / target)
    assert max(unused) < 0.04, unused
    assert sum(share >= 0.02 for share in unused) <= 3, unused


@pytest.mark.very_slow
def test_the_demo_writes_its_page(tmp_path):
    """The demo runs two steps of each run. The page has the printed table, planned and measured
    peaks are equal, and each plan has a section with pictures."""
    options = ["--out", str(tmp_path), "--steps-gpt", "2", "--steps-conv", "2"]
    command = [sys.executable, str(DEMO / "run.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    runs = [(model, plan) for model in ("GPT", "ConvNet") for plan in PLANS]
    table = [row for row in page.rows if row][: len(runs)]
    assert [(row[0], row[1]) for row in table] == runs
    for row in table:
        printed = next(
            line
            for line in done.stdout.splitlines()
            if line.split("  ")[0] == row[0] and row[1] in line
        )
        assert all(cell in printed for cell in row)
        assert row[2] == row[3] and row[8] == "yes"
    sections = [f"{model}: {plan}" for model, plan in runs]
    assert [heading for heading in page.headings if heading in sections] == sections
    pictures = [sum(marks.values()) for marks in page.pictures]
    assert len(pictures) >= 2 * len(runs)
    assert min(pictures) > 5  # a timeline is a few long paths
    assert sorted(pictures)[len(runs)] > 20
