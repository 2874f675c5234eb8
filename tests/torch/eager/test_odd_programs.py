"""Generated programs of odd things in a region: none ends in an AssertionError, AttributeError or
the like from inside the bridge."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import odd_programs as programs

import cutback.torch as ct

PART = 50


def plain(f: Any) -> Any:
    return lambda *args: ct.checkpoint(f, *args)


def smallest(f: Any) -> Any:
    return lambda *args: ct.checkpoint(f, *args, budget="min")


def by_compile(f: Any) -> Any:
    return ct.compile(f, budget="min")


def check(door: Any, seeds: range) -> None:
    for seed in seeds:
        torch._dynamo.reset()
        text, after = programs.generate(seed)
        error = programs.failure(door(programs.function(seed, text)), after)
        assert error is None or not programs.ours(error), f"seed {seed}, {after}\n{text}"


def test_no_odd_program_ends_in_an_internal_error() -> None:
    check(plain, range(500, 540))


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 1000, PART))
@pytest.mark.parametrize("door", [plain, smallest])
def test_no_odd_program_of_many_ends_in_an_internal_error(door: Any, start: int) -> None:
    check(door, range(start, start + PART))


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 100, PART))
def test_no_odd_compiled_program_ends_in_an_internal_error(start: int) -> None:
    check(by_compile, range(start, start + PART))


def test_a_region_that_returns_no_tensor_is_planned() -> None:
    """Its last op has no outputs and no op of a backward follows: the exact search read past the
    end of a table."""
    for _ in range(5):
        x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
        f = lambda x, w: ((x * w).double().float() * 2).sum().item()  # noqa: E731
        assert ct.checkpoint(f, x, w, budget="min") == f(x, w)


def test_an_internal_error_would_be_found() -> None:
    def broken(f: Any) -> Any:
        scope: dict[str, Any] = {}
        exec(compile("def call(*args):\n    assert not args", "/cutback/x.py", "exec"), scope)
        return scope["call"]

    error = programs.failure(broken(None), "none")
    assert error is not None and programs.ours(error)
