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
    """The two contexts of PyTorch's selective checkpoint, from a policy that is read with care.

    Stands where ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` would::

        checkpoint(f, x, use_reentrant=False,
                   context_fn=functools.partial(cutback.torch.checkpoint_contexts, policy))

    It differs in three points: packets (``torch.ops.aten.mm``) stand for all their overloads, in
    a list as well as in a function; ``MUST_SAVE`` for an op that writes into its argument is an
    error, as PyTorch would go on with the overwritten value; ``PREFER_SAVE`` for one is dropped.

    Raises:
        TypeError: neither a function nor a collection of ops.
        ValueError: while the region runs, for ``MUST_SAVE`` on a mutating op.
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
