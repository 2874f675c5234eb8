"""Policies for PyTorch's own checkpoint."""

from __future__ import annotations

from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from .arguments import Argument, Op
from .drop_in import Contexts
from .ops import info_of
from .policy import Policy, resolve


def checkpoint_contexts(policy_fn_or_list: Policy) -> Contexts:
    """Returns PyTorch's two selective-checkpoint contexts for a policy, with stricter checks.

    Replaces ``torch.utils.checkpoint.create_selective_checkpoint_contexts``::

        checkpoint(f, x, use_reentrant=False,
                   context_fn=functools.partial(cutback.torch.checkpoint_contexts, policy))

    It differs in three ways. Packets (``torch.ops.aten.mm``) stand for all their overloads, in
    lists and in functions. ``MUST_SAVE`` for an op that writes into its argument is an error, where
    PyTorch would silently use the overwritten value. ``PREFER_SAVE`` for such an op is ignored.

    Args:
        policy_fn_or_list: a function ``(ctx, op, *args, **kwargs) -> CheckpointPolicy``, or a list
            of ops to save.

    Raises:
        TypeError: if the policy is neither a function nor a collection of ops.
        ValueError: if the policy returns ``MUST_SAVE`` for a mutating op, while the region runs.

    >>> import functools
    >>> from torch.utils.checkpoint import checkpoint
    >>> saved = [torch.ops.aten.convolution]
    >>> contexts = functools.partial(cutback.torch.checkpoint_contexts, saved)
    >>> y = checkpoint(model, x, use_reentrant=False, context_fn=contexts)
    """
    policy = resolve(policy_fn_or_list)

    def careful(
        ctx: SelectiveCheckpointContext, op: Op, *args: Argument, **kwargs: Argument
    ) -> CheckpointPolicy:
        info = info_of(op)
        decision = policy.ask(info, args, kwargs, getattr(ctx, "op_output", None))
        if decision is CheckpointPolicy.PREFER_SAVE and info.mutates:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return decision

    contexts: Contexts = create_selective_checkpoint_contexts(careful)
    return contexts
