"""Runs generated odd programs, in a region and compiled. They never end in an internal
AssertionError, AttributeError or the like from the bridge, and never give wrong results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import odd_programs as programs
import written_programs as written

import cutback.torch as ct

PART = 50


def plain(f: Any) -> Any:
    return lambda *args: ct.checkpoint(f, *args)


def dynamic(f: Any) -> Any:
    return ct.compile(f, budget="min", dynamic=True)


def region_in_compile(f: Any) -> Any:
    return ct.compile(lambda *args: ct.checkpoint(f, *args), budget="min")


def torchs_checkpoint(f: Any) -> Any:
    return lambda *args: torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)


def aot_eager(f: Any) -> Any:
    return torch.compile(f, backend="aot_eager")


def aot_eager_dynamic(f: Any) -> Any:
    return torch.compile(f, backend="aot_eager", dynamic=True)


def aot_eager_around_a_checkpoint(f: Any) -> Any:
    return aot_eager(torchs_checkpoint(f))


def smallest(door: Any) -> Callable[[Any], Any]:
    return lambda f: door(f, "min")


DOORS = {
    "plain": (plain, torchs_checkpoint),
    "smallest": (smallest(written.by_checkpoint), torchs_checkpoint),
    "compile": (smallest(written.by_compile), aot_eager),
    "name": (smallest(written.by_name), aot_eager),
    "partition_fn": (smallest(written.by_partition_fn), aot_eager),
    "dynamic": (dynamic, aot_eager_dynamic),
    "checkpoint_in_compile": (
        smallest(written.by_checkpoint_in_compile),
        aot_eager_around_a_checkpoint,
    ),
    "region_in_compile": (region_in_compile, aot_eager_around_a_checkpoint),
}
EAGER = ("plain", "smallest")


def check(door: str, seeds: range) -> None:
    for seed in seeds:
        program = programs.generate(seed)
        verdict = programs.verdict(program, *DOORS[door])
        assert not verdict.startswith(("internal", "wrong")), f"{verdict}\n{program}"


@pytest.mark.parametrize(("door", "count"), [("plain", 40), ("compile", 2)])
def test_no_odd_program_ends_in_an_internal_error(door: str, count: int) -> None:
    check(door, range(500, 500 + count))


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 1000, PART))
@pytest.mark.parametrize("door", EAGER)
def test_no_odd_program_of_many_ends_in_an_internal_error(door: str, start: int) -> None:
    check(door, range(start, start + PART))


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 200, PART))
@pytest.mark.parametrize("door", [door for door in DOORS if door not in EAGER])
def test_no_odd_compiled_program_ends_in_an_internal_error(door: str, start: int) -> None:
    check(door, range(start, start + PART))


def test_a_region_that_returns_no_tensor_is_planned() -> None:
    """The region's last op has no outputs and no backward op follows; the exact search used to read
    past the end of a table."""
    for _ in range(5):
        x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
        f = lambda x, w: ((x * w).double().float() * 2).sum().item()  # noqa: E731
        assert ct.checkpoint(f, x, w, budget="min") == f(x, w)


def test_an_internal_error_would_be_found() -> None:
    def broken(f: Any) -> Any:
        scope: dict[str, Any] = {}
        exec(compile("def call(*args):\n    assert not args", "/cutback/x.py", "exec"), scope)
        return scope["call"]

    verdict = programs.verdict(programs.generate(0), broken, lambda f: f)
    assert verdict == "internal AssertionError()"


def test_a_wrong_value_would_be_found() -> None:
    def wrong(f: Any) -> Any:
        return lambda x, w, n: f(x * 2, w, n)

    program = programs.Program(0, "def program(x, w, n):\n    return x * w\n", "first", "plain")
    assert programs.verdict(program, wrong, lambda f: f) == "wrong"
    assert programs.verdict(program, plain, lambda f: f) == ""
