"""The examples in the package's docstrings run, with the names that their readers have."""

from __future__ import annotations

import ast
import inspect
import json
import math
from pathlib import Path
from typing import Any

import docstrings
import numpy as np
import pytest

import cutback
from cutback import budgets, cuda, report
from cutback.constraints import by_table, constrain
from cutback.problem import Op

EXAMPLES = {example.place: example for example in docstrings.examples(torch=False)}


def layers(params: Any, x: Any) -> Any:
    return (cutback.tanh(x @ params["w1"]) @ params["w2"]).mean()


def loss(params: Any, x: Any, y: Any) -> Any:
    return ((cutback.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2).mean()


def of_readers() -> dict[str, Any]:
    """Returns a loss with its arguments, a step, and a plan."""
    rng = np.random.default_rng(0)
    params = {
        "w1": rng.standard_normal((16, 32), np.float32),
        "w2": rng.standard_normal((32, 8), np.float32),
    }
    x, y = rng.standard_normal((64, 16), np.float32), rng.standard_normal((64, 8), np.float32)
    step = cutback.compile(loss, budget=0.5, optimizer=cutback.optim.SGD(lr=1e-3))
    return {
        "cb": cutback, "cutback": cutback, "json": json, "np": np, "cuda": cuda,
        "params": params, "x": x, "y": y, "loss": loss, "step": step, "block": layers,
        "optimizer": cutback.optim.SGD(lr=1e-3), "metrics": layers,
        "plan": cutback.plan(loss, params, x, y, budget=0.5),
        "Position": budgets.Position, "Shared": budgets.Shared, "Graph": cutback.Graph,
        "by_table": by_table, "constrain": constrain, "human_bytes": report.svg.human_bytes,
        "Op": Op, "report": report,
        "grads": {name: np.ones_like(array) for name, array in params.items()},
    }  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file of this machine's measured device."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("place", EXAMPLES)
def test_it_runs(place: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    names = of_readers()
    names["problem"] = json.dumps(names["plan"].problem)
    Path("problem.json").write_text(names["problem"])
    if place == "errors.BudgetError":
        names["loss"] = layers
    docstrings.run(EXAMPLES[place], names)
    if place == "errors.BudgetError":
        assert names["plan"].numbers["live_bytes"] <= 2 << 30
    if place == "frontend.regions.checkpoint":
        step = cutback.value_and_grad(names["block"])
        assert math.isfinite(step(names["params"], names["x"])[0])


@pytest.mark.parametrize("name", ["get_num_threads", "set_num_threads"])
def test_examples_of_functions_in_c(name: str) -> None:
    before = cutback.get_num_threads()
    lines = docstrings.doctest.DocTestParser().get_examples(inspect.getdoc(getattr(cutback, name)))
    try:
        docstrings.run(docstrings.Example(name, lines), of_readers())
    finally:
        cutback.set_num_threads(before)


def test_the_first_example_of_the_package_keeps_to_its_budget() -> None:
    """The measured peak equals the planned one."""
    names = of_readers()
    docstrings.run(EXAMPLES[""], names)
    step = names["step"]
    assert "budget=0.5" in inspect.getdoc(cutback)
    assert step.plan.position.position == 0.5
    assert step.stats.peak_bytes == step.planned.arena_bytes <= step.plan.position.limit
    assert step.plan.numbers["budget_bytes"] == step.plan.position.limit


def test_a_wrong_result_would_be_found() -> None:
    (line,) = docstrings.doctest.DocTestParser().get_examples(">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match="gives 2"):
        docstrings.run(docstrings.Example("here", [line]), {})


def test_every_public_name_has_an_example() -> None:
    assert docstrings.without_example(torch=False) == []


def test_every_parameter_of_a_public_name_is_described() -> None:
    assert docstrings.undescribed(torch=False) == []


def test_docstrings_name_the_errors_that_the_function_raises() -> None:
    assert docstrings.unnamed_errors(docstrings.documented(torch=False)) == []


def test_docstrings_say_what_the_function_returns() -> None:
    assert docstrings.unnamed_results(docstrings.documented(torch=False)) == []


def test_missing_errors_and_results_would_be_found() -> None:
    code = """
def lacking() -> Plan:
    if lacking:
        raise ValueError("bad")
    def inner() -> None:
        raise TypeError("of another function")
"""
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.FunctionDef)
    short = docstrings.Documented("lacking", "Plans a step.", node)
    full = docstrings.Documented(
        "full", "Plans a step; returns the plan or raises ValueError.", node
    )
    assert docstrings.unnamed_errors([short, full]) == ["lacking: ValueError"]
    assert docstrings.unnamed_results([short, full]) == ["lacking: Plan"]
    documented = docstrings.documented(torch=False)
    if not documented:
        pytest.skip("docs are in a checkout only")
    names = [name for name, _, node in documented if node is not None]
    assert {"cutback.compile", "cutback.Step", "cutback.Plan.explain"} <= {*names}
