"""Facts about dispatched ops that matter for rerunning them. They are derived from schemas and
tags, once per overload."""

from __future__ import annotations

import torch
from torch._ops import HigherOrderOperator

from .arguments import Arguments, Keywords, Op

_RANDOM = torch.Tag.nondeterministic_seeded
_OURS = ("aten", "prims", "prim")
_EMPTY = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "empty_quantized", "_empty_affine_quantized", "_empty_per_channel_affine_quantized",
}  # fmt: skip
# These ops update running statistics in place, although their schemas do not say so. Without
# running statistics they compute the same results.
_NORMS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}


class OpInfo:
    """Facts about one op (an overload, or a higher-order operator)."""

    __slots__ = (
        "call", "detach", "dropout", "factory", "foreign", "func", "higher_order", "mutates",
        "norm", "packet", "pinned", "special", "view", "written",
    )  # fmt: skip

    def __init__(self, func: Op) -> None:
        schema = getattr(func, "_schema", None)
        self.func = func
        self.call = getattr(func, "_op", func)  # skips a Python wrapper
        self.packet = getattr(func, "overloadpacket", None)
        self.view = bool(getattr(func, "is_view", False))
        name = "" if schema is None else schema.name.split("::")[1]
        arguments = [] if schema is None else schema.arguments
        # an op of another library: rerunnable.held_because decides whether a call may run again
        self.foreign = schema is None or func.namespace not in _OURS
        random = schema is not None and _RANDOM in func.tags
        self.dropout = -1  # position of the argument dropout_p; if it is 0 nothing is random
        self.pinned = random or name in _EMPTY  # must not run again
        self.written: tuple[int | str, ...] = tuple(
            a.name if a.kwarg_only else i
            for i, a in enumerate(arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
        self.mutates = bool(self.written)
        if self.foreign and schema is not None and name.endswith("_") and not self.written:
            self.written = tuple(range(len(arguments)))  # c10d::allreduce_
            self.mutates = True
        self.norm = -1  # position of running_mean
        self.factory = False
        names = [a.name for a in arguments]
        if not self.foreign:
            if random and "dropout_p" in names:
                self.dropout = names.index("dropout_p")
            if name in _NORMS and "running_mean" in names:
                self.norm = names.index("running_mean")
            self.factory = "dtype" in names and not any("Tensor" in str(a.type) for a in arguments)
        self.detach = name == "detach" and not self.foreign
        self.higher_order = isinstance(func, HigherOrderOperator)
        special = self.mutates or self.norm >= 0 or self.factory or self.detach
        self.special = special or self.higher_order

    def runs_once(self, args: Arguments, kwargs: Keywords) -> bool:
        """True if this call must never run again."""
        if not self.pinned:
            return False
        if self.dropout < 0:
            return True
        at = self.dropout
        return bool(args[at] if at < len(args) else kwargs.get("dropout_p", 0.0))


infos: dict[Op, OpInfo] = {}


def info_of(func: Op) -> OpInfo:
    """Returns the facts about an op, cached."""
    info = infos.get(func)
    if info is None:
        info = infos[func] = OpInfo(func)
    return info
