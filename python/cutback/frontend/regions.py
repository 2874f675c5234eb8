"""Checkpoint regions: parts of a function whose values are recomputed rather than saved."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import budgets, tree
from ..policies import PREFER_RECOMPUTE, Policy, resolve
from ..source import located
from .graph import current
from .tracer import Array

F = TypeVar("F", bound=Callable[..., Any])


def checkpoint(
    fn: F | None = None,
    *,
    policy: Policy | None = None,
    budget: int | str | None = None,
    static_argnums: int | Sequence[int] = (),
    prevent_cse: bool = True,
) -> Any:
    """Returns a function that computes the same as ``fn``, but whose intermediate values are
    recomputed in the backward instead of saved.

    Use it as ``y = checkpoint(block)(x)`` or as a decorator, with or without arguments. It only has
    an effect inside a traced function.

    In nested regions, the innermost policy that returns a decision decides about an operation. So
    ``everything_saveable`` inside ``nothing_saveable`` saves. In JAX and PyTorch the outermost
    policy decides.

    Args:
        policy: which values inside to save instead; see :mod:`cutback.policies`. If this policy
            returns None, the policy around the region is asked.
        budget: limit on the bytes of values inside that may be saved (an int or ``"3MiB"``); 0
            allows none. With a budget and no policy, the planner chooses among all values.
            Positions from 0 to 1 and shares are errors here; only a step accepts them.
        static_argnums: positions of arguments that are not traced arrays, for compatibility with
            JAX. Arguments that are not arrays are passed unchanged in any case.
        prevent_cse: accepted for compatibility with JAX. It has no effect, because recomputed
            values are never merged with the original ones.

    Raises:
        TypeError, ValueError: if ``policy`` is not a policy, ``budget`` is not a size, or a static
            argument is a traced array.

    Example:
        >>> block = cb.checkpoint(block, policy=cb.policies.dots_saveable)
    """
    if fn is None:
        return lambda function: checkpoint(
            function,
            policy=policy,
            budget=budget,
            static_argnums=static_argnums,
            prevent_cse=prevent_cse,
        )
    if not callable(fn):
        raise TypeError(f"checkpoint needs a function, got {fn!r}")
    if policy is None and budget is None:
        policy = PREFER_RECOMPUTE
    rule = None if policy is None else resolve(policy)
    limit = None if budget is None else _limit(budget)
    static = _positions(static_argnums)
    name = getattr(fn, "__name__", type(fn).__name__)

    def inside(*args: Any, **kwargs: Any) -> Any:
        _check_static(name, static, args)
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


def _limit(budget: int | str) -> int:
    """Returns the bytes that a region may save.

    Raises:
        TypeError, ValueError: if ``budget`` is not a size. 1 is refused too, because as the budget
            of a step it means "save everything".
    """
    if budgets.is_position(_parsed(budget)):
        if budget == 0:
            return 0
        raise ValueError(
            f"budget={budgets.short(budget)} is a position, but a region's budget is a number of "
            "bytes: write '3MiB' ('1B' for one byte), or pass the position to the step"
        )
    return budgets.parse_bytes(budget)


def _parsed(budget: Any) -> budgets.NativeBudget | None:
    """Parses a budget; returns None if it has no valid form."""
    try:
        return budgets.parse(budget)
    except (TypeError, ValueError):
        return None


def _positions(static_argnums: int | Sequence[int]) -> tuple[int, ...]:
    given = static_argnums if isinstance(static_argnums, Sequence) else (static_argnums,)
    try:
        return tuple(operator.index(position) for position in given)
    except TypeError:
        raise TypeError(
            f"static_argnums={static_argnums!r}: expected positions of arguments, as integers"
        ) from None


def _check_static(name: str, static: tuple[int, ...], args: tuple[Any, ...]) -> None:
    for position in static:
        if not -len(args) <= position < len(args):
            raise ValueError(
                located(
                    f"static_argnums has {position}, but {name} was called with {len(args)} "
                    "positional arguments"
                )
            )
        if any(isinstance(leaf, Array) for leaf in tree.flatten(args[position])[0]):
            raise TypeError(
                located(
                    f"static_argnums has {position}, but that argument of {name} is a traced "
                    "array; leave it out of static_argnums"
                )
            )


def checkpoint_name(x: Array, name: str) -> Array:
    """Gives ``x`` a name for policies such as ``policies.save_only_these_names``; returns ``x``.

    >>> def named(params, x, y):
    ...     h = cutback.checkpoint_name(x @ params["w1"], "hidden")
    ...     return ((cutback.tanh(h) @ params["w2"] - y) ** 2).mean()
    >>> policy = cutback.policies.save_only_these_names("hidden")
    >>> plan = cutback.plan(named, params, x, y, policy=policy)
    """
    current().mark(x, name)
    return x
