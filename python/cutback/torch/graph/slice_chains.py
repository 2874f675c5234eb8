"""Finds chains of a joint graph that may run in pieces (:mod:`graph.slices`).

A chain begins with a product that makes rows at least twice as wide. It contains everything that
reads such wide values, forward and backward, and the wide values that these operations read, if
they can be made piece by piece. It ends where results are at most half as wide, and at sums over
rows. A chain with a reader that cannot run in pieces stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from ...problem import ONCE
from . import ops
from .graphs import forward_ends, is_tangent, location
from .slice_rules import LAST, LEAD, PARTS, TOTAL, Member, Rows, rule_of

_aten = torch.ops.aten


class WholeError(Exception):
    """Says why a chain stays whole; ``node`` is the node that cannot run in pieces."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass
class Phases:
    """The order of a graph, and which nodes belong to the backward."""

    order: dict[fx.Node, int]
    late: set[fx.Node]
    acting: set[fx.Node]
    """Nodes that draw, write or have effects: they keep their order."""
    writing: set[fx.Node]

    @classmethod
    def of(cls, graph: fx.Graph) -> Phases:
        """Reads a graph."""
        nodes = list(graph.nodes)
        early = set(nodes[: forward_ends(nodes)])
        late: set[fx.Node] = set()
        for node in nodes:
            if node not in early or is_tangent(node) or not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        kinds = ops.learn(n.target for n in nodes if n.op == "call_function")
        calls = [(n, kinds[n.target]) for n in nodes if n.op == "call_function"]
        writing = {n for n, kind in calls if kind.mutable}
        acting = {n for n, kind in calls if kind.mutable or not ONCE.isdisjoint(kind.flags)}
        return cls({n: k for k, n in enumerate(nodes)}, late, acting, writing)


@dataclass
class Chain:
    """Nodes that run in pieces."""

    seed: fx.Node
    rows: Rows
    members: dict[fx.Node, Member] = field(default_factory=dict)
    forms: dict[fx.Node, str] = field(default_factory=dict)

    def part(self, phases: Phases, late: bool) -> list[fx.Node]:
        """Returns its nodes in one pass, in order."""
        own = [n for n in self.members if (n in phases.late) == late]
        return sorted(own, key=phases.order.__getitem__)


class _Search:
    """Grows one chain."""

    def __init__(self, seed: fx.Node, phases: Phases, barred: set[fx.Node]) -> None:
        forms: dict[fx.Node, str] = {}
        rows = Rows(seed.meta["val"].shape[0], forms)
        self.phases, self.barred = phases, barred
        self.chain = Chain(seed, rows, forms=forms)
        self.least = seed.meta["val"].shape[1]
        self.pulled: dict[fx.Node, fx.Node] = {}  # maps a node to the operand that led to it

    def _is_wide(self, node: fx.Node) -> bool:
        return bool(2 * self.chain.rows.width(node) > self.least)

    def _is_whole(self, node: fx.Node) -> WholeError:
        what, at = ops.name_of(node.target), location(node)
        if node.op == "output":
            return WholeError(node, "the function returns its rows")
        what += f" ({at})" if at else ""
        return WholeError(node, f"{what} reads its rows and cannot run in pieces")

    def add(self, node: fx.Node, root: fx.Node | None = None) -> None:
        """Adds a node and what follows from it.

        Raises:
            WholeError: something cannot run in pieces.
        """
        todo = [(node, root)]
        while todo:
            node, root = todo.pop()
            if node in self.chain.members:
                continue
            member = rule_of(self.chain.rows, node)
            if member is None or node in self.phases.writing:
                if root is not None:
                    self.barred.add(root)
                raise self._is_whole(node)
            self.chain.members[node] = member
            self.chain.forms[node] = member.form
            todo += self._readers(node, member, root)
            for operand in member.operands:
                if self._may_pull(operand.node, operand.form):
                    todo.insert(0, (operand.node, root or operand.node))

    def _readers(
        self, node: fx.Node, member: Member, root: fx.Node | None
    ) -> list[tuple[fx.Node, fx.Node | None]]:
        """Returns the readers that must also run in pieces."""
        if member.form == TOTAL or (member.form != PARTS and not self._is_wide(node)):
            return []
        return [(user, root) for user in node.users]

    def _may_pull(self, node: fx.Node, form: str) -> bool:
        """True for a wide operand that may be computed in pieces."""
        if node in self.chain.members or node in self.barred or form not in (LEAD, LAST):
            return False
        if not self._is_wide(node) or node.meta["val"].dtype == torch.bool:
            return False
        return rule_of(self.chain.rows, node) is not None

    def close(self) -> None:
        """Adds narrow values between members of one pass.

        Raises:
            WholeError: such a value cannot be computed in pieces.
        """
        for late in (False, True):
            while True:
                node = self._between(late)
                if node is None:
                    break
                self.add(node)

    def _between(self, late: bool) -> fx.Node | None:
        """Returns an input of the chain that depends on another member of the same pass."""
        part = self.chain.part(self.phases, late)
        if not part:
            return None
        inside, after = set(part), set[fx.Node]()
        node = part[0]
        while node is not part[-1]:
            node = node.next
            reads = node.all_input_nodes
            if node in inside:
                found = [n for n in reads if n in after]
                if found:
                    return found[0]
            elif any(n in inside or n in after for n in reads):
                after.add(node)
        return None


def _grow(seed: fx.Node, phases: Phases) -> Chain:
    barred: set[fx.Node] = set()
    while True:
        before = len(barred)
        search = _Search(seed, phases, barred)
        try:
            search.add(seed)
            search.close()
        except WholeError:
            if len(barred) == before:
                raise
        else:
            return search.chain


def _check_reads(chain: Chain) -> None:
    """Checks that members read each other by rows only. Call it when all members are known.

    Raises:
        WholeError: one reads another as a whole, such as a sum over all rows.
    """
    for node in list(chain.members):
        member = rule_of(chain.rows, node)
        by_rows = set() if member is None else {o.node for o in member.operands}
        others = [n for n in node.all_input_nodes if n in chain.members and n not in by_rows]
        if member is None or others:
            raise WholeError(node, f"{ops.name_of(node.target)} reads all of its rows at once")
        chain.members[node] = member


def _check_ends(chain: Chain, phases: Phases) -> None:
    """Checks that values which leave the forward are at most half as wide as the first product. The
    parts that queries, keys and values are split into would only be put together again.

    Raises:
        WholeError: a value is wider.
    """
    rows, width = chain.rows, 0.0
    for node in chain.part(phases, late=False):
        by_rows = chain.members[node].form in (LEAD, LAST)
        if by_rows and any(user not in chain.members for user in node.users):
            width += rows.width(node)
    if 2 * width > chain.seed.meta["val"].shape[1]:
        raise WholeError(chain.seed, "the results computed from its rows are as wide as the rows")


def _check_order(chain: Chain, phases: Phases) -> None:
    """Checks that the nodes between the members may run before or after all of them.

    Raises:
        WholeError: they would draw or write in another order.
    """
    for late in (False, True):
        part = chain.part(phases, late)
        moved = set(later(part))
        held: fx.Node | None = None
        for node in between(part):
            if node in phases.writing:
                raise WholeError(node, f"{ops.name_of(node.target)} writes between its operations")
            if node not in phases.acting:
                continue
            if node in moved:
                held = node
            elif held is not None:
                what = f"{ops.name_of(held.target)} and {ops.name_of(node.target)}"
                raise WholeError(node, f"{what} would run in another order")


def between(part: Sequence[fx.Node]) -> Iterable[fx.Node]:
    """Returns the nodes between the first and the last node of a part that do not belong to it."""
    if not part:
        return
    inside = set(part)
    node = part[0]
    while node is not part[-1]:
        node = node.next
        if node not in inside:
            yield node


def later(part: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns those of the nodes between that depend on the part."""
    found = set(part)
    moved = []
    for node in between(part):
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
            moved.append(node)
    return moved


def chain_of(seed: fx.Node, phases: Phases) -> Chain:
    """Returns the chain that begins with a product.

    Raises:
        WholeError: the chain stays whole.
    """
    chain = _grow(seed, phases)
    _check_reads(chain)
    _check_ends(chain, phases)
    _check_order(chain, phases)
    return chain
