"""Policies in PyTorch's words, asked for one op at a time."""

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
    """The policy of a list: what is in it is saved, all else runs again."""

    def __init__(self, ops: Iterable[Op | Packet]) -> None:
        self.ops = frozenset(ops)
        for op in self.ops:
            if not isinstance(op, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
                raise TypeError(
                    f"policy: {op!r} is no op; list overloads (torch.ops.aten.mm.default) or "
                    "packets (torch.ops.aten.mm)"
                )
        self.known: dict[OpInfo, CheckpointPolicy] = {}

    def ask(self, info: OpInfo, args: Arguments, kwargs: Keywords, out: Result) -> CheckpointPolicy:
        """What the list says about an op.

        Raises:
            ValueError: the op mutates and is to be saved.
        """
        decision = self.known.get(info)
        if decision is None:
            found = info.func in self.ops or info.packet in self.ops
            decision = _checked(CheckpointPolicy.MUST_SAVE, info) if found else AGAIN
            self.known[info] = decision
        return decision


class Function:
    """The policy of a function.

    PyTorch hands overloads (``aten.mm.default``) to policies, many of which name packets
    (``aten.mm``). So a policy that has nothing to say about the overload is asked with the packet.
    """

    def __init__(self, function: Callable[..., Answer]) -> None:
        self.function = function
        self.ctx = SelectiveCheckpointContext(is_recompute=False)

    def ask(self, info: OpInfo, args: Arguments, kwargs: Keywords, out: Result) -> CheckpointPolicy:
        """What the function says about one call.

        Raises:
            ValueError: the op mutates and is to be saved. TypeError: that is no answer.
        """
        ctx = self.ctx
        ctx.op_output = out
        answer = self.function(ctx, info.func, *args, **kwargs)
        packet = info.packet
        if packet is not None and (answer is AGAIN or answer is False or answer is None):
            answer = self.function(ctx, packet, *args, **kwargs)
        ctx.op_output = None  # which a policy must not keep alive
        if answer is AGAIN:
            return AGAIN
        return _checked(_word(answer, info.func), info)


def resolve(policy: Policy) -> SaveList | Function:
    """Any form of a policy as something to ask.

    Raises:
        TypeError: neither a function nor a collection of ops.
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
            f"policy: MUST_SAVE for {info.func}, which writes into its argument; what it wrote may "
            "be overwritten before the backward reads it. Leave the op out, or save the result of "
            "one that reads it"
        )
    return decision


def saves(decision: CheckpointPolicy) -> bool:
    """Is the result to be there in the backward without running the op again?"""
    return decision in _SAVE


def offloads(decision: CheckpointPolicy) -> bool:
    """Is the result to wait in the host's memory?"""
    return "OFFLOAD" in decision.name
