"""Makes chains of operations run in pieces of rows (``slices=True``).

:func:`cut` rewrites a joint graph. A chain that is independent along rows, such as the last product
of a language model with its cross entropy and their gradients, or a perceptron over tokens, gets
its operations once for each piece:

    logits = mm(h, w)                  h_i = slice(h, rows of piece i)
    logp, lse = row_loss(logits, t)    logits_i = mm(h_i, w)              for each piece i
    ..                                 logp_i, lse_i = row_loss(logits_i, t_i)
    d = row_loss_backward(.., lse)     d_i = row_loss_backward(.., logits_i, lse_i)
    dw = mm(t(d), h)                   dw = addmm(dw, t(d_i), h_i)
    dh = mm(d, t(w))                   dh = cat(mm(d_i, t(w)) ..)

For the planner these are operations like any other. It decides for each piece whether its logits
are kept or computed again. Where pieces begin depends only on the number of rows (as in
``csrc/ad/strips``), so sums have one order, and results the same bits, under every budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx

from ...planner.sliced import LEAST_ROWS, begins
from . import ops
from .graphs import eliminate_dead_code, location
from .row_loss import use_row_losses
from .row_loss_2d import to_rows
from .row_loss_ops import ROW_LOSS, accumulated
from .row_shift import take_all_tokens
from .sizes import hint
from .slice_chains import Chain, Phases, WholeError, chain_of, later
from .slice_rules import LAST, LEAD, PARTS, TOTAL, Member, is_wide_product
from .writing import Calls

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

    from ...problem import Problem

_aten = torch.ops.aten

SYMBOLIC = "its number of rows changes from call to call (pass dynamic=False)"
"""The reason why a chain with a symbolic number of rows stays whole."""

_PIECE = "_piece"
"""Comes before the number of a piece in the names of its operations."""


def is_sliced(problem: Problem) -> bool:
    """True if operations of a problem run in pieces."""
    return any(_PIECE in op.name for op in problem.ops)


class Sliced(NamedTuple):
    """A chain that runs in pieces, or one that stays whole."""

    where: str
    """The source line of its widest product, such as ``"model.py:12 (lm_head)"``."""
    kind: str
    """``"cross_entropy"`` or ``"mm"``."""
    rows: int
    pieces: int
    """The number of pieces, or 1 if the chain stays whole."""
    reason: str = ""
    """Why the chain stays whole, or ""."""

    def __str__(self) -> str:
        what = f"{self.where} {self.kind}".strip()
        if self.pieces == 1:
            return f"{what}: whole, because {self.reason}"
        return f"{what}: {self.rows} rows in {self.pieces} pieces"


class _Piece:
    """Writes the nodes of one piece of one part."""

    def __init__(self, cutter: _Cutter, number: int) -> None:
        self.cutter, self.number = cutter, number
        self.begin, self.end = cutter.begins[number : number + 2]
        self.rows = self.end - self.begin
        self.given: dict[tuple[fx.Node, str], fx.Node] = {}
        self.like: fx.Node | None = None

    def of(self, node: fx.Node, form: str) -> fx.Node:
        """Returns the piece of a member or of another value."""
        made = self.cutter.made.get((node, self.number))
        if made is not None:
            return made
        if (node, form) not in self.given:
            whole, axis = self.cutter.given(node, form, self.like)
            self.given[node, form] = self.cutter.calls.call(
                self.like, _aten.slice.Tensor, whole, axis, self.begin, self.end,
                name=f"{node.name}_rows{self.number}",
            )  # fmt: skip
        return self.given[node, form]

    def call(self, target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        """Adds a call for the current member."""
        assert self.like is not None
        name = f"{self.like.name}{_PIECE}{self.number}"
        return self.cutter.calls.call(self.like, target, *args, name=name, **kwargs)


class _Cutter:
    """Cuts one chain."""

    def __init__(self, graph: fx.Graph, chain: Chain, phases: Phases) -> None:
        self.graph, self.chain, self.phases = graph, chain, phases
        self.calls = Calls(graph)
        self.begins = begins(chain.rows.count)
        self.made: dict[tuple[fx.Node, int], fx.Node] = {}
        self.totals: dict[fx.Node, fx.Node] = {}
        self.wholes: dict[fx.Node, fx.Node] = {}

    def given(self, node: fx.Node, form: str, like: fx.Node) -> tuple[fx.Node, int]:
        """Returns a value of the rest of the graph as rows, and the axis of the rows."""
        if form == LAST:
            return node, 1
        if self.chain.rows.leading(node) == 1:
            return node, 0
        if node not in self.wholes:
            size = [self.chain.rows.count, *self.chain.rows.rest(node)]
            self.wholes[node] = self.calls.viewed(like, node, size)
        return self.wholes[node], 0

    def run(self) -> None:
        """Writes the pieces of both passes, and removes the chain."""
        parts = [self.chain.part(self.phases, late) for late in (False, True)]
        for part, late in zip(parts, (False, True), strict=True):
            if part:
                self._write(part, late)
        for node in sorted(self.chain.members, key=self.phases.order.__getitem__, reverse=True):
            self.graph.erase_node(node)

    def _write(self, part: list[fx.Node], late: bool) -> None:
        moved = later(part)
        follows = part[-1].next
        self.wholes = {}
        with self.graph.inserting_before(follows):
            numbers = range(len(self.begins) - 1)
            for number in numbers if late else reversed(numbers):
                piece = _Piece(self, number)
                for node in part:
                    piece.like = node
                    self._write_member(self.chain.members[node], piece)
            for node in part:
                self._hand_out(self.chain.members[node])
        for node in moved:
            follows.prepend(node)

    def _write_member(self, member: Member, piece: _Piece) -> None:
        node = member.node
        if member.form != TOTAL:
            self.made[node, piece.number] = member.make(piece)
            return
        sum = self.totals.get(node)
        val = node.meta["val"]
        wide = accumulated(val.dtype)
        if sum is not None and member.product is not None and wide == val.dtype:
            left, right = member.product
            self.totals[node] = piece.call(
                _aten.addmm.default, sum, piece.of(left, LAST), piece.of(right, LEAD)
            )
            return
        new = member.make(piece)
        if sum is not None:
            new = piece.call(_aten.add.Tensor, sum, new)
        elif wide != val.dtype:
            new = piece.call(_aten._to_copy.default, new, dtype=wide)
        self.totals[node] = new

    def _hand_out(self, member: Member) -> None:
        """Gives readers outside of the chain the whole result of a member."""
        node = member.node
        readers = [user for user in node.users if user not in self.chain.members]
        if not readers or member.form == PARTS:
            return
        val = node.meta["val"]
        if member.form == TOTAL:
            whole = self.totals[node]
            if whole.meta["val"].dtype != val.dtype:
                whole = self.calls.call(node, _aten._to_copy.default, whole, dtype=val.dtype)
        else:
            pieces = [self.made[node, k] for k in range(len(self.begins) - 1)]
            axis = 1 if member.form == LAST else 0
            whole = self.calls.call(node, _aten.cat.default, pieces, axis, name=f"{node.name}_cat")
        if whole.meta["val"].shape != val.shape:
            self.calls.in_memory_of(whole, val)
            whole = self.calls.call(node, _aten.view.default, whole, list(val.shape))
        self.calls.take_place(node, whole, readers)


def _split_dropouts(graph: fx.Graph, chain: Chain) -> bool:
    """Draws the masks of a chain's dropouts as a whole at the positions of the dropouts, so that
    the numbers are those that PyTorch's kernel draws on a CPU. Returns True if there are any."""
    found = [n for n in chain.members if n.target is _aten.native_dropout.default]
    calls = Calls(graph)
    for node in found:
        x, p, _ = node.args
        val = x.meta["val"]
        with graph.inserting_before(node):
            like = calls.call(
                node, _aten.empty.memory_format, list(val.shape), dtype=torch.bool,
                device=val.device,
            )  # fmt: skip
            mask = calls.call(node, _aten.bernoulli.p, like, 1.0 - p)
            result = calls.call(node, _aten.native_dropout_backward.default, x, mask, 1 / (1 - p))
        for part in list(node.users):
            calls.take_place(part, mask if part.args[1] else result, list(part.users))
            graph.erase_node(part)
        graph.erase_node(node)
    return bool(found)


def _said(chain: Chain | None, seed: fx.Node, reason: str = "") -> Sliced:
    rows = int(hint(seed.meta["val"].shape[0]))
    nodes: Iterable[fx.Node] = [seed] if chain is None else chain.members
    losses = [n for n in nodes if n.target is ROW_LOSS]
    at = losses[0] if losses else seed
    kind = "cross_entropy" if losses else ops.name_of(seed.target).split(".")[1]
    pieces = 1 if reason else len(begins(rows)) - 1
    return Sliced(location(at), kind, rows, pieces, reason)


def _cut_one(graph: fx.Graph, seed: fx.Node, gone: set[fx.Node]) -> Sliced:
    while True:
        phases = Phases.of(graph)
        try:
            chain = chain_of(seed, phases)
        except WholeError as error:
            return _said(None, seed, str(error))
        if not _split_dropouts(graph, chain):
            break
    said = _said(chain, seed)
    gone.update(chain.members)
    _Cutter(graph, chain, phases).run()
    return said


def cut(gm: fx.GraphModule) -> list[Sliced]:
    """Cuts the chains of a joint graph, in place. Returns the chains that run in pieces and those
    that stay whole, with the reason, in the order of the graph."""
    to_rows(gm, LEAST_ROWS)
    if use_row_losses(gm, LEAST_ROWS):
        take_all_tokens(gm)
    found, gone = [], set[fx.Node]()
    seeds = [n for n in gm.graph.nodes if is_wide_product(n, LEAST_ROWS)]
    for seed in seeds:
        if not isinstance(seed.meta["val"].shape[0], int):
            found.append(_said(None, seed, SYMBOLIC))
        elif seed not in gone:
            found.append(_cut_one(gm.graph, seed, gone))
    eliminate_dead_code(gm.graph)
    gm.graph.lint()
    return found
