"""Policies: what to save, recompute or move to the host, in the terms of PyTorch's selective
checkpointing.

A policy is one of

- a :class:`CheckpointPolicy`, for every operation;
- a collection of operation names: those are saved, all others recomputed;
- a function ``(ctx, op, *args, **kwargs) -> CheckpointPolicy | bool | None``, called for each
  operation as it is traced. ``op`` compares equal to its name (``op == "matmul"``), ``args`` are
  its traced inputs, ``kwargs`` its attributes. True means MUST_SAVE and False PREFER_RECOMPUTE, as
  in PyTorch. None leaves the decision to the enclosing policy, or to the planner.

MUST_* binds the planner. PREFER_* without a budget acts as MUST but yields to a contradicting MUST;
with a budget, violating it costs four times the usual price.

The names are those of ``jax.checkpoint_policies`` and of PyTorch's selective checkpointing. Graphs
from files take policies as text, see :mod:`cutback.constraints`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from . import _native

__all__ = [
    "MUST_OFFLOAD", "MUST_RECOMPUTE", "MUST_SAVE", "PREFER_OFFLOAD", "PREFER_RECOMPUTE",
    "PREFER_SAVE", "CheckpointPolicy", "MuTwo", "Op", "Policy", "PolicyContext", "PolicyFunction",
    "WholeGraph", "checkpoint_dots", "checkpoint_dots_with_no_batch_dims",
    "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable", "mu_two",
    "nothing_saveable", "offload_dot_with_no_batch_dims", "resolve",
    "save_and_offload_only_these_names", "save_any_names_but_these",
    "save_anything_except_these_names", "save_from_both_policies", "save_only_these_names",
    "save_only_these_ops",
]  # fmt: skip


class CheckpointPolicy(IntEnum):
    """What to do with a value that the backward needs.

    >>> def policy(ctx, op, *args, **kwargs):
    ...     products = cutback.CheckpointPolicy.MUST_SAVE
    ...     return products if op == "matmul" else cutback.CheckpointPolicy.PREFER_RECOMPUTE
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """

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
    """The name of an operation, as passed to a policy.

    >>> def policy(ctx, op, *args, **kwargs):
    ...     return op.has("compute")  # save products and convolutions
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """

    __slots__ = ()

    def has(self, flag: str) -> bool:
        """Returns True if the operation has a flag such as ``"compute"`` (compute-intensive),
        ``"pointwise"`` or ``"random"`` (see ``OP_FLAGS``)."""
        row = OPS.get(self)
        return row is not None and bool(row[4] >> OP_FLAGS.index(flag) & 1)


class PolicyContext(NamedTuple):
    """The place of an operation in the program.

    >>> def policy(ctx, op, *args, **kwargs):  # saves everything outside regions
    ...     return ctx.region is None
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """

    region: str | None
    """Name of the innermost checkpoint region. None: the operation is outside all regions."""
    location: str | None
    """Source line, ``"model.py:12"``."""


PolicyFunction = Callable[..., CheckpointPolicy | bool | None]
Policy = CheckpointPolicy | PolicyFunction | Iterable[str]

_NAMED = "checkpoint_name"


def resolve(policy: Policy | WholeGraph) -> PolicyFunction:
    """Converts any form of a policy to a function.

    Raises:
        TypeError, ValueError: if it is not a policy, or names an operation that does not exist.

    >>> policy = cutback.policies.resolve(["matmul"])
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    if isinstance(policy, WholeGraph):
        raise TypeError(
            "mu_two looks at a whole graph, not at one operation: pass it to cutback.plan"
        )
    if isinstance(policy, CheckpointPolicy):
        always = policy
        return lambda ctx, op, *args, **kwargs: None if op == _NAMED else always
    if callable(policy):
        if _first_parameter(policy) == "prim":
            raise TypeError(
                f"policy={policy!r:.60} takes (prim, *args, **params), as JAX's policies do, but "
                "Cutback's take (ctx, op, *args, **kwargs); cutback.policies has the same names"
            )
        return policy
    if isinstance(policy, str) or not isinstance(policy, Iterable):
        raise TypeError(
            f"policy={policy!r} is neither a CheckpointPolicy, nor a function "
            "(ctx, op, *args, **kwargs), nor a list of operation names to save"
        )
    try:
        return save_only_these_ops(*policy)
    except TypeError as error:  # an iterable that raises when iterated
        raise TypeError(f"policy={policy!r:.60}: {error}") from None


def _first_parameter(policy: Callable[..., Any]) -> str | None:
    try:
        parameters = inspect.signature(policy).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return None
    return next(iter(parameters), None)


def answer_of(answer: Any, op: str) -> CheckpointPolicy | None:
    """Converts the answer of a policy function about ``op``.

    Raises:
        TypeError: if it is neither a CheckpointPolicy, nor a bool, nor None.
    """
    if answer is None or isinstance(answer, CheckpointPolicy):
        return answer
    if isinstance(answer, bool | np.bool_):
        return MUST_SAVE if answer else PREFER_RECOMPUTE
    raise TypeError(f"the policy returned {answer!r} for {op}, not a CheckpointPolicy or a bool")


def save_only_these_ops(*ops: str) -> PolicyFunction:
    """Save the outputs of the operations ``ops`` (``"matmul"``, ``"conv2d"``, ...), recompute all
    others.

    Raises:
        ValueError: if there is no such operation.

    >>> policy = cutback.policies.save_only_these_ops("matmul")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    for op in ops:
        if not isinstance(op, str) or op not in OPS:
            raise ValueError(
                f"policy names the operation {op!r:.60}, which does not exist; `cutback ops` lists "
                "them"
            )
    saved = frozenset(ops)

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return None
        return MUST_SAVE if op in saved else PREFER_RECOMPUTE

    return policy


def save_only_these_names(*names: str) -> PolicyFunction:
    """Save the values marked by ``checkpoint_name(x, name)`` with one of ``names``, recompute all
    others.

    >>> policy = cutback.policies.save_only_these_names("hidden")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    saved = frozenset(names)

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return MUST_SAVE if kwargs["name"] in saved else None
        return PREFER_RECOMPUTE

    return policy


def _names_count(policy: PolicyFunction) -> PolicyFunction:
    """Marks a policy that may also return PREFER_RECOMPUTE for ``checkpoint_name``."""
    policy.drops_names = True  # type: ignore[attr-defined]
    return policy


def save_any_names_but_these(*names: str) -> PolicyFunction:
    """Save the values marked by ``checkpoint_name(x, name)`` unless the name is one of ``names``;
    recompute those and all others.

    >>> policy = cutback.policies.save_any_names_but_these("hidden")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    dropped = frozenset(names)

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return None if kwargs["name"] in dropped else MUST_SAVE
        return PREFER_RECOMPUTE

    return policy


def save_anything_except_these_names(*names: str) -> PolicyFunction:
    """Save every value that the backward reads, except those marked by ``checkpoint_name(x, name)``
    with one of ``names``.

    >>> policy = cutback.policies.save_anything_except_these_names("hidden")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    dropped = frozenset(names)

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            return PREFER_RECOMPUTE if kwargs["name"] in dropped else None
        return PREFER_SAVE

    return _names_count(policy)


def _check_places(offload_src: str, offload_dst: str) -> None:
    """Checks JAX's arguments that say from which memory to which values move. Only one pair is
    supported."""
    if (offload_src, offload_dst) != ("device", "pinned_host"):
        raise ValueError(
            f"offload_src={offload_src!r}, offload_dst={offload_dst!r}: values can only move from "
            "'device' to 'pinned_host'"
        )


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Iterable[str],
    names_which_can_be_offloaded: Iterable[str],
    offload_src: str = "device",
    offload_dst: str = "pinned_host",
) -> PolicyFunction:
    """Save the values that ``checkpoint_name`` marks with a name in ``names_which_can_be_saved``,
    move those with a name in ``names_which_can_be_offloaded`` to the host, recompute all others.
    ``offload_src`` and ``offload_dst`` exist for compatibility with JAX; only the defaults are
    valid.

    Raises:
        ValueError: if a name is in both lists, or a memory is not the default.

    >>> policy = cutback.policies.save_and_offload_only_these_names(
    ...     names_which_can_be_saved=["hidden"], names_which_can_be_offloaded=["scores"]
    ... )
    """
    _check_places(offload_src, offload_dst)
    saved, moved = frozenset(names_which_can_be_saved), frozenset(names_which_can_be_offloaded)
    if saved & moved:
        raise ValueError(
            f"cannot both save and offload the names {', '.join(sorted(saved & moved))}"
        )

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        if op == _NAMED:
            name = kwargs["name"]
            return MUST_SAVE if name in saved else MUST_OFFLOAD if name in moved else None
        return PREFER_RECOMPUTE

    return policy


def save_from_both_policies(*policies: Policy) -> PolicyFunction:
    """Save or offload each value that one of ``policies`` saves or offloads. If several do, the
    first of them decides.

    Raises:
        TypeError, ValueError: if one of them is not a policy.

    >>> policies = cutback.policies
    >>> policy = policies.save_from_both_policies(["matmul"], policies.dots_saveable)
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    functions = [resolve(one) for one in policies]
    keeps = (MUST_SAVE, PREFER_SAVE, MUST_OFFLOAD, PREFER_OFFLOAD)

    def policy(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
        said = [answer_of(function(ctx, op, *args, **kwargs), op) for function in functions]
        kept = [one for one in said if one in keeps]
        return next((one for one in [*kept, *said] if one is not None), None)

    return policy


@runtime_checkable
class WholeGraph(Protocol):
    """A policy that looks at a whole problem (JSON) and returns it with constraints.

    >>> isinstance(cutback.policies.mu_two("0.5x"), cutback.policies.WholeGraph)
    True
    """

    def constrain(self, problem: str, device: str | None = None) -> str:
        """Returns the problem with the policy's decisions added as constraints."""
        ...


def constrain_whole(
    policy: WholeGraph, problem: _native.Problem, device: str | None
) -> _native.Problem:
    """Adds the policy's decisions to the problem as constraints. Policies of this package work on
    the core's problem directly; others get it as JSON."""
    lay = getattr(policy, "lay", None)
    if lay is not None:
        laid: _native.Problem = lay(problem, device)
        return laid
    return _native.Problem.read(policy.constrain(problem.to_json(), device))


class MuTwo(NamedTuple):
    """mu-TWO's selection as a policy for :func:`cutback.plan`.

    >>> policy = cutback.policies.MuTwo("0.5x")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """

    saved: int | str

    def constrain(self, problem: str, device: str | None = None) -> str:
        """Returns the problem (JSON) with mu-TWO's selection added as constraints."""
        return self.lay(_native.Problem.read(problem), device).to_json()

    def lay(self, problem: _native.Problem, device: str | None = None) -> _native.Problem:
        """Returns a problem of the core with mu-TWO's selection added as constraints."""
        from .constraints import lay_mu_two  # here, because it is slow and rarely needed

        return lay_mu_two(problem, self.saved, device)


def mu_two(saved: int | str = "0.5x") -> MuTwo:
    """Recompute or offload the values with the largest benefit, as mu-TWO does, until only about
    ``saved`` bytes are saved between forward and backward. ``saved`` is an int (bytes), a size such
    as ``"2GiB"``, or a share such as ``"0.5x"`` of the bytes of saving everything.

    Source: S. Purandare et al., mu-TWO: 3x faster multi-model training with orchestration and
    memory optimization, MLSys 2023; ``docs/planner.md`` describes which parts are used.

    >>> policy = cutback.policies.mu_two("0.5x")
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    return MuTwo(saved)


def _ready(policy: PolicyFunction) -> PolicyFunction:
    """Wraps a policy that is passed without a call, so that calling it by mistake raises."""

    @functools.wraps(policy)
    def checked(*args: Any, **kwargs: Any) -> CheckpointPolicy | bool | None:
        if not args or not isinstance(args[0], PolicyContext):
            name = policy.__name__
            raise TypeError(f"{name} is a policy: pass {name}, without calling it")
        return policy(*args, **kwargs)

    return checked


@_ready
def dots_saveable(ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any) -> CheckpointPolicy | None:
    """Save the outputs of matrix products and convolutions, recompute all others.

    >>> policy = cutback.policies.dots_saveable
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    if op == _NAMED:
        return None
    return MUST_SAVE if op.has("compute") else PREFER_RECOMPUTE


@_ready
def everything_saveable(
    ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any
) -> CheckpointPolicy | None:
    """Save every value that the backward reads.

    >>> policy = cutback.policies.everything_saveable
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    return None if op == _NAMED else PREFER_SAVE


@_ready
def nothing_saveable(
    ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any
) -> CheckpointPolicy | None:
    """Recompute everything: plain checkpointing.

    >>> policy = cutback.policies.nothing_saveable
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    return None if op == _NAMED else PREFER_RECOMPUTE


def _has_no_batch(op: Op, args: tuple[Any, ...]) -> bool:
    """Returns True for a matrix product without batch dimensions."""
    return op == "matmul" and min(len(arg.shape) for arg in args[:2]) <= 2


@_ready
def dots_with_no_batch_dims_saveable(
    ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any
) -> CheckpointPolicy | None:
    """Save the outputs of matrix products with weights (one side has at most two dimensions),
    recompute all others, including batched products such as those of attention.

    >>> policy = cutback.policies.dots_with_no_batch_dims_saveable
    >>> plan = cutback.plan(loss, params, x, y, policy=policy)
    """
    if op == _NAMED:
        return None
    return MUST_SAVE if _has_no_batch(op, args) else PREFER_RECOMPUTE


def _offload_dot_with_no_batch_dims(
    ctx: PolicyContext, op: Op, *args: Any, **kwargs: Any
) -> CheckpointPolicy | None:
    if op == _NAMED:
        return None
    return MUST_OFFLOAD if _has_no_batch(op, args) else PREFER_RECOMPUTE


def offload_dot_with_no_batch_dims(*args: Any, **kwargs: Any) -> Any:
    """Move the values that :func:`dots_with_no_batch_dims_saveable` saves to the host, recompute
    all others.

    This function is itself a policy: its ``args`` and ``kwargs`` are those of any policy. Calling
    it as JAX does, ``offload_dot_with_no_batch_dims("device", "pinned_host")``, returns the policy.

    Raises:
        ValueError: if it is called with other memories.

    >>> policy = cutback.policies.offload_dot_with_no_batch_dims
    """
    if args and isinstance(args[0], PolicyContext):
        return _offload_dot_with_no_batch_dims(*args, **kwargs)
    places = inspect.signature(_check_places).bind(*args, **kwargs)
    _check_places(*places.args)
    return _offload_dot_with_no_batch_dims


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
