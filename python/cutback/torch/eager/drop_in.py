"""Checks the arguments of ``torch.utils.checkpoint.checkpoint`` that assume that a region runs
again as a whole, which does not happen here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch

from ..flags import check_flags, check_flags_or_none
from .policy import Policy

P = ParamSpec("P")
Out = TypeVar("Out")
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_CHECKS = ("default", "none")


def refuse_unusual(
    use_reentrant: bool | None,
    preserve_rng_state: bool,
    determinism_check: str,
    debug: bool,
    early_stop: bool,
) -> None:
    """Checks arguments that must have their defaults here.

    Raises:
        ValueError: if an argument asks for something that is not supported.
        TypeError: if an argument has the wrong type.
    """
    check_flags_or_none(use_reentrant=use_reentrant)
    check_flags(preserve_rng_state=preserve_rng_state, debug=debug, early_stop=early_stop)
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check={determinism_check!r} is not one of {', '.join(_CHECKS)}"
        )
    if debug:
        raise ValueError(
            "debug=True compares two runs of a region, but here the region runs once: leave it "
            "out, or use torch.utils.checkpoint.checkpoint to find differences"
        )
    if not early_stop:
        raise ValueError(
            "early_stop=False reruns the whole region, but here only those ops run again that the "
            "backward needs: leave it out, or use torch.utils.checkpoint.checkpoint"
        )


def refuse_offload(offload: bool, policy_fn: Policy | None) -> None:
    """Raises ValueError if ``offload`` is used without a policy."""
    if offload and policy_fn is None:
        raise ValueError(
            "offload needs policy_fn, and moves the saved values to the host; budgets and plans "
            "of eager regions do not offload (cutback.torch.compile(..., offload=True) does)"
        )


def refuse_hooks(respect: bool | None) -> None:
    """Raises ValueError if ``respect`` is set and the region is inside saved-tensor hooks."""
    check_flags_or_none(respect_saved_tensors_hooks=respect)
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if respect and top is not None and top(True) is not None:
        raise ValueError(
            "respect_saved_tensors_hooks=True: the region holds the values that a policy saves, "
            "and does not pass them to the hooks around it. Leave it out; offload=True holds them "
            "on the host; for other hooks use torch.utils.checkpoint.checkpoint"
        )


def decorator(
    checkpoint: Callable[..., Out], given: dict[str, Any]
) -> Callable[[Callable[P, Out]], Callable[P, Out]]:
    """Returns the decorator for ``@checkpoint(...)``; ``given`` holds all arguments of that
    call.
    """
    options = {k: v for k, v in given.items() if k not in ("fn", "args", "kwargs")}
    options |= given["kwargs"]
    if given["args"]:
        raise TypeError("checkpoint: fn is None; leave out all positional arguments to decorate")

    def around(fn: Callable[P, Out]) -> Callable[P, Out]:
        if not callable(fn):
            raise TypeError(f"checkpoint: can only decorate a function, not a {type(fn).__name__}")

        @functools.wraps(fn, updated=())
        def run(*args: P.args, **kwargs: P.kwargs) -> Out:
            own = {k: v for k, v in kwargs.items() if k in options}  # of fn, named as an option
            rest = {k: v for k, v in kwargs.items() if k not in options}
            called = functools.partial(fn, **own) if own else fn  # type: ignore[arg-type]
            return checkpoint(called, *args, **options, **rest)

        return run

    return around


def _does_nothing(context: AbstractContextManager[Any]) -> bool:
    return isinstance(context, contextlib.nullcontext)


def context_of(
    context_fn: Callable[[], Contexts],
) -> tuple[Callable[[Callable[P, Out]], Callable[P, Out]], Policy | None]:
    """Returns a wrapper for the function, and the policy that the contexts implement, or None.

    Raises:
        ValueError: if the second context does something.
    """
    first, second = context_fn()
    # PyTorch's contexts for a policy: the first one saves values, the second one returns them
    policy = getattr(first, "policy_fn", None)
    if policy is not None and hasattr(second, "storage"):
        return lambda fn: fn, policy
    if not _does_nothing(second):
        raise ValueError(
            f"context_fn: its second context ({type(second).__name__}) is meant for a second run "
            "of the region, but here only single ops run again. Pass a policy as policy_fn; for "
            "other contexts use torch.utils.checkpoint.checkpoint"
        )
    if _does_nothing(first):
        return lambda fn: fn, None

    def around(fn: Callable[P, Out]) -> Callable[P, Out]:
        @functools.wraps(fn, updated=())
        def run(*args: P.args, **kwargs: P.kwargs) -> Out:
            with first:
                return fn(*args, **kwargs)

        return run

    return around, None
