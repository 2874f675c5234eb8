"""The steps of a plan as the emitter writes them: runs of nodes, and moves of their results."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import fx

from .graphs import Masked, nodes_in
from .moving import Move, on_host

if TYPE_CHECKING:
    from torch.fx.node import Argument


class Moved(NamedTuple):
    """One tensor of a node that moves. ``what`` is ``"host"`` for its copy on the host, ``"left"``
    for the memory that it leaves, and ``"here"`` for an element of a tuple that no node
    extracts."""

    what: str
    node: fx.Node
    position: int | None  # index in the tuple that the node returns
    number: int = 0  # number of the move that copied it out

    @property
    def name(self) -> str:
        """The name of this tensor in an emitted graph."""
        at = "" if self.position is None else f"_{self.position}"
        return f"{self.node.name}{at}_{self.what}"

    @property
    def val(self) -> torch.Tensor:
        """Returns a fake tensor like this tensor."""
        val = self.node.meta["val"]
        if self.position is not None:
            val = val[self.position]
        return on_host(val) if self.what == "host" else val


Value: TypeAlias = fx.Node | Moved
"""A value that one graph makes and the other may read."""


def val_of(value: Value) -> Argument:
    """Returns the fake tensor, number or object that a value stands for."""
    return value.val if isinstance(value, Moved) else value.meta.get("val")


def type_name(val: Argument) -> str:
    """Returns ``"module.Class"`` of a node's value, or of the object behind it in a trace."""
    kind = type(getattr(val, "real_obj", val))
    return f"{kind.__module__}.{kind.__qualname__}"


class EmittedStep:
    """One run of one node, or a move of its result. ``masked`` is the result of a dropout that is
    computed from its mask; ``args`` are the arguments of the run."""

    __slots__ = ("args", "masked", "move", "node", "positions", "time")

    def __init__(
        self,
        node: fx.Node,
        masked: Masked | None = None,
        move: Move | None = None,
        positions: Sequence[int | None] = (),
        args: tuple[Argument, ...] | None = None,
        time: int | None = None,
    ) -> None:
        self.node = node
        self.time = time  # number of the step in the plan
        self.args = node.args if args is None else args
        self.masked = masked
        self.move = move
        self.positions = positions

    @property
    def reads(self) -> Sequence[fx.Node]:
        """The nodes that a run reads."""
        if self.masked is not None:
            return self.masked.x, self.masked.mask
        if self.args is self.node.args:
            return list(self.node.all_input_nodes)
        return nodes_in(self.args)

    def picks(self) -> bool:
        """True if the step extracts an element of a tuple."""
        runs = self.move is None and self.masked is None
        return runs and self.node.target is operator.getitem

    def runs(self, node: fx.Node) -> bool:
        """True if the step runs this node."""
        return self.move is None and self.node is node

    def moved(self, what: str, number: int = 0) -> list[Moved]:
        """Returns the step's tensors as ``what`` (see :class:`Moved`)."""
        return [Moved(what, self.node, p, number) for p in self.positions]

    def here(self) -> list[Value]:
        """Returns the moved values on the device."""
        return [next(self.names(p)) for p in self.positions]

    def names(self, position: int | None) -> Iterator[Value]:
        """Returns all names of one of the tensors on the device."""
        if position is None:
            yield self.node
            return
        for user in self.node.users:
            if user.target is operator.getitem and user.args[1] == position:
                yield user
        yield Moved("here", self.node, position)


def hoist(steps: list[EmittedStep], dropout: fx.Node) -> None:
    """Places moves between a dropout and its result before the dropout, which computes both."""
    at = next((i for i in reversed(range(len(steps))) if steps[i].node is dropout), len(steps))
    runs = {s.node for s in steps[at:] if s.move is None}
    steps[at:] = sorted(steps[at:], key=lambda s: s.move is None or s.node in runs)
