"""Policies in PyTorch's words, asked for one op at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from .eager_ops import OpInfo

Policy = Callable[..., Any] | Iterable[Any]

AGAIN = CheckpointPolicy.PREFER_RECOMPUTE
_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


class SaveList:
    """The policy of a list: what is in it is saved, all else runs again."""

    def __init__(self, ops: Iterable[Any]) -> None:
        self.ops = frozenset(ops)
        for op in self.ops:
            if not isinstance(op, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
                raise TypeError(
                    f"policy: {op!r} is no op; list overloads (torch.ops.aten.mm.default) or "
                    "packets (torch.ops.aten.mm)"
                )
        self.known: dict[Any, CheckpointPolicy] = {}

    def decide(self, op: Any) -> CheckpointPolicy:
        """What the list says about an op."""
        decision = self.known.get(op)
        if decision is None:
            found = op in self.ops or getattr(op, "overloadpacket", None) in self.ops
            save, again = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
            decision = self.known[op] = save if found else again
        return decision


def resolve(policy: Policy) -> Callable[..., Any] | SaveList:
    """Any form of a policy as something to :func:`ask`.

    Raises:
        TypeError: neither a function nor a collection of ops.
    """
    if callable(policy):
        return policy
    if isinstance(policy, str) or not isinstance(policy, Iterable):
        raise TypeError(
            f"policy={policy!r} is neither a function (ctx, op, *args, **kwargs) nor a list of ops"
        )
    return SaveList(policy)


def _word(answer: Any, op: Any) -> CheckpointPolicy:
    if isinstance(answer, CheckpointPolicy):
        return answer
    if answer is True:
        return CheckpointPolicy.MUST_SAVE
    if answer is None or answer is False:
        return CheckpointPolicy.PREFER_RECOMPUTE
    raise TypeError(
        f"policy: the answer for {op} is {answer!r}, not a torch.utils.checkpoint.CheckpointPolicy"
    )


def ask(
    policy: Callable[..., Any] | SaveList,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
) -> CheckpointPolicy:
    """What a policy says about one call.

    PyTorch hands overloads (``aten.mm.default``) to policies, many of which name packets
    (``aten.mm``). So a policy that has nothing to say about the overload is asked with the packet.

    Raises:
        ValueError: the policy wants the result of a mutating op saved.
    """
    op = info.func
    answer: Any
    if isinstance(policy, SaveList):
        answer = policy.decide(op)
    else:
        ctx = SelectiveCheckpointContext(is_recompute=False, op_output=out)
        answer = policy(ctx, op, *args, **kwargs)
        packet = info.packet
        if (answer is AGAIN or answer is False or answer is None) and packet is not None:
            answer = policy(ctx, packet, *args, **kwargs)
    if answer is AGAIN:
        return AGAIN
    decision = _word(answer, op)
    if decision is CheckpointPolicy.MUST_SAVE and info.mutates:
        raise ValueError(
            f"policy: MUST_SAVE for {op}, which writes into its argument; what it wrote may be "
            "overwritten before the backward reads it. Leave the op out, or save the result of "
            "one that reads it"
        )
    return decision


def saves(decision: CheckpointPolicy) -> bool:
    """Is the result to be there in the backward without running the op again?"""
    return decision in _SAVE


def offloads(decision: CheckpointPolicy) -> bool:
    """Is the result to wait in the host's memory?"""
    return "OFFLOAD" in decision.name
