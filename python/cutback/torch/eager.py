"""Checkpointing for eager PyTorch, value by value.

PyTorch's checkpoint runs a region again as a whole when the first of its values is needed. Here the
region's ops are logged while it runs, and what autograd wants to save is replaced by a place in
that log; when the backward reads it, just the ops that lead to it run again. No compiler is
involved, and the code of the region runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .eager_log import Region, active
from .eager_policy import Policy, resolve
from .eager_rerun import unpack


def checkpoint(
    fn: Callable[..., Any],
    *args: Any,
    policy_fn: Policy | None = None,
    **kwargs: Any,
) -> Any:
    """Runs ``fn(*args, **kwargs)`` so that its backward holds less memory.

    Args:
        fn: a function of tensors, or a module.
        policy_fn: what to save, in PyTorch's words: a function ``(ctx, op, *args, **kwargs) ->
            torch.utils.checkpoint.CheckpointPolicy``, or a list of ops to save. Ops may be named
            by overload (``torch.ops.aten.mm.default``) or packet (``torch.ops.aten.mm``). Without
            it everything runs again that can.

    Returns:
        what ``fn`` returns. Gradients have the bits that they have without checkpointing.

    Random ops never run again; their results are held, a dropout mask as one byte an element.
    Ops of other libraries run again only where a policy says ``MUST_RECOMPUTE``. What was written
    in place is held. A region inside a region joins it, under its own policy.

    Raises:
        ValueError: a policy wants the result of a mutating op saved.
        TypeError: a policy that is none.
        RuntimeError: in the backward, if a tensor that is needed was modified after the region.
    """
    policy = None if policy_fn is None else resolve(policy_fn)
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    around = active()
    if around is not None:
        around.policies.append(policy)
        try:
            return fn(*args, **kwargs)
        finally:
            around.policies.pop()
    region = Region(policy)
    with torch.autograd.graph.saved_tensors_hooks(region.pack, unpack), region:
        return fn(*args, **kwargs)
