"""Decides whether an op of another library may run again, from its schema, its tags and the user's
declaration.

PyTorch's own ops are known by name. Any other op, whether defined by ``torch.library.custom_op``,
``torch.library.define`` or in C++, may run again only if its registration shows that it is a
function of its arguments. That is, it changes no argument, returns new tensors, does not draw or
communicate, has no effects, and has a fake kernel, which means that its author prepared it for
graphs in which calls are moved, merged and dropped. Such a function is trusted to give the same
bits for the same bits. Tags say so if it does not (``nondeterministic_seeded``,
``nondeterministic_bitwise``), and :func:`declare` overrides the default.

Compiled graphs and eager regions use the same function, :func:`held_because`.
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
"""Parts of the type names of arguments that are objects of registered Python classes or of
TorchScript classes."""

_SAID = "it is declared not to be rerunnable"


class _Verdict(NamedTuple):
    """The verdict on one overload."""

    never: str = ""  # why it must not run again, whatever is declared
    doubt: str = ""  # why it does not by default
    rates: tuple[int, ...] = ()
    """Arguments of a call that are dropout rates. If they are 0 there is no doubt, because nothing
    is dropped."""


_verdicts: dict[Target, _Verdict] = {}
_declared: dict[OpOverload, bool] = {}
_version = 0


def _never(op: OpOverload) -> str:
    """Returns the reason why a second run would certainly be visible, or ""."""
    schema = op._schema
    name = schema.name.split("::")[-1]
    written = [
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    if written:
        return f"it writes into its argument {written[0]}"
    if schema.is_mutable or (name.endswith("_") and not name.endswith("__")):
        return "its name says that it writes into an argument"
    if any(r.alias_info is not None for r in schema.returns):
        return "its result shares memory with an argument"
    if not any("Tensor" in str(r.type) for r in schema.returns):
        return "it returns no tensor, so it is called for its effects"
    if op.namespace in COLLECTIVES:
        return "it communicates"
    if op.namespace in _ACTS or _effect(op):
        return "it has effects"
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "it draws random numbers (tag nondeterministic_seeded)"
    return ""


def _effect(op: OpOverload) -> bool:
    """True if an effect is registered with PyTorch, so that tokens keep the order of calls."""
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
    """Returns the reason why a second run would probably be visible, and the positions of dropout
    rates if these are the only reason."""
    schema = op._schema
    bitwise = getattr(torch.Tag, "nondeterministic_bitwise", None)
    if bitwise is not None and bitwise in op.tags:
        return "its bits may differ from run to run (tag nondeterministic_bitwise)", ()
    if not _has_fake(op):
        return "it has no fake kernel", ()
    if not any("Tensor" in str(a.type) for a in schema.arguments):
        return "it reads no tensor, so its result comes from elsewhere", ()
    name = schema.name.split("::")[-1]
    if _TALKS.search(name):
        return "its name says that it communicates", ()
    own = _words(name)
    if "empty" in own:
        return "its name says that it returns uninitialized memory", ()
    drawing = sorted(_DRAWS.intersection(own))
    if drawing:
        return f"its name ('{drawing[0]}') says that it draws random numbers", ()
    rates = []
    for i, a in enumerate(schema.arguments):
        type_name = str(a.type)
        if a.name in _GROUPS or "ProcessGroup" in type_name:
            return f"its argument {a.name} says that it communicates", ()
        if "dropout" in _words(a.name) and type_name == "float":
            rates.append(i)
        elif "Generator" in type_name or not _DRAWS.isdisjoint(_words(a.name)):
            return f"its argument {a.name} says that it draws random numbers", ()
        elif any(word in type_name for word in _OBJECTS):
            return f"its argument {a.name} is an object that may have a state", ()
    if rates:
        rate = schema.arguments[rates[0]].name
        return f"it draws random numbers if its argument {rate} is not 0", tuple(rates)
    return "", ()


def _judge(op: Target) -> _Verdict:
    if isinstance(op, HigherOrderOperator):
        return _Verdict(doubt="it is a higher-order operator, whose body is unknown")
    if not isinstance(op, OpOverload):
        return _Verdict(doubt="it is a Python function: it has no schema")
    never = _never(op)
    return _Verdict(never) if never else _Verdict("", *_doubt(op))


def declared(op: OpOverload) -> bool | None:
    """Returns the user's declaration of an overload, or None."""
    return _declared.get(op)


def declarations() -> list[tuple[str, bool]]:
    """Returns all declarations, sorted by name."""
    return sorted((str(op), again) for op, again in _declared.items())


def version() -> int:
    """Returns a number that changes with each declaration, so that earlier plans are made again."""
    return _version


def held_because(
    op: Target, args: Sequence[Argument] = (), kwargs: Mapping[str, Argument] | None = None
) -> str:
    """Returns the reason why a call of an op of another library runs once, or "" if it may run
    again. ``args`` and ``kwargs`` are those of the call, values or nodes of a graph.
    """
    verdict = _verdicts.get(op)
    if verdict is None:  # at its first call everything about the op is registered
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
    op = getattr(op, "_opoverload", op)  # the overload behind a torch.library.custom_op
    if isinstance(op, OpOverload):
        yield op
    elif isinstance(op, OpOverloadPacket):
        for name in op.overloads():
            yield getattr(op, name)
    else:
        raise TypeError(
            f"{op!r} is not an op of a library: pass the result of torch.library.custom_op, or "
            "torch.ops.<library>.<name>. For any other call use a policy (policy=, policy_fn=)"
        )


def why_once(op: OpOverload | OpOverloadPacket | CustomOpDef) -> str | None:
    """Returns why an op of another library runs only once in a step, or None if it may run again.

    >>> cutback.torch.rerun.why_once(torch.ops.mylib.fused_norm)
    'it has no fake kernel'

    Args:
        op: the result of ``torch.library.custom_op``, an overload, or a packet
            (``torch.ops.mylib.fused_norm``; the reason is that of its first overload that runs
            once).

    Raises:
        TypeError: ``op`` is not an op of a library.
        ValueError: ``op`` is one of PyTorch's own ops.
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
                f"{overload} is one of PyTorch's own ops, whose reruns cannot be declared; to "
                "save its results, name it in a policy"
            )
    return found


def declare(op: OpOverload | OpOverloadPacket | CustomOpDef, *, rerunnable: bool | None) -> None:
    """Declares whether an op of another library may run again in the backward.

    >>> cutback.torch.rerun.declare(torch.ops.mylib.fused_norm, rerunnable=True)
    >>> cutback.torch.rerun.why_once(torch.ops.mylib.fused_norm) is None
    True
    >>> cutback.torch.rerun.declare(torch.ops.mylib.fused_norm, rerunnable=None)

    The declaration overrides the default (:func:`why_once`), for all overloads of a packet.
    ``True`` says that the op is a function of its arguments, gives the same bits for the same bits,
    and does not choose by comparing values that a fused rerun might compute with other bits.
    ``False`` says that it runs once. ``None`` removes the declaration. Call this before the step is
    compiled: compiled code does not change, while eager regions are planned again. To tell the
    planner what a run costs, use ``torch.utils.flop_counter.register_flop_formula`` or a profile.

    Args:
        op: the result of ``torch.library.custom_op``, an overload, or a packet
            (``torch.ops.mylib.fused_norm``).

    Raises:
        TypeError: ``op`` is not an op of a library, or ``rerunnable`` is not one of the three.
        ValueError: ``op`` is one of PyTorch's own ops, or it is declared rerunnable although its
            schema, tags or effects show that it is not. Nothing is declared in that case.
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
