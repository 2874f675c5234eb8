"""Policies for problems in files, written as text: which values to save, recompute or offload.

>>> text = cutback.constraints.constrain(problem, "save:matmul+names:tanh*")
>>> plan = cutback.plan(text, budget=0.5)

:func:`cutback.plan` and the command line (``--policy``) accept the same texts. A policy is

- a name: ``everything_saveable``, ``nothing_saveable``, ``dots_saveable`` (also
  ``checkpoint_dots``), ``dots_with_no_batch_dims_saveable`` (also
  ``checkpoint_dots_with_no_batch_dims``), ``offload_dot_with_no_batch_dims``;
- ``save:OP,...``: save the results of these operations and recompute all others;
  ``recompute:OP,...``: recompute their results and save all others; ``offload:OP,...``: move their
  results to the host and recompute all others. OP is a kind (``aten.mm.default`` or ``aten.mm``) or
  the name of one operation (``mm_7``);
- ``names:PATTERN,...``: save the results of operations whose names match (``names:attn_*``), and
  recompute all others;
- the path of a file ``TABLE.json`` with a table for :func:`by_table`;
- ``mu-two`` or ``mu-two:BYTES`` (``mu-two:2GiB``, ``mu-two:0.4x``): mu-TWO's selection for that
  many saved bytes, by default half of the bytes of saving everything;
- several of these joined by ``+``: a value is saved or moved if any of them does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, get_args

from . import _native, budgets, files
from .problem import Constraint, Op, Problem

__all__ = ["CONSTRAINTS", "NAMES", "by_table", "constrain", "mu_two"]

Chooser = Callable[[Op], Constraint | None]
"""Maps an operation of a problem to its constraint, or to None to leave it unconstrained."""

CONSTRAINTS: tuple[Constraint, ...] = get_args(Constraint)
"""The constraints that an operation's results may have. "must" binds the planner. "prefer" yields
to a contradicting "must"; under a budget, violating it costs four times the usual price."""

PYTORCH = {"must_cpu_offload": "must_offload", "prefer_cpu_offload": "prefer_offload"}
"""PyTorch's names for two of the constraints. Case does not matter."""

BATCHED = frozenset({"aten.bmm", "aten.baddbmm", "bmm", "baddbmm"})
NAMES = (
    "everything_saveable", "nothing_saveable", "dots_saveable", "checkpoint_dots",
    "dots_with_no_batch_dims_saveable", "checkpoint_dots_with_no_batch_dims",
    "offload_dot_with_no_batch_dims",
)  # fmt: skip
"""Policies that are selected by name and take no arguments."""


def packet(kind: str) -> str:
    """Drops the overload from a kind: ``aten.mm.default`` -> ``aten.mm``."""
    return ".".join(kind.split(".")[:2])


def _rank(type_: str) -> int:
    """Returns the number of dimensions of a type such as ``f32[8,32]``."""
    inside = type_[type_.find("[") + 1 : -1]
    return len(inside.split(",")) if inside else 0


def _is_dot(op: Op) -> bool:
    return "compute" in op.flags


def _has_batch(op: Op, types: list[str]) -> bool:
    """Returns True if a product has batch dimensions, which both sides share and which are not
    summed over. Convolution and attention, which are not plain products, count as batched."""
    kind = op.kind
    name = packet(kind).removeprefix("aten.")
    if packet(kind) in BATCHED or name not in ("mm", "addmm", "matmul", "linear", "mv", "addmv"):
        return True
    ranks = [_rank(types[value]) for value in op.inputs]
    return name == "matmul" and len(ranks) == 2 and min(ranks) > 2


def word(text: object, where: str) -> Constraint:
    """Parses the name of a constraint.

    Raises:
        ValueError: if it is not a constraint; ``where`` names its place in the message.
    """
    lower = text.lower() if isinstance(text, str) else ""
    lower = PYTORCH.get(lower, lower)
    if lower not in CONSTRAINTS:
        raise ValueError(f"policy: {where} is {text!r}, not one of {', '.join(CONSTRAINTS)}")
    return lower


def by_table(table: Mapping[str, Any], regions: list[str] | None = None) -> Chooser:
    """Returns a policy that looks operations up in a table.

    Args:
        table: maps keys to constraints of :data:`CONSTRAINTS`, as in ``{"aten.mm": "must_save",
            "add_7": "free", "*": "prefer_recompute"}``. A key is the name of an operation,
            ``at:model.py:12`` (a source line), ``region:block`` (a checkpoint region), a kind, or a
            pattern of names. ``*`` and ``?`` are wildcards in all of them except kinds. The first
            key that matches decides, in this order: name, line, region, kind, pattern, ``"*"``.
        regions: names of the problem's checkpoint regions, for keys that begin with ``region:``.

    Returns:
        A function from an operation (its object in the problem) to a constraint, or None if no key
        matches.

    Raises:
        ValueError: if the table has an unknown constraint.

    Example:
        >>> choose = by_table({"matmul": "must_save", "*": "prefer_recompute"})
        >>> choose(Op("matmul_3", "matmul"))
        'must_save'
    """
    words = {key: word(value, repr(key)) for key, value in table.items()}
    lines = [(key[3:], one) for key, one in words.items() if key.startswith("at:")]
    inside = [(key[7:], one) for key, one in words.items() if key.startswith("region:")]
    patterns = [
        (key, one) for key, one in words.items() if key != "*" and ("*" in key or "?" in key)
    ]

    def first(rows: Iterable[tuple[str, Constraint]], name: str) -> Constraint | None:
        return next((one for pattern, one in rows if fnmatchcase(name, pattern)), None)

    def choose(op: Op) -> Constraint | None:
        name, kind = op.name, op.kind
        region = regions[op.region] if op.region is not None and regions else ""
        found = (
            words.get(name) if name else None,
            first(lines, op.location),
            first(inside, region) if region else None,
            words.get(kind) if kind else None,
            words.get(packet(kind)) if kind else None,
            first(patterns, name),
            words.get("*"),
        )
        return next((one for one in found if one is not None), None)

    return choose


def _check_ops(ops: list[Op], names: list[str]) -> None:
    kinds = {op.kind for op in ops}
    known = kinds | {packet(kind) for kind in kinds} | {op.name for op in ops}
    for name in names:
        if name not in known:
            raise ValueError(f"policy: the graph has no operation {name!r}")


def _by_list(verb: str, rest: str, ops: list[Op]) -> Chooser:
    names = [name for name in rest.split(",") if name]
    if not names:
        raise ValueError(
            f"policy: {verb}: needs at least one operation, as in {verb}:aten.mm,aten.bmm"
        )
    if verb == "names":
        for name in names:
            if not any(fnmatchcase(op.name, name) for op in ops):
                raise ValueError(
                    f"policy: no operation of the graph has a name that matches {name!r}"
                )
        return by_table({**dict.fromkeys(names, "must_save"), "*": "prefer_recompute"})
    _check_ops(ops, names)
    others = "prefer_save" if verb == "recompute" else "prefer_recompute"
    return by_table({**dict.fromkeys(names, f"must_{verb}"), "*": others})


def _by_name(name: str, problem: Problem) -> Chooser:
    if name == "everything_saveable":
        return lambda op: "prefer_save"
    if name == "nothing_saveable":
        return lambda op: "prefer_recompute"
    if name in ("dots_saveable", "checkpoint_dots"):
        return lambda op: "must_save" if _is_dot(op) else "prefer_recompute"
    types = [value.type for value in problem.values]
    verb: Constraint = "must_offload" if name.startswith("offload") else "must_save"
    return lambda op: verb if _is_dot(op) and not _has_batch(op, types) else "prefer_recompute"


def _chooser(policy: str, problem: Problem) -> Chooser:
    verb, colon, rest = policy.partition(":")
    if policy in NAMES:
        return _by_name(policy, problem)
    if colon and verb in ("save", "recompute", "offload", "names"):
        return _by_list(verb, rest, problem.ops)
    if policy.endswith(".json"):
        table = files.parse_json(files.read_text(policy), policy)
        if not isinstance(table, dict):
            raise ValueError(f"{policy}: a policy file must hold an object of name: constraint")
        return by_table(table, [region.name for region in problem.regions])
    raise ValueError(
        f"policy {policy!r} is not one of {', '.join(NAMES)}, save:OP,OP,..., recompute:OP,..., "
        "offload:OP,..., names:PATTERN,..., mu-two[:BYTES] or FILE.json"
    )


_KEEPS = ("must_save", "must_offload", "prefer_save", "prefer_offload")


def _either(parts: list[tuple[str, Chooser]]) -> Chooser:
    """Combines policies: if any of them saves or moves a value, that wins; otherwise the first
    policy with a constraint for it decides."""

    def choose(op: Op) -> Constraint | None:
        said = [(one, part) for part, chooser in parts if (one := chooser(op)) is not None]
        demands = {one: part for one, part in said if one.startswith("must_")}
        if len(demands) > 1:
            (one, part), (other, against) = list(demands.items())[:2]
            raise ValueError(
                f"policy: {part!r} says {one} for {op.name or op.kind}, but {against!r} says "
                f"{other}"
            )
        words = sorted(
            (one for one, _ in said),
            key=lambda one: _KEEPS.index(one) if one in _KEEPS else len(_KEEPS),
        )
        return words[0] if words else None

    return choose


def lay_mu_two(
    problem: _native.Problem, saved: int | str, device: str | None = None
) -> _native.Problem:
    """Adds mu-TWO's constraints to a problem of the core; see :func:`mu_two`."""
    try:
        limit = budgets.parse(budgets.as_share(saved), "saved")
    except (TypeError, ValueError) as error:
        raise type(error)(f"mu-two:{saved}: {error}") from None
    if limit is None or saved in ("min", "smallest"):
        raise ValueError(f"mu-two:{saved}: give a number of bytes, as in mu-two:2GiB or 0.4x")
    return problem.mutwo(limit, device)


def lay_policy(problem: _native.Problem, policy: str, device: str | None = None) -> _native.Problem:
    """Adds the constraints of a policy to a problem of the core; see :func:`constrain`."""
    if policy == "mu-two" or policy.startswith("mu-two:"):
        return lay_mu_two(problem, policy.partition(":")[2] or "0.5x", device)
    parts = problem.parts()
    choose = _either([(part, _chooser(part, parts)) for part in policy.split("+")])
    for op in parts.ops:
        if op.flags & {"placeholder", "backward", "view"}:
            continue
        chosen = choose(op)
        if chosen is not None:
            for value in op.outputs:
                value.constraint = chosen
    return parts.check()


def mu_two(problem: str, saved: int | str, device: str | None = None) -> str:
    """Adds the constraints that mu-TWO selects.

    Values are dropped one by one in the order of a score, the larger of two standardised ones:
    bytes x idle time / recompute time, and, if the problem has a link to the host, idle time
    (``docs/planner.md``).

    Args:
        problem: a problem document, as JSON.
        saved: about how much to save between forward and backward: bytes, ``"2GiB"``, or
            ``"0.4x"``, a share of the bytes of saving everything.
        device: row of the cost model; the problem's own if None.

    Returns:
        The problem with its constraints, as JSON.

    Raises:
        ValueError: if ``saved`` is not a size.

    Source: S. Purandare et al., mu-TWO: 3x faster multi-model training with orchestration and
    memory optimization, MLSys 2023.

    >>> constrained = cutback.constraints.mu_two(problem, "0.5x")
    >>> plan = cutback.plan(constrained, preset="conservative")
    """
    return lay_mu_two(_native.Problem.read(problem), saved, device).to_json()


def constrain(problem: str, policy: str, device: str | None = None) -> str:
    """Adds the constraints of a policy to the results of forward operations.

    Args:
        problem: a problem document (``docs/problem.md``), as JSON.
        policy: a policy in one of the forms that the description of this module lists.
        device: row of the cost model, used by mu-TWO; the problem's own if None.

    Returns:
        The problem with its constraints, as JSON.

    Raises:
        ValueError: if the policy is unknown, names an operation that the problem does not have, or
            two of its parts contradict each other.

    Example:
        >>> text = constrain(json.dumps(plan.problem), "save:matmul")
    """
    return lay_policy(_native.Problem.read(problem), policy, device).to_json()
