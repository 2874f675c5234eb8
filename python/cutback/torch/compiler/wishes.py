"""Collects the user's constraints on ops of a joint graph, from policies and from checkpoints in
the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy as TorchPolicy
from torch.utils.checkpoint import SelectiveCheckpointContext

from ... import policies
from ...problem import Constraint
from ..graph import ops
from ..graph.graphs import location
from ..graph.importer import Policy as Chooser

if TYPE_CHECKING:
    from torch.fx.node import Argument

Choice: TypeAlias = policies.CheckpointPolicy | TorchPolicy | bool | None
"""The constraint that a policy gives an operation."""

_Operation: TypeAlias = (
    torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator
)
Policy: TypeAlias = (
    str
    | Callable[..., Choice]
    | Iterable[str | _Operation]
    | policies.CheckpointPolicy
    | policies.WholeGraph
    | None
)
"""PyTorch's own ``CheckpointPolicy`` is accepted as well."""

_WORDS: dict[str, Constraint | None] = {
    "MUST_SAVE": "must_save", "PREFER_SAVE": "prefer_save",
    "MUST_RECOMPUTE": "must_recompute", "PREFER_RECOMPUTE": "prefer_recompute",
    "MUST_CPU_OFFLOAD": "must_offload", "PREFER_CPU_OFFLOAD": "prefer_offload",
    "MUST_OFFLOAD": "must_offload", "PREFER_OFFLOAD": "prefer_offload", "FREE": None,
}  # fmt: skip
_OPERATIONS = (
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator
)  # fmt: skip
_NAMED: dict[str, Callable[[ops.Kind], Constraint]] = {
    "everything_saveable": lambda kind: "prefer_save",
    "nothing_saveable": lambda kind: "prefer_recompute",
    "dots_saveable": lambda kind: (
        "must_save" if "compute" in kind.flags else "prefer_recompute"
    ),
}  # fmt: skip


def _word(choice: Choice) -> Constraint | None:
    if choice is None:
        return None
    if isinstance(choice, bool):
        return "must_save" if choice else "prefer_recompute"
    name = getattr(choice, "name", None)
    if not isinstance(name, str) or name not in _WORDS:
        raise TypeError(f"a policy must return a CheckpointPolicy or None, not {choice!r}")
    return _WORDS[name]


def of_tags(node: fx.Node) -> Constraint | None:
    """Returns the constraint that a checkpoint in the user's model (``torch.utils.checkpoint``)
    puts on a node. A value that goes from one region into another is saved, as in PyTorch:
    otherwise a chain of checkpointed layers would be recomputed from its beginning."""
    choice = node.meta.get("recompute")
    if choice is None:
        return None
    word = _word(choice)
    region = node.meta.get("ac_graph_id")
    if word is not None and word.endswith("recompute") and region is not None:
        for user in node.users:
            if user.meta.get("recompute") is not None and user.meta["ac_graph_id"] > region:
                return "prefer_save"
    return word


class _Context(SelectiveCheckpointContext):
    """PyTorch's context of a policy, with the source location of the operation."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(is_recompute=False)
        self.op_output = node.meta.get("val")
        self.region = None
        self.location = location(node) or None


def _by_function(policy: Callable[..., Choice]) -> Chooser:
    """Calls a policy function. PyTorch passes overloads (``aten.mm.default``) to policies, but many
    policies name packets (``aten.mm``). So if the policy has no answer for the overload, it is
    called with the packet."""

    def value(node: fx.Node) -> Argument:
        return node.meta.get("val")

    def choose(node: fx.Node) -> Constraint | None:
        ctx = _Context(node)
        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        word = _word(policy(ctx, node.target, *args, **kwargs))
        packet = getattr(node.target, "overloadpacket", None)
        if packet is not None and word in (None, "prefer_recompute"):
            word = _word(policy(ctx, packet, *args, **kwargs)) or word
        return word

    return choose


def _by_names(names: Iterable[str | _Operation]) -> Chooser:
    wanted = set()
    for item in names:
        if not isinstance(item, (str, *_OPERATIONS)):
            raise TypeError(
                f"policy: {item!r} is not an operation; list overloads "
                "(torch.ops.aten.mm.default), packets (torch.ops.aten.mm) or their names "
                "('aten.mm')"
            )
        wanted.add(item if isinstance(item, str) else ops.name_of(item))
        if isinstance(item, torch._ops.OpOverloadPacket):
            wanted.add(str(item))

    def choose(node: fx.Node) -> Constraint | None:
        name = ops.name_of(node.target)
        packet = ".".join(name.split(".")[:2])
        return "must_save" if name in wanted or packet in wanted else "prefer_recompute"

    return choose


def chooser(policy: Policy) -> Chooser | None:
    """Returns a function that gives the policy's constraint on each forward node, or None if the
    policy has no constraints on single ops. Raises ValueError or TypeError if it is not a policy.
    """
    if policy is None or isinstance(policy, policies.WholeGraph):
        return None
    if isinstance(policy, str):
        if policy not in _NAMED:
            raise ValueError(f"policy={policy!r} is not one of {', '.join(_NAMED)}")
        rule = _NAMED[policy]
        return lambda node: rule(ops.learn([node.target])[node.target])
    if isinstance(policy, (policies.CheckpointPolicy, TorchPolicy)):
        word = _word(policy)
        return lambda node: word
    if callable(policy):
        return _by_function(policy)
    if isinstance(policy, Iterable):
        return _by_names(policy)
    raise TypeError(
        f"policy={policy!r} is neither a name, a CheckpointPolicy, a function "
        "(ctx, op, *args, **kwargs), nor a list of operations to save"
    )


def may_offload(policy: Policy) -> bool:
    """True if a policy may move values to the host. For functions only their answers can tell."""
    if policy is None or isinstance(policy, str):
        return False
    if isinstance(policy, (policies.CheckpointPolicy, TorchPolicy)):
        return "offload" in (_word(policy) or "")
    return callable(policy) or isinstance(policy, policies.WholeGraph)
