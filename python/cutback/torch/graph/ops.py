"""Facts about operations for the planner: class, arithmetic, and whether they may run twice.

The core knows the names of fusible and compute-intensive operations (``csrc/plan/torch/aten.c``)
and is asked once for every name. Facts that decide correctness (randomness, effects, mutation) come
from PyTorch's schemas and tags.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils import flop_counter

from ... import _native
from ...problem import Flag
from . import draws
from .rerunnable import COLLECTIVES
from .sizes import hint

if TYPE_CHECKING:
    from torch._C import FunctionSchema
    from torch._ops import OpOverloadPacket
    from torch.fx.node import Argument, Target

"""Flags of operations that run at most once."""

_KNOWN = frozenset({"aten", "prims", "cutback"})
_PURE_FUNCTION_OF_SEED = frozenset(
    {"prims.inductor_lookup_seed", "prims.inductor_random", "prims.inductor_randint"}
)
_FROM_CORE: frozenset[Flag] = frozenset({"fusible", "reduction", "compute"})

DROPOUT_RESULT = "aten.native_dropout.result"
"""The importer's name for the result of a dropout, ``x * mask * scale``, as opposed to its draw."""

_PASSES = {"aten._safe_softmax.default": 3}
_PASSES_ON_CPU = {DROPOUT_RESULT: 2, "aten.native_dropout_backward.default": 2}
_PASSES_OVER_PLANES_ON_CPU = {
    "aten._native_batch_norm_legit_functional.default": 5,
    "aten._native_batch_norm_legit.no_stats": 5,
    "aten.native_batch_norm.default": 5,
    "aten.max_pool2d_with_indices.default": 16,
    "aten.avg_pool2d.default": 7,
    "aten._adaptive_avg_pool2d.default": 4,
}
"""Kernels that are not vectorized if channels are not the innermost dimension. The number is the
measured time divided by the time of their bytes at the machine's memory bandwidth."""

_GROUPED = {
    "transformers.grouped_mm_fallback": 2,
    "transformers.grouped_mm_fallback_backward": 4,  # gradients of both
}

Formula = Callable[..., int]


class Kind(NamedTuple):
    """Facts about one operation, independent of its arguments."""

    name: str  # "aten.mul.Tensor"
    flags: frozenset[Flag]
    flops: Formula | None
    rate: int | None  # position of the dropout probability among the arguments
    writes: tuple[int | str, ...]  # positions and names of the arguments that it changes

    @property
    def mutable(self) -> bool:
        """True if it writes into an argument."""
        return bool(self.writes)


_kinds: dict[Target, Kind] = {}
_core_flags: dict[tuple[str, tuple[str, ...]], frozenset[Flag]] = {}


def _sdpa_for_cpu() -> dict[OpOverloadPacket, Formula]:
    """Returns formulas for the arithmetic of CPU flash attention: PyTorch's for GPUs, which takes
    the same arguments."""
    aten, counted = torch.ops.aten, flop_counter.flop_registry
    found = {}
    for direction in ("", "_backward"):
        own = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{direction}", None)
        twin = counted.get(getattr(aten, f"_scaled_dot_product_flash_attention{direction}", None))
        if own is not None and twin is not None:
            found[own] = twin
    return found


def _draws() -> dict[OpOverloadPacket, Formula]:
    def integer_ops(*args: Argument, out_val: torch.Tensor, **kwargs: Argument) -> int:
        flops: int = draws.FLOPS_PER_ELEMENT * out_val.numel()
        return flops

    drawn = (draws.KEEP_MASK, draws.UNIFORM, draws.NORMAL)
    return dict.fromkeys([op.overloadpacket for op in drawn], integer_ops)


_formulas: dict[OpOverloadPacket, Formula] = {}


def _formula(target: Target) -> Formula | None:
    if not _formulas:
        _formulas.update({**_sdpa_for_cpu(), **_draws()})
    packet = getattr(target, "overloadpacket", target)
    known = flop_counter.flop_registry.get(packet) or _formulas.get(packet)
    return known or (_grouped(_GROUPED[str(packet)]) if str(packet) in _GROUPED else None)


def _grouped(times: int) -> Formula:
    """Returns a formula for the arithmetic of a grouped product: each row of an input [tokens, in]
    times one of the weights [groups, in, out]."""

    def grouped(
        rows: torch.Tensor,
        weight: torch.Tensor,
        *rest: Argument,
        out_val: torch.Tensor,
        **options: Argument,
    ) -> int:
        flops: int = times * rows.shape[0] * weight.shape[1] * weight.shape[2]
        return flops

    return grouped


def name_of(target: Target) -> str:
    """Returns ``"aten.mul.Tensor"`` for an operator, ``"_operator.getitem"`` for a Python
    function."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "") or ""
    return f"{module}.{getattr(target, '__name__', target)}"


def passes(name: str, result: torch.Tensor) -> int:
    """Returns how many passes an operation makes over its memory, because some PyTorch operations
    are several kernels. A safe softmax is a softmax, a search for masked rows, and a choice between
    the softmax and zero; ``x * mask * scale`` is two products on a CPU, and one on a GPU. A slow
    kernel counts as several passes, such as a batch norm of planes on a CPU, which sums in scalars.

    Args:
        name: name of the operation.
        result: its first result.
    """
    if name in _PASSES or result.device.type != "cpu":
        return _PASSES.get(name, 1)
    over_planes = result.dim() > 2 and hint(result.stride(1)) != 1 and result.element_size() > 2
    slow = _PASSES_OVER_PLANES_ON_CPU.get(name) if over_planes else None
    return slow or _PASSES_ON_CPU.get(name, 1)


def rate_of(args: Sequence[Argument], kwargs: Mapping[str, Argument], position: int) -> Argument:
    """Returns the dropout probability of a call; ``position`` as in :class:`Kind`."""
    return args[position] if len(args) > position else kwargs.get("dropout_p", 0.0)


def _rate(schema: FunctionSchema) -> int | None:
    for k, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            return k
    return None


def _writes(schema: FunctionSchema) -> tuple[int | str, ...]:
    """Returns the arguments that a call changes. Some ops do not declare them: ``c10d.allreduce_``,
    and ``inductor.resize_storage_bytes_``, which frees the memory of a tensor. Their names end in
    an underscore, which says that they change arguments, so all arguments count."""
    places = [(a.name if a.kwarg_only else i, a) for i, a in enumerate(schema.arguments)]
    declared = [k for k, a in places if a.alias_info is not None and a.alias_info.is_write]
    name = schema.name.split("::")[-1]
    if not declared and name.endswith("_") and not name.endswith("__"):
        return tuple(k for k, _ in places)
    return tuple(declared)


def _describe(target: Target) -> Kind:
    """Returns PyTorch's facts about an operation; :func:`learn` adds the core's."""
    name = name_of(target)
    if target is operator.getitem:
        return Kind(name, frozenset(), None, None, ())
    flags: set[Flag] = set()
    if not isinstance(target, torch._ops.OpOverload):
        if isinstance(target, torch._ops.HigherOrderOperator):
            flags.add("effect" if target.name() == "with_effects" else "unknown")
        elif getattr(target, "__module__", "") not in ("_operator", "math", "torch"):
            flags.add("unknown")
        return Kind(name, frozenset(flags), _formula(target), None, ())
    space = target.namespace
    if space in COLLECTIVES:
        flags.add("collective")
    elif space not in _KNOWN:
        flags.add("unknown")
    packet = ".".join(name.split(".")[:2])
    if torch.Tag.nondeterministic_seeded in target.tags and packet not in _PURE_FUNCTION_OF_SEED:
        flags.add("random_stateful")
    return Kind(
        name, frozenset(flags), _formula(target), _rate(target._schema), _writes(target._schema)
    )


def _tags_of(target: Target) -> tuple[str, ...]:
    """Returns those tags of a PyTorch operation that the core reads."""
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    known = ("pointwise", torch.Tag.pointwise), ("reduction", torch.Tag.reduction)
    return tuple(name for name, tag in known if tag in tags)


def _ask_core(unknown: list[tuple[str, tuple[str, ...]]]) -> None:
    """Asks the core for the classes of operations, which it knows by name."""
    nodes = [
        {
            "kind": "call_function", "op": name, "name": f"n{i}", "inputs": [], "tags": list(tags),
            "out": [{"shape": [1], "dtype": "float32", "bytes": 4, "storage": i}],
        }
        for i, (name, tags) in enumerate(unknown)
    ]  # fmt: skip
    graph = {
        "nodes": nodes, "storage_bytes": [4] * len(nodes),
        "forward_outputs": [], "backward_outputs": [],
    }  # fmt: skip
    problem = _native.Problem.read(json.dumps(graph)).parts()
    for key, op in zip(unknown, problem.ops, strict=True):
        _core_flags[key] = op.flags & _FROM_CORE


def learn(targets: Iterable[Target]) -> dict[Target, Kind]:
    """Returns the kind of each operation."""
    new = dict.fromkeys([t for t in targets if t not in _kinds])  # hashing is slow
    described = {t: _describe(t) for t in new}
    keys = {target: (kind.name, _tags_of(target)) for target, kind in described.items()}
    unknown = [key for key in dict.fromkeys(keys.values()) if key not in _core_flags]
    if unknown:
        _ask_core(unknown)
    for target, kind in described.items():
        _kinds[target] = kind._replace(flags=_core_flags[keys[target]] | kind.flags)
    return _kinds
