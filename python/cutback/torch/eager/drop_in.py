"""What ``torch.utils.checkpoint.checkpoint`` takes, where nothing runs again as a whole."""

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
    """Raises: ValueError: what cannot be done here. TypeError: a value of another kind."""
    check_flags_or_none(use_reentrant=use_reentrant)
    check_flags(preserve_rng_state=preserve_rng_state, debug=debug, early_stop=early_stop)
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check={determinism_check!r} is not one of {', '.join(_CHECKS)}"
        )
    if debug:
        raise ValueError(
            "debug=True shows two runs of a region side by side, and here it runs once: leave it "
            "out, or use torch.utils.checkpoint.checkpoint to look for what differs"
        )
    if not early_stop:
        raise ValueError(
            "early_stop=False asks for the whole region again, and here only those ops run again "
            "that lead to what the backward reads: leave it out, or use "
            "torch.utils.checkpoint.checkpoint"
        )


def refuse_offload(offload: bool, policy_fn: Policy | None) -> None:
    """Raises: ValueError: there is no policy that says what to hold on the host."""
    if offload and policy_fn is None:
        raise ValueError(
            "offload goes with policy_fn, and holds what that saves on the host; budgets and plans "
            "of eager regions move nothing (cutback.torch.compile(..., offload=True) does)"
        )


def refuse_hooks(respect: bool | None) -> None:
    """Raises: ValueError: what a policy saves is to go through hooks that are around the region."""
    check_flags_or_none(respect_saved_tensors_hooks=respect)
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if respect and top is not None and top(True) is not None:
        raise ValueError(
            "respect_saved_tensors_hooks=True: what a policy saves is held by the region, and does "
            "not go through the hooks around it. Leave it out; offload=True holds it on the host; "
            "for other hooks use torch.utils.checkpoint.checkpoint"
        )


def decorator(
    checkpoint: Callable[..., Out], given: dict[str, Any]
) -> Callable[[Callable[P, Out]], Callable[P, Out]]:
    """What ``@checkpoint(...)`` is; ``given``: all arguments of that call.

    Raises:
        TypeError: there are arguments for a function, and none.
    """
    options = {k: v for k, v in given.items() if k not in ("fn", "args", "kwargs")}
    options |= given["kwargs"]
    if given["args"]:
        raise TypeError("checkpoint: None is no function; leave it out to get a decorator")

    def around(fn: Callable[P, Out]) -> Callable[P, Out]:
        if not callable(fn):
            raise TypeError(f"checkpoint: a decorator of a function, not of a {type(fn).__name__}")

        @functools.wraps(fn, updated=())
        def run(*args: P.args, **kwargs: P.kwargs) -> Out:
            own = {k: v for k, v in kwargs.items() if k in options}  # the function's, too
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
    """What to put around the function, and the policy that the contexts stand for, or None.

    Raises:
        ValueError: the second context does something.
    """
    first, second = context_fn()
    # PyTorch's contexts of a policy: the first saves what it says, the second takes it back
    policy = getattr(first, "policy_fn", None)
    if policy is not None and hasattr(second, "storage"):
        return lambda fn: fn, policy
    if not _does_nothing(second):
        raise ValueError(
            f"context_fn: its second context ({type(second).__name__}) is meant for a second run "
            "of the region, and here single ops run again, not the region. A policy goes as "
            "policy_fn; with anything else use torch.utils.checkpoint.checkpoint"
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
