"""May an op of another library run again? From its schema, its tags, and what the user declares.

PyTorch's own ops are known by name. Of any other op, be it a ``torch.library.custom_op``, one of
``torch.library.define`` or of C++, it may run again what its registration says to be a function of
its arguments, and nothing else: it changes none of them, returns fresh tensors, is known to draw
and to communicate nothing, has no effects, and has a fake kernel, that is, its author prepared it
for graphs in which calls are moved, merged and dropped. That such a function gives the same bits
for the same bits is taken on trust. Tags say where it does not (``nondeterministic_seeded``,
``nondeterministic_bitwise``), and :func:`declare` says it of the ops of others.

Compiled graphs and eager regions ask the same question, :func:`why_once`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef
    from torch.fx.node import Argument, Target

_PYTORCH = frozenset({"aten", "prims", "prim", "cutback"})
COLLECTIVES = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "_dtensor",
    "symm_mem", "fsdp",
})  # fmt: skip
_ACTS = frozenset({"profiler", "rpc"})
_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "random", "bernoulli", "multinomial", "normal",
    "uniform", "poisson", "philox", "noise", "dropout", "rng",
})  # fmt: skip
_TALKS = re.compile(
    "all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|(^|_)(send|recv|barrier)(_|$)"
)
_GROUPS = frozenset({"group", "group_name", "group_names", "process_group", "pg", "ranks"})

_OBJECTS = ("PyObject", "__torch__.")
"""In types of arguments that are objects of registered Python classes, or of TorchScript's."""

_SAID = "it is declared not to be rerunnable"


class _Verdict(NamedTuple):
    """On one overload."""

    never: str = ""  # why it may not run again, whatever is declared
    doubt: str = ""  # why it does not by default
    rates: tuple[int, ...] = ()
    """Arguments of a call; where they are 0 it is not in doubt, as it drops nothing."""


_verdicts: dict[Target, _Verdict] = {}
_declared: dict[OpOverload, bool] = {}
_version = 0


def _never(op: OpOverload) -> str:
    """What shows that a second run would be seen."""
    schema = op._schema
    name = schema.name.split("::")[-1]
    written = [
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    if written:
        return f"it writes into its argument {written[0]}"
    if schema.is_mutable or (name.endswith("_") and not name.endswith("__")):
        return "by its name it writes into an argument"
    if any(r.alias_info is not None for r in schema.returns):
        return "what it returns lies in the memory of an argument"
    if not any("Tensor" in str(r.type) for r in schema.returns):
        return "it returns no tensor, so it is called for what it does"
    if op.namespace in COLLECTIVES:
        return "it communicates"
    if op.namespace in _ACTS or _effect(op):
        return "it has effects"
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "it draws random numbers (tag nondeterministic_seeded)"
    return ""


def _effect(op: OpOverload) -> bool:
    """Is an effect registered with PyTorch, so that calls keep their order by tokens?"""
    from torch._higher_order_ops import effects

    ask = getattr(effects, "_get_effect", None)
    return ask is None or ask(op) is not None


def _has_fake(op: OpOverload) -> bool:
    from torch._library import utils

    ask = getattr(utils, "has_fake_kernel", None)
    return ask is not None and bool(ask(op))


def _words(name: str) -> list[str]:
    return name.lower().split("_")


def _doubt(op: OpOverload) -> tuple[str, tuple[int, ...]]:
    """What makes it likely that a second run would be seen; positions of the rates of dropouts, if
    these are all."""
    schema = op._schema
    bitwise = getattr(torch.Tag, "nondeterministic_bitwise", None)
    if bitwise is not None and bitwise in op.tags:
        return "its bits may differ from run to run (tag nondeterministic_bitwise)", ()
    if not _has_fake(op):
        return "it has no fake kernel", ()
    if not any("Tensor" in str(a.type) for a in schema.arguments):
        return "it reads no tensor: what it returns comes from elsewhere", ()
    name = schema.name.split("::")[-1]
    if _TALKS.search(name):
        return "by its name it communicates", ()
    own = _words(name)
    if "empty" in own:
        return "by its name it returns memory that is not filled", ()
    drawing = sorted(_DRAWS.intersection(own))
    if drawing:
        return f"by its name ('{drawing[0]}') it draws random numbers", ()
    rates = []
    for i, a in enumerate(schema.arguments):
        type_name = str(a.type)
        if a.name in _GROUPS or "ProcessGroup" in type_name:
            return f"by its argument {a.name} it communicates", ()
        if "dropout" in _words(a.name) and type_name == "float":
            rates.append(i)
        elif "Generator" in type_name or not _DRAWS.isdisjoint(_words(a.name)):
            return f"by its argument {a.name} it draws random numbers", ()
        elif any(word in type_name for word in _OBJECTS):
            return f"its argument {a.name} is an object that may have a state", ()
    if rates:
        rate = schema.arguments[rates[0]].name
        return f"it draws random numbers where its argument {rate} is not 0", tuple(rates)
    return "", ()


def _judge(op: Target) -> _Verdict:
    if isinstance(op, HigherOrderOperator):
        return _Verdict(doubt="it is a higher-order operator: nothing says what it does inside")
    if not isinstance(op, OpOverload):
        return _Verdict(doubt="it is a Python function: it has no schema")
    never = _never(op)
    return _Verdict(never) if never else _Verdict("", *_doubt(op))


def declared(op: OpOverload) -> bool | None:
    """What the user said of an overload; None: nothing."""
    return _declared.get(op)


def declarations() -> list[tuple[str, bool]]:
    """All that is declared, sorted by name."""
    return sorted((str(op), again) for op, again in _declared.items())


def version() -> int:
    """Changes with each declaration: what was planned before it is planned anew."""
    return _version


def held_because(
    op: Target, args: Sequence[Argument] = (), kwargs: Mapping[str, Argument] | None = None
) -> str:
    """Why a call of an op of another library runs once; "": it may run again.

    ``args`` and ``kwargs`` are those of the call, values or nodes of a graph.
    """
    verdict = _verdicts.get(op)
    if verdict is None:  # at its first call everything about it is registered
        verdict = _verdicts[op] = _judge(op)
    if verdict.never:
        return verdict.never
    said = _declared.get(op)
    if said is not None:
        return "" if said else _SAID
    if verdict.rates and all(_given(op, at, args, kwargs or {}) == 0 for at in verdict.rates):
        return ""
    return verdict.doubt


def _given(
    op: OpOverload, at: int, args: Sequence[Argument], kwargs: Mapping[str, Argument]
) -> float | None:
    argument = op._schema.arguments[at]
    value = args[at] if at < len(args) else kwargs.get(argument.name, argument.default_value)
    return value if isinstance(value, (int, float)) else None


def _overloads(op: OpOverload | OpOverloadPacket | CustomOpDef) -> Iterator[OpOverload]:
    op = getattr(op, "_opoverload", op)  # of a torch.library.custom_op
    if isinstance(op, OpOverload):
        yield op
    elif isinstance(op, OpOverloadPacket):
        for name in op.overloads():
            yield getattr(op, name)
    else:
        raise TypeError(
            f"{op!r} is no op of a library: give what torch.library.custom_op returned, or "
            "torch.ops.<library>.<name>. A policy (policy=, policy_fn=) has a say in any other call"
        )


def why_once(op: OpOverload | OpOverloadPacket | CustomOpDef) -> str | None:
    """Why an op of another library runs once in a step, in words; None: it may run again.

    >>> cutback.torch.rerun.why_once(torch.ops.mylib.fused_norm)
    'it has no fake kernel'

    Args:
        op: what ``torch.library.custom_op`` returned, an overload, or a packet
            (``torch.ops.mylib.fused_norm``; the first of its overloads that runs once speaks).

    Raises:
        TypeError: that is no op of a library. ValueError: it is PyTorch's own.
    """
    for overload in _foreign(op):
        verdict, said = _judge(overload), declared(overload)
        if verdict.never:
            return verdict.never
        if said is False:
            return _SAID
        if said is None and verdict.doubt:
            return verdict.doubt
    return None


def _foreign(op: OpOverload | OpOverloadPacket | CustomOpDef) -> list[OpOverload]:
    found = list(_overloads(op))
    for overload in found:
        if overload.namespace in _PYTORCH:
            raise ValueError(
                f"{overload} is PyTorch's own, of which it is known whether it may run again; to "
                "have its results saved, name it in a policy"
            )
    return found


def declare(op: OpOverload | OpOverloadPacket | CustomOpDef, *, rerunnable: bool | None) -> None:
    """Says whether an op of another library may run again in the backward.

    Goes before what is found out about the op (:func:`why_once`), for all overloads of a packet.
    ``True``: it is a function of its arguments, gives the same bits for the same bits, and chooses
    nothing by comparing values that a fused rerun might make with other bits. ``False``: it runs
    once. ``None``: as if nothing had been said. To be called before the step is compiled: what is
    compiled stays as it is, while eager regions are planned anew. How expensive a run is says
    ``torch.utils.flop_counter.register_flop_formula``, or a profile.

    Args:
        op: what ``torch.library.custom_op`` returned, an overload, or a packet
            (``torch.ops.mylib.fused_norm``).

    Raises:
        TypeError: that is no op of a library, or ``rerunnable`` is none of the three. ValueError:
            it is PyTorch's own; or it is said to be rerunnable, and its schema, tags or effects say
            that it is not. Nothing is declared then.
    """
    if rerunnable is not None and not isinstance(rerunnable, bool):
        raise TypeError(f"rerunnable={rerunnable!r} is not True, False or None")
    found = _foreign(op)
    for overload in found:
        never = _never(overload)
        if rerunnable and never:
            raise ValueError(f"{overload} cannot be declared rerunnable: {never}")
    global _version
    _version += 1
    for overload in found:
        _declared.pop(overload, None)
        if rerunnable is not None:
            _declared[overload] = rerunnable
