"""The code in the README runs as shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import cli

TEXT = (Path(__file__).parents[3] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_block_about_arrays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = np.random.default_rng(0).standard_normal((64, 64), np.float32) / 8
    found: dict[str, object] = {}
    exec(BLOCKS[1], found)
    assert "recomputed" in capsys.readouterr().out
    assert Path("plan.html").read_text().startswith("<!doctype html>")
    step = found["step"]
    n = step.plan.numbers
    position = step.plan.position
    assert n["arena_bytes"] == step.stats.peak_bytes <= position.limit < position.everything
    assert step.optimizer.t == 10 and not np.array_equal(found["params"][0], before)


@pytest.mark.parametrize("row", re.findall(r"^\| `(cb\.[\w.]+)\(?(.*?)\)?`", TEXT, re.MULTILINE))
def test_what_the_table_names_is_there(row):
    """The table's names exist, with their keywords."""
    import inspect

    name, arguments = row
    function = cutback
    for part in name.split(".")[1:]:
        function = getattr(function, part)
    taken = inspect.signature(function).parameters
    passed = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for keyword in re.findall(r"(\w+)=", arguments):
        assert keyword in taken or passed, f"{name} takes no {keyword}"


def test_the_command_line(tmp_path, monkeypatch, capsys):
    """Runs ``cutback plan FILE --budget 0.4x`` with --json and -o, and the verbs named next to
    it."""
    monkeypatch.chdir(tmp_path)

    def loss(params, x):
        for w in params:
            x = cutback.tanh(x @ w)
        return (x * x).mean()

    w = [np.full((16, 16), 0.1, np.float32) for _ in range(12)]
    Path("FILE").write_text(json.dumps(cutback.plan(loss, w, np.ones((64, 16), "f4")).problem))
    (line,) = re.findall(r"`cutback (plan FILE[^`]*)`", TEXT)
    assert cli.main([*line.split(), "-o", "PLAN"]) == 0
    assert cli.main([*line.split(), "--json"]) == 0
    out = capsys.readouterr().out
    assert "recomputed" in out and '"steps"' in out
    for verb in (
        "cut FILE",
        "frontier FILE",
        "explain PLAN",
        "diff PLAN PLAN",
        "evaluate FILE PLAN",
    ):
        assert f"`{verb.split()[0]}`" in TEXT
        assert cli.main(verb.split()) == 0, verb
