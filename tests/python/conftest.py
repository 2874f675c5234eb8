"""Shared helpers that run a traced expression, take finite differences, and check that the core is
quiet after each test."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import cutback
from cutback import _native
from cutback.planner.plan import Plan
from cutback.run.executable import Executable

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))

from evaluate import check_plan

# A loaded machine must not fail a test by its deadline, and tests leave no files in the tree.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("house")


def forget_failures() -> None:
    """Drops the traceback of the last failed test, which pytest leaves in ``sys``. Its frames keep
    the steps of that test alive, and with them the memory that they hold."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> Iterator[None]:
    """Freezes what earlier tests left alive, so that collections do not scan it."""
    forget_failures()
    gc.freeze()
    yield


@pytest.fixture
def no_failures_held() -> None:
    """Drops what a failed test holds, for tests that count what the process holds."""
    forget_failures()


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Disables garbage collection for tests that raise from a signal handler. Python would swallow
    the exception inside a garbage collection callback, such as that of hypothesis."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def no_armed_failure() -> Iterator[None]:
    """Ends a test's allocation failures, so that the next test does not inherit them."""
    yield
    _native.fail_alloc(0)


@pytest.fixture(autouse=True)
def another_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``CUTBACK_TEST_BACKEND=far`` is set, runs on that backend whatever would run on ``cpu``
    (see ``tools/far.sh``)."""
    if name := os.environ.get("CUTBACK_TEST_BACKEND"):
        compile_graph = Executable.__init__
        if request.node.get_closest_marker("within_the_call"):
            pytest.skip(f"{name} has put its work on a stream when a run returns")

        def compile_there(self: Executable, *args: Any, **options: Any) -> None:
            asked = options.get("backend", "cpu")
            if isinstance(asked, str) and asked == "cpu":
                options["backend"] = name
            compile_graph(self, *args, **options)

        monkeypatch.setattr(Executable, "__init__", compile_there)


@pytest.fixture(autouse=True)
def every_plan_is_checked(
    another_backend: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Checks each plan that a test compiles or reads from a file with the independent evaluator.
    Tests that count the core's allocations are marked ``plans_unchecked``; with
    ``CUTBACK_TEST_PLANS=unchecked`` all are, because a sanitizer has nothing to say about the
    evaluator, which is Python."""
    unchecked = os.environ.get("CUTBACK_TEST_PLANS") == "unchecked"
    if unchecked or request.node.get_closest_marker("plans_unchecked"):
        yield
        return
    compile_graph, take_plan, read_plan = Executable.__init__, Plan.of, Plan.__init__

    def compile_and_check(self: Executable, *args: Any, **options: Any) -> None:
        compile_graph(self, *args, **options)
        plan = json.loads(self.text("plan"))
        check_plan(json.loads(self.text("problem")), plan, plan["device"])

    def check(plan: Plan) -> None:
        check_plan(plan.problem, plan.document, plan.document["device"])

    def take_and_check(core: Any, step: Any = None, position: Any = None) -> Plan:
        plan = take_plan(core, step, position)
        if step is None:
            check(plan)
        return plan

    def read_and_check(self: Plan, problem: str, plan: str) -> None:
        read_plan(self, problem, plan)
        check(self)

    monkeypatch.setattr(Executable, "__init__", compile_and_check)
    monkeypatch.setattr(Plan, "of", take_and_check)
    monkeypatch.setattr(Plan, "__init__", read_and_check)
    yield


@pytest.fixture
def run() -> Callable[..., Any]:
    """Provides run(f, *arrays): the results of f through trace, plan and the CPU backend."""

    def evaluate(f: Callable[..., Any], *arrays: Any) -> Any:
        return cutback.compile(f, argnums=None)(*arrays)

    return evaluate


@pytest.fixture
def check_grad() -> Callable[..., None]:
    """Provides check_grad(f, *arrays): compares gradients of sum(f * fixed weights) with central
    differences in f64."""

    def check(f: Callable[..., Any], *arrays: Any, eps: float = 1e-6, tol: float = 1e-6) -> None:
        arrays = tuple(np.array(a, np.float64, order="C") for a in arrays)
        shape = cutback.compile(f, argnums=None)(*arrays).shape
        weights = np.random.default_rng(7).standard_normal(shape)

        def loss(xs: list[Any]) -> Any:
            return (f(*xs) * weights).sum()

        evaluate = cutback.compile(loss, argnums=None)
        _, gradients = cutback.value_and_grad(loss)(list(arrays))
        for k, gradient in enumerate(gradients):
            numeric = np.zeros_like(arrays[k])
            for at in np.ndindex(arrays[k].shape):
                ends = []
                for sign in (1, -1):
                    moved = [a.copy() for a in arrays]
                    moved[k][at] += sign * eps
                    ends.append(float(evaluate(moved)))
                numeric[at] = (ends[0] - ends[1]) / (2 * eps)
            np.testing.assert_allclose(gradient, numeric, rtol=tol * 100, atol=tol)

    return check


def mlp(params: Any, x: Any, y: Any) -> Any:
    """Computes six layers with dropout, and a loss that makes recomputation worthwhile."""
    for w in params["layers"]:
        x = cutback.nn.functional.dropout(cutback.nn.functional.gelu(x @ w), 0.1)
    return ((x @ params["head"] - y) ** 2).mean()


class Model:
    """A loss with parameters and data; new arrays at each call."""

    loss = staticmethod(mlp)

    @staticmethod
    def params() -> dict[str, Any]:
        rng = np.random.default_rng(1)
        layers = [rng.standard_normal((32, 32), np.float32) * 0.3 for _ in range(6)]
        return {"layers": layers, "head": rng.standard_normal((32, 3), np.float32)}

    @staticmethod
    def data() -> tuple[Any, Any]:
        rng = np.random.default_rng(2)
        return rng.standard_normal((64, 32), np.float32), rng.standard_normal((64, 3), np.float32)


@pytest.fixture
def model() -> type[Model]:
    return Model
