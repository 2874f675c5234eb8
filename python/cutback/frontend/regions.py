"""Checkpoint regions: parts of a function whose values are recomputed rather than saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import tree
from ..budgets import parse_bytes
from ..policies import PREFER_RECOMPUTE, Policy, resolve
from .graph import current
from .tracer import Array

F = TypeVar("F", bound=Callable[..., Any])


def checkpoint(
    fn: F | None = None, *, policy: Policy | None = None, budget: int | str | None = None
) -> Any:
    """Marks what ``fn`` computes for recomputation in the backward; what it returns is not
    affected.

    Use it as ``y = checkpoint(block)(x)`` or as a decorator, plain or with arguments. It has effect
    inside a traced function only.

    Args:
        policy: which values made inside to save instead; see :mod:`cutback.policies`. The policy
            around the region is asked where this one says nothing.
        budget: bytes (int or ``"3MiB"``) of values made inside that may be saved. With a budget and
            no policy the planner chooses among all of them.

    Raises:
        TypeError, ValueError: not a policy or not a size.
    """
    if fn is None:
        return lambda function: checkpoint(function, policy=policy, budget=budget)
    if not callable(fn):
        raise TypeError(f"checkpoint needs a function, got {fn!r}")
    if policy is None and budget is None:
        policy = PREFER_RECOMPUTE
    rule = None if policy is None else resolve(policy)
    limit = None if budget is None else parse_bytes(budget)
    name = getattr(fn, "__name__", type(fn).__name__)

    def inside(*args: Any, **kwargs: Any) -> Any:
        graph = current()
        with graph.region(name, limit), graph.policy(rule):
            result = fn(*args, **kwargs)
        for leaf in tree.flatten(result)[0]:
            if isinstance(leaf, Array):
                graph.release(leaf)
        return result

    inside.__name__ = name
    inside.__doc__ = fn.__doc__
    inside.__wrapped__ = fn  # type: ignore[attr-defined]
    return inside


def checkpoint_name(x: Array, name: str) -> Array:
    """Gives ``x`` a name for policies such as ``policies.save_only_these_names``; returns ``x``."""
    current().mark(x, name)
    return x
