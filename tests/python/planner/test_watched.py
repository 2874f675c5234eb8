"""Watched searches show their progress, and Ctrl-C takes the best plan."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading

import numpy as np
import pytest

import cutback
from cutback import terminal
from cutback.planner.search import Best

BEST = Best(1 << 20, 0.1, 0.02)


class Terminal:
    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture(autouse=True)
def interruptible():
    """Installs Python's handler, which is missing if the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def watch(monkeypatch):
    """Replaces standard error by a terminal, after pytest has replaced it."""

    def watched():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return watched


def test_short_searches_show_nothing(watch):
    shown = watch()
    with terminal.interruptible(after=1.0) as progress:
        assert not progress(0.9, BEST)
    assert shown.text == ""


def test_long_searches_say_what_they_have(watch):
    shown = watch()
    with terminal.interruptible(after=1.0) as progress:
        assert not progress(1.5, None)
        assert shown.text.endswith("searching, 1.5 s (Ctrl-C: end) ")
        assert not progress(2.0, BEST)
        assert "best 1.00 MiB, +10.0 %, gap 2.0 % (Ctrl-C: take it)" in shown.text
    lines = shown.text.split("\r")
    assert lines[-1] == "" and not lines[-2].strip()  # erased


SHORT = "2.0 s, budget 1 of 3: best 1.00 MiB, +10.0 %, gap 2.0 % (Ctrl-C: take it) "


@pytest.mark.parametrize(
    "columns, expected",
    [
        (
            100,
            "searching, 2.0 s, budget 1 of 3: best 1.00 MiB, +10.0 %, gap 2.0 % (Ctrl-C: take it) ",
        ),
        (80, "2.0 s, budget 1 of 3: best 1.00 MiB, +10.0 %, gap 2.0 % (Ctrl-C: take it) "),
        (40, "2 s: best 1.00 MiB (Ctrl-C: take it) "),
        (10, "2 s: best"),
    ],
)
def test_the_line_is_never_folded(watch, columns, expected):
    """A carriage return goes back to the start of one row only."""
    shown = watch()
    keyboard, end = pty.openpty()
    with os.fdopen(keyboard), os.fdopen(end):
        termios.tcsetwinsize(end, (24, columns))
        shown.fileno = lambda: end
        with terminal.interruptible(3, after=1.0) as progress:
            assert not progress(2.0, BEST)
            assert shown.text == "\r" + expected


def test_ctrl_c_takes_a_plan_that_is_shown(watch):
    shown = watch()
    before = signal.getsignal(signal.SIGINT)
    with terminal.interruptible(after=1.0, only_shown=True) as progress:
        progress(2.0, BEST)
        os.kill(os.getpid(), signal.SIGINT)
        assert progress(2.1, BEST)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    assert shown.text.endswith("Ctrl-C ended the search; using the best plan found so far\n")


@pytest.mark.parametrize("told", [(0.5, BEST), (2.0, None)])
def test_ctrl_c_interrupts_where_none_is_shown(watch, told):
    watch()
    with terminal.interruptible(after=1.0, only_shown=True) as progress:
        progress(*told)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_does_what_the_program_says_where_no_plan_is_shown(watch):
    """A training program may, for example, save its parameters."""
    watch()
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with terminal.interruptible(after=1.0, only_shown=True) as progress:
            os.kill(os.getpid(), signal.SIGINT)
            assert not progress(0.5, BEST) and told == [signal.SIGINT]
            progress(2.0, BEST)
            os.kill(os.getpid(), signal.SIGINT)
            assert progress(2.1, BEST) and told == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


class Log:
    """Replaces standard error, as loggers do."""

    def write(self, text):
        pass

    def flush(self):
        pass


def test_a_log_in_place_of_standard_error_does_not_watch(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Log())
    assert not terminal.is_watched()
    x = np.ones((4, 4), np.float32)
    assert cutback.plan(lambda w, x: (w * x).sum(), x, x, budget=1.0).numbers


def test_a_closed_standard_error_does_not_watch(monkeypatch):
    with open(os.devnull, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
    assert not terminal.is_watched()


def test_other_threads_show_it_too(watch):
    shown = watch()

    def search():
        with terminal.interruptible(after=1.0) as progress:
            assert not progress(2.0, BEST)

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert "best 1.00 MiB" in shown.text


@pytest.mark.parametrize("measure", ["live", "arena"])
def test_a_search_that_is_ended_early_keeps_its_plan(measure):
    """Ops of the backward of a function's step may run late, so there are two searches. The second
    has not begun when the first ends."""

    def loss(params, x):
        for i, w in enumerate(params):
            x = cutback.tanh(x @ w) + x * (i % 3)
        return (x * x).mean()

    params, x = [np.ones((8, 8), np.float32)] * 60, np.ones((64, 8), np.float32)
    plan = cutback.plan(
        loss, params, x, budget="0.4x", measure=measure, progress=lambda _, best: best is not None
    )
    assert plan.numbers[f"{measure}_bytes"] <= plan.numbers["budget_bytes"]
    assert plan.bound_ps == plan.numbers["once_ps"]  # nothing is proved


PROGRAM = """
import os, signal
import numpy as np, cutback
from cutback import terminal

class Search(terminal._Search):
    def __init__(self, budgets, after, only_shown):
        super().__init__(budgets, 0.0, only_shown)

    def progress(self, seconds, best):
        answer = super().progress(seconds, best)
        if self.offers and not self.stop:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

terminal._Search = Search

def loss(params, x):
    for i, w in enumerate(params):
        x = cutback.tanh(x @ w) + x * (i % 3)
    return (x * x).mean()

params = [np.ones((8, 8), np.float32) for n in range(60)]
x = np.ones((64, 8), np.float32)
if NATIVE:
    plan = cutback.value_and_grad(loss, budget="0.4x").prepare(params, x).plan
else:
    plan = cutback.plan(loss, params, x, budget="0.4x")
print("planned", plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"])
"""


@pytest.mark.parametrize("native", [False, True])
def test_ctrl_c_keeps_the_plan_of_a_real_search(native):
    """The search runs on its own terminal and gets the signal that Ctrl-C sends."""
    screen, theirs = pty.openpty()
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("NATIVE", repr(native))],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=100,
    )
    os.close(theirs)
    seen = os.read(screen, 1 << 16)
    os.close(screen)
    assert b"searching, " in seen and b"(Ctrl-C: take it)" in seen
    assert result.returncode == 0 and result.stdout == "planned True\n"
