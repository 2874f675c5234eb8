"""What the user may say about saving: the vocabulary of PyTorch's selective checkpointing, and
ready policies.

A policy is one of

- a :class:`CheckpointPolicy`, for every operation;
- a collection of operation names: those are saved, all others recomputed;
- a function ``(ctx, op, *args, **kwargs) -> CheckpointPolicy | None``, asked for each operation as
  it is traced. ``op`` compares equal to its name (``op == "matmul"``), ``args`` are its traced
  inputs, ``kwargs`` its attributes. None leaves the decision to the policy around it, at last to
  the planner.

MUST_* binds the planner. PREFER_* without a budget acts as MUST but yields to a contradicting MUST;
with a budget, going against it costs more than its worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native

if TYPE_CHECKING:
    from .tracer import Array


class CheckpointPolicy(IntEnum):
    """What to do with a value that the backward needs."""

    FREE = 0
    MUST_SAVE = 1
    PREFER_SAVE = 2
    MUST_RECOMPUTE = 3
    PREFER_RECOMPUTE = 4
    MUST_OFFLOAD = 5
    PREFER_OFFLOAD = 6


MUST_SAVE = CheckpointPolicy.MUST_SAVE
PREFER_SAVE = CheckpointPolicy.PREFER_SAVE
MUST_RECOMPUTE = CheckpointPolicy.MUST_RECOMPUTE
PREFER_RECOMPUTE = CheckpointPolicy.PREFER_RECOMPUTE
MUST_OFFLOAD = CheckpointPolicy.MUST_OFFLOAD
PREFER_OFFLOAD = CheckpointPolicy.PREFER_OFFLOAD

OP_FLAGS = (
    "source",
    "pointwise",
    "reduce",
    "view",
    "compute",
    "random",
    "strided",
    "matrix",
    "grad",
)
"""Names of the flag bits of an operation, from bit 0."""

OPS = {row[0]: row for row in _native.op_table()}
"""The core's op table: name -> (name, min_ins, max_ins, n_outs, flags, attributes, meaning,
differentiable)."""


class Op(str):
    """The name of an operation, as a policy sees it."""

    __slots__ = ()

    def has(self, flag: str) -> bool:
        """Is this a ``"compute"``-intensive, ``"pointwise"``, ``"random"``, ... operation (see
        :data:`OP_FLAGS`)?"""
        row = OPS.get(self)
        return row is not None and bool(row[4] >> OP_FLAGS.index(flag) & 1)


class PolicyContext(NamedTuple):
    """Where an operation stands."""

    region: str | None  # name of the innermost checkpoint region
    location: str | None  # "model.py:12"


PolicyFunction = Callable[..., CheckpointPolicy | None]
Policy = CheckpointPolicy | PolicyFunction | Iterable[str]

_NAMED = "checkpoint_name"


def resolve(policy: Policy) -> PolicyFunction:
    """Any form of a policy as a function.

    Raises:
        TypeError, ValueError: not a policy, or it names an operation that does not exist.
    """
    if isinstance(policy, CheckpointPolicy):
        always = policy
        return lambda ctx, op, *args, **kwargs: None if op == _NAMED else always
    if callable(policy):
        return policy
    if isinstance(policy, str) or not isinstance(policy, Iterable):
        raise TypeError(
            f"policy={policy!r} is neither a CheckpointPolicy, nor a function "
            "(ctx, op, *args, **kwargs), nor a list of operation names to save"
        )
    return save_only_these_ops(*policy)


def save_only_these_ops(*ops: str) -> PolicyFunction:
    """Save the outputs of the named operations (``"matmul"``, ``"conv2d"``, ...), recompute all
    others.

    Raises:
        ValueError: there is no such operation.
    """
    for op in ops:
        if op not in OPS:
            raise ValueError(
                f"policy names the operation {op!r}, which does not exist; `cutback ops` lists them"
            )
    saved = frozenset(ops)

    def policy(ctx: PolicyContext, op: Op, *args: Array, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return None
        return MUST_SAVE if op in saved else PREFER_RECOMPUTE

    return policy


def save_only_these_names(*names: str) -> PolicyFunction:
    """Save the values marked by ``checkpoint_name(x, name)`` with one of ``names``, recompute all
    others."""
    saved = frozenset(names)

    def policy(ctx: PolicyContext, op: Op, *args: Array, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return MUST_SAVE if kwargs["name"] in saved else None
        return PREFER_RECOMPUTE

    return policy


def dots_saveable(
    ctx: PolicyContext, op: Op, *args: Array, **kwargs: Any
) -> CheckpointPolicy | None:
    """Save the outputs of matrix products and convolutions, recompute all others."""
    if op == _NAMED:
        return None
    return MUST_SAVE if op.has("compute") else PREFER_RECOMPUTE


def everything_saveable(
    ctx: PolicyContext, op: Op, *args: Array, **kwargs: Any
) -> CheckpointPolicy | None:
    """Save every value that the backward reads."""
    return None if op == _NAMED else PREFER_SAVE


def nothing_saveable(
    ctx: PolicyContext, op: Op, *args: Array, **kwargs: Any
) -> CheckpointPolicy | None:
    """Recompute everything: plain checkpointing."""
    return None if op == _NAMED else PREFER_RECOMPUTE
