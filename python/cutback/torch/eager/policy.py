"""Checkpoint policies in PyTorch's form, queried for one op at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from .arguments import Arguments, Keywords, Op, Packet, Result
from .ops import OpInfo

Answer: TypeAlias = CheckpointPolicy | bool | None
Policy: TypeAlias = Callable[..., Answer] | Iterable[Op | Packet]

AGAIN = CheckpointPolicy.PREFER_RECOMPUTE
_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


class SaveList:
    """A policy from a list: saves the results of the listed ops and recomputes all others."""

    def __init__(self, ops: Iterable[Op | Packet]) -> None:
        self.ops = frozenset(ops)
        for op in self.ops:
            if not isinstance(op, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
                raise TypeError(
                    f"policy: {op!r} is not an op; list overloads (torch.ops.aten.mm.default) or "
                    "packets (torch.ops.aten.mm)"
                )
        self.known: dict[OpInfo, CheckpointPolicy] = {}

    def ask(self, info: OpInfo, args: Arguments, kwargs: Keywords, out: Result) -> CheckpointPolicy:
        """Returns the decision for an op.

        Raises:
            ValueError: if the list contains the op and it mutates an argument.
        """
        decision = self.known.get(info)
        if decision is None:
            found = info.func in self.ops or info.packet in self.ops
            decision = _checked(CheckpointPolicy.MUST_SAVE, info) if found else AGAIN
            self.known[info] = decision
        return decision


class Function:
    """A policy from a function.

    PyTorch passes overloads (``aten.mm.default``) to policies, but many policies compare with
    packets (``aten.mm``). So a policy that does not save the overload is called again with the
    packet.
    """

    def __init__(self, function: Callable[..., Answer]) -> None:
        self.function = function
        self.ctx = SelectiveCheckpointContext(is_recompute=False)

    def ask(self, info: OpInfo, args: Arguments, kwargs: Keywords, out: Result) -> CheckpointPolicy:
        """Returns the function's decision for one call.

        Raises:
            ValueError: if the answer is ``MUST_SAVE`` for an op that mutates an argument.
            TypeError: if the answer is not a policy.
        """
        ctx = self.ctx
        ctx.op_output = out
        answer = self.function(ctx, info.func, *args, **kwargs)
        packet = info.packet
        if packet is not None and (answer is AGAIN or answer is False or answer is None):
            answer = self.function(ctx, packet, *args, **kwargs)
        ctx.op_output = None  # the context must not keep the output alive
        if answer is AGAIN:
            return AGAIN
        return _checked(_word(answer, info.func), info)


def resolve(policy: Policy) -> SaveList | Function:
    """Converts a policy to an object with ``ask``.

    Raises:
        TypeError: if it is neither a function nor a collection of ops.
    """
    if callable(policy):
        return Function(policy)
    if isinstance(policy, str) or not isinstance(policy, Iterable):
        raise TypeError(
            f"policy={policy!r} is neither a function (ctx, op, *args, **kwargs) nor a list of ops"
        )
    return SaveList(policy)


def _word(answer: Answer, op: Op) -> CheckpointPolicy:
    if isinstance(answer, CheckpointPolicy):
        return answer
    if answer is True:
        return CheckpointPolicy.MUST_SAVE
    if answer is None or answer is False:
        return AGAIN
    raise TypeError(
        f"policy: the answer for {op} is {answer!r}, not a torch.utils.checkpoint.CheckpointPolicy"
    )


def _checked(decision: CheckpointPolicy, info: OpInfo) -> CheckpointPolicy:
    if decision is CheckpointPolicy.MUST_SAVE and info.mutates:
        raise ValueError(
            f"policy: returned MUST_SAVE for {info.func}, which writes into its argument; the "
            "result may be overwritten before the backward reads it. Leave the op out, or save the "
            "result of an op that reads it"
        )
    return decision


def saves(decision: CheckpointPolicy) -> bool:
    """True if the decision saves the result for the backward."""
    return decision in _SAVE


def offloads(decision: CheckpointPolicy) -> bool:
    """True if the decision keeps the result in host memory."""
    return "OFFLOAD" in decision.name
