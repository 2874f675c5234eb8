"""Rules that say how operations run on a range of rows.

A value has rows if some of its leading axes together count them: ``[rows, ...]`` or ``[batch,
tokens, ...]``. A transposed value has rows if its last axis of two counts them. A piece of it is
``[n, ...]`` or ``[..., n]``, for n rows in order. :func:`rule_of` returns a :class:`Member` for a
node that can be computed piece by piece from pieces of what it reads, or whose result is a sum over
rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import fx

from .row_loss_ops import ROW_LOSS, ROW_LOSS_BACKWARD
from .sizes import hint

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

_aten = torch.ops.aten

LEAD, LAST = "lead", "last"
"""Where a value has its rows: in its leading axes, or in the last of two axes."""
PARTS = "parts"
"""The form of a node that returns several values with rows."""
TOTAL = "total"
"""The form of a sum over rows."""


class Piece(Protocol):
    """Writes the nodes of one piece."""

    rows: int

    def of(self, node: fx.Node, form: str) -> fx.Node:
        """Returns the piece of a value."""

    def call(self, target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        """Adds a call."""


class Operand(NamedTuple):
    """A value that a node reads by rows."""

    node: fx.Node
    form: str


@dataclass(frozen=True)
class Member:
    """A node that runs in pieces."""

    node: fx.Node
    form: str
    """One of :data:`LEAD`, :data:`LAST`, :data:`PARTS`, :data:`TOTAL`."""
    operands: tuple[Operand, ...]
    make: Callable[[Piece], fx.Node]
    """Writes a piece or, for :data:`TOTAL`, the sum of its rows."""
    product: tuple[fx.Node, fx.Node] | None = None
    """For :data:`TOTAL`: the sides of a product."""


class Rows:
    """Rows of one chain, and the forms of its members."""

    def __init__(self, count: int, forms: Mapping[fx.Node, str]) -> None:
        self.count = count
        self.forms = forms

    def leading(self, node: Argument) -> int | None:
        """Returns the number of leading axes that count the rows, or None."""
        val = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(val, torch.Tensor):
            return None
        count = 1
        for k, n in enumerate(val.shape):
            if not isinstance(n, int):
                return None
            count *= n
            if count == self.count:
                return k + 1
        return None

    def rest(self, node: fx.Node) -> list[int]:
        """Returns the sizes of the other axes."""
        return list(node.meta["val"].shape[self.leading(node) :])

    def width(self, node: fx.Node) -> float:
        """Returns the elements of a row."""
        val = node.meta["val"]
        return val.numel() / self.count if isinstance(val, torch.Tensor) else 0

    def form(self, node: Argument) -> str | None:
        """Returns the form of a member, or LEAD for another value that may have rows in its leading
        axes."""
        if not isinstance(node, fx.Node):
            return None
        if node in self.forms:
            return self.forms[node]
        return LEAD if self.leading(node) is not None else None


Rule = Callable[[Rows, fx.Node], "Member | None"]


def _trailing(axes: Argument, dims: int, leading: int) -> list[int] | None:
    """Returns axes counted from the end, or None if rows are among them."""
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if not axes or any(a % dims < leading for a in axes):
        return None
    return [a % dims - dims for a in axes]


def _is_member(rows: Rows, node: Argument) -> bool:
    return isinstance(node, fx.Node) and node in rows.forms


# ---- elementwise ---------------------------------------------------------------------------------

_ELEMENTWISE = frozenset(
    {
        _aten._to_copy.default, _aten.clone.default, _aten.full_like.default,
        _aten.zeros_like.default, _aten.ones_like.default, _aten.hardswish_backward.default,
    }
)  # fmt: skip
_DROPPED = ("memory_format", "layout", "pin_memory")


def _is_elementwise(target: Target) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    tags = target.tags
    drawn = torch.Tag.nondeterministic_seeded in tags or target._schema.is_mutable
    return (torch.Tag.pointwise in tags or target in _ELEMENTWISE) and not drawn


def _broadcast(rows: Rows, node: fx.Node, operand: fx.Node) -> str | list[int] | None:
    """Returns how an elementwise operation reads an operand: LEAD; the operand's sizes if it is
    read as a whole; or None if neither is possible."""
    val, made = operand.meta.get("val"), node.meta["val"]
    if operand in rows.forms and rows.forms[operand] != LEAD:
        return None
    if not isinstance(val, torch.Tensor):
        return None
    leading = rows.leading(node)
    assert leading is not None
    over = val.dim() - (made.dim() - leading)  # how many of the leading axes it has
    if over == leading and val.shape[:leading] == made.shape[:leading]:
        return LEAD
    if operand in rows.forms or any(n != 1 for n in val.shape[: max(0, over)]):
        return None
    return list(val.shape[max(0, over) :])


def _elementwise(rows: Rows, node: fx.Node) -> Member | None:
    if rows.leading(node) is None:
        return None
    reads = {n: _broadcast(rows, node, n) for n in node.all_input_nodes}
    operands = tuple(Operand(n, LEAD) for n, how in reads.items() if how == LEAD)
    if None in reads.values() or not operands:
        return None

    def make(piece: Piece) -> fx.Node:
        def side(n: fx.Node) -> fx.Node:
            how = reads[n]
            if how == LEAD:
                return piece.of(n, LEAD)
            own = n.meta["val"].shape
            return n if len(own) == len(how or ()) else piece.call(_aten.view.default, n, how)

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), side)
        kept = {k: v for k, v in kwargs.items() if k not in _DROPPED}
        return piece.call(node.target, *args, **kept)

    return Member(node, LEAD, operands, make)


# ---- shapes --------------------------------------------------------------------------------------


def _same(rows: Rows, node: fx.Node) -> Member | None:
    source = node.args[0]
    form = rows.form(source)
    if form not in (LEAD, LAST):
        return None
    return Member(node, form, (Operand(source, form),), lambda piece: piece.of(source, form))


def _view(rows: Rows, node: fx.Node) -> Member | None:
    source = node.args[0]
    if rows.form(source) != LEAD or rows.leading(source) is None or rows.leading(node) is None:
        return None
    if source.meta["val"].numel() != node.meta["val"].numel():
        return None
    rest = rows.rest(node)

    def make(piece: Piece) -> fx.Node:
        given = piece.of(source, LEAD)
        size = [piece.rows, *rest]
        same = list(given.meta["val"].shape) == size
        return given if same else piece.call(_aten.view.default, given, size)

    return Member(node, LEAD, (Operand(source, LEAD),), make)


def _expand(rows: Rows, node: fx.Node) -> Member | None:
    source = node.args[0]
    if rows.form(source) != LEAD or rows.leading(source) != rows.leading(node):
        return None
    if rows.leading(source) is None or source.meta["val"].dim() != node.meta["val"].dim():
        return None
    rest = rows.rest(node)
    return Member(
        node, LEAD, (Operand(source, LEAD),),
        lambda p: p.call(_aten.expand.default, p.of(source, LEAD), [p.rows, *rest]),
    )  # fmt: skip


def _transpose(rows: Rows, node: fx.Node) -> Member | None:
    source, *axes = node.args
    val = source.meta["val"]
    if val.dim() != 2:
        return None
    if node.target is _aten.permute.default:
        axes = axes[0]
    if axes and [a % 2 for a in axes] not in ([1, 0], [0, 1]):
        return None
    if node.target is _aten.permute.default and [a % 2 for a in axes] != [1, 0]:
        return None
    form = rows.forms.get(source, LEAD if val.shape[0] == rows.count else LAST)
    if val.shape[0 if form == LEAD else 1] != rows.count:
        return None
    turned = LAST if form == LEAD else LEAD
    return Member(
        node, turned, (Operand(source, form),),
        lambda piece: piece.call(_aten.t.default, piece.of(source, form)),
    )  # fmt: skip


def _part(rows: Rows, node: fx.Node) -> Member | None:
    source, at = node.args
    if rows.forms.get(source) != PARTS:
        return None
    return Member(
        node, LEAD, (Operand(source, PARTS),),
        lambda piece: piece.call(operator.getitem, piece.of(source, PARTS), at),
    )  # fmt: skip


def _dropout(rows: Rows, node: fx.Node) -> Member | None:
    """Handles a dropout. :mod:`graph.slices` replaces it before the chain is cut."""
    source, p, train = node.args
    if train is not True or type(p) not in (int, float) or not 0 < p < 1:
        return None
    if rows.form(source) != LEAD or any(u.target is not operator.getitem for u in node.users):
        return None
    return Member(node, PARTS, (Operand(source, LEAD),), lambda piece: piece.of(source, LEAD))


# ---- operations along rows -----------------------------------------------------------------------

_AXIS_AT: dict[Target, int] = {
    _aten._log_softmax.default: 1, _aten._softmax.default: 1, _aten._safe_softmax.default: 1,
    _aten._log_softmax_backward_data.default: 2, _aten._softmax_backward_data.default: 2,
    _aten.sum.dim_IntList: 1, _aten.mean.dim: 1, _aten.amax.default: 1, _aten.amin.default: 1,
    _aten.logsumexp.default: 1, _aten.gather.default: 1, _aten.slice.Tensor: 1,
    _aten.split.Tensor: 2, _aten.split_with_sizes.default: 2, _aten.cat.default: 1,
    _aten.unsqueeze.default: 1, _aten.squeeze.dim: 1,
}  # fmt: skip
"""Operations along axes, and the position of the axes among the arguments. An axis that is left out
is 0."""


def _along(rows: Rows, node: fx.Node) -> Member | None:
    at = _AXIS_AT[node.target]
    sources = node.all_input_nodes
    if len(node.args) <= at or node.args[at] is None or not sources:
        return None
    forms = {rows.form(n) for n in sources}
    leading = {rows.leading(n) for n in sources}
    if forms != {LEAD} or len(leading) != 1:
        return None
    (first,) = leading
    dims = sources[0].meta["val"].dim()
    dims += node.target is _aten.unsqueeze.default
    axes = _trailing(node.args[at], dims, first or dims)
    if axes is None:
        return None
    new: Argument = axes if isinstance(node.args[at], (list, tuple)) else axes[0]

    def make(piece: Piece) -> fx.Node:
        args, kwargs = fx.map_arg(
            (node.args, dict(node.kwargs)), lambda n: piece.of(n, LEAD)
        )  # fmt: skip
        return piece.call(node.target, *args[:at], new, *args[at + 1 :], **kwargs)

    form = PARTS if isinstance(node.meta["val"], (list, tuple)) else LEAD
    return Member(node, form, tuple(Operand(n, LEAD) for n in sources), make)


def _loss(rows: Rows, node: fx.Node) -> Member | None:
    sources = node.all_input_nodes
    if any(rows.form(n) != LEAD or rows.leading(n) != 1 for n in sources):
        return None

    def make(piece: Piece) -> fx.Node:
        return piece.call(node.target, *fx.map_arg(node.args, lambda n: piece.of(n, LEAD)))

    form = PARTS if node.target is ROW_LOSS else LEAD
    return Member(node, form, tuple(Operand(n, LEAD) for n in sources), make)


# ---- sums over rows ------------------------------------------------------------------------------


def _sum(rows: Rows, node: fx.Node) -> Member | None:
    """Handles a sum over all rows, or along rows."""
    source = node.args[0]
    leading = rows.leading(source)
    if rows.form(source) != LEAD or leading is None:
        return None
    dims = source.meta["val"].dim()
    axes = node.args[1] if len(node.args) > 1 else None
    over = sorted(a % dims for a in axes) if axes else list(range(dims))
    if over[:leading] != list(range(leading)):
        return _along(rows, node) if node.target is _aten.sum.dim_IntList else None
    later = [0, *(a - dims for a in over[leading:])]
    keeps = bool(node.args[2]) if len(node.args) > 2 else False
    kwargs = dict(node.kwargs)

    def make(piece: Piece) -> fx.Node:
        given = piece.of(source, LEAD)
        return piece.call(_aten.sum.dim_IntList, given, later, keeps, **kwargs)

    return Member(node, TOTAL, (Operand(source, LEAD),), make)


def _sides(rows: Rows, left: fx.Node, right: fx.Node) -> str | None:
    """Returns TOTAL for a product that sums over the rows, LEAD for rows times a matrix."""
    inner = right.meta["val"].shape[0] == rows.count
    if rows.forms.get(right) == LEAD or rows.forms.get(left) == LAST:
        side = rows.forms.get(right, LEAD), rows.forms.get(left, LAST)
        return TOTAL if inner and side == (LEAD, LAST) else None
    if right in rows.forms or left.meta["val"].shape[0] != rows.count:
        return None
    return LEAD


def _product(rows: Rows, node: fx.Node) -> Member | None:
    left, right = node.args
    form = _sides(rows, left, right)
    if form == TOTAL:
        return Member(
            node, TOTAL, (Operand(left, LAST), Operand(right, LEAD)),
            lambda p: p.call(_aten.mm.default, p.of(left, LAST), p.of(right, LEAD)), (left, right),
        )  # fmt: skip
    if form is None:
        return None
    return Member(
        node, LEAD, (Operand(left, LEAD),),
        lambda p: p.call(_aten.mm.default, p.of(left, LEAD), right),
    )  # fmt: skip


def _added_product(rows: Rows, node: fx.Node) -> Member | None:
    bias, left, right = node.args
    val = bias.meta["val"]
    if _sides(rows, left, right) != LEAD or bias in rows.forms:
        return None
    if val.dim() > 1 and math.prod(val.shape[:-1]) != 1:
        return None
    kwargs = dict(node.kwargs)
    return Member(
        node, LEAD, (Operand(left, LEAD),),
        lambda p: p.call(_aten.addmm.default, bias, p.of(left, LEAD), right, **kwargs),
    )  # fmt: skip


_RULES: dict[Target, Rule] = {
    _aten.mm.default: _product,
    _aten.addmm.default: _added_product,
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.expand.default: _expand,
    operator.getitem: _part,
    _aten.native_dropout.default: _dropout,
    ROW_LOSS: _loss,
    ROW_LOSS_BACKWARD: _loss,
    **dict.fromkeys((_aten.detach.default, _aten.alias.default), _same),
    **dict.fromkeys((_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default), _view),
    **dict.fromkeys((_aten.t.default, _aten.transpose.int, _aten.permute.default), _transpose),
}
_ALONG = {target: _along for target in _AXIS_AT if target not in _RULES}


def rule_of(rows: Rows, node: fx.Node) -> Member | None:
    """Returns how a node runs in pieces, or None if it cannot."""
    if node.op != "call_function":
        return None
    rule = _RULES.get(node.target) or _ALONG.get(node.target)
    if rule is None and _is_elementwise(node.target):
        rule = _elementwise
    return None if rule is None else rule(rows, node)


def is_wide_product(node: fx.Node, least_rows: int) -> bool:
    """True for a product of rows by a matrix whose result is at least twice as wide. The number of
    rows may be symbolic."""
    if node.target not in (_aten.mm.default, _aten.addmm.default):
        return False
    left, right = node.args[-2:]
    (count, inner), width = left.meta["val"].shape, right.meta["val"].shape[1]
    if not (isinstance(inner, int) and isinstance(width, int)):
        return False
    return bool(hint(count) >= least_rows and width >= 2 * inner)
