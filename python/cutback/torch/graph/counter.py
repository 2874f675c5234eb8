"""Replaces PyTorch's random ops in a graph with our counter-based generator (:mod:`graph.draws`).

The graph draws one seed of 8 bytes from PyTorch's generator, so ``torch.manual_seed`` works as
usual; every op has its own stream under that seed. Random values can then be drawn again and need
not be kept for the backward. Some draws stay unchanged: ops with their own generator, distributions
that we do not have (``multinomial``, ``randint``, ...), half-precision floats, fused kernels that
draw inside, and draws of the backward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._guards import detect_fake_mode

from . import draws
from .graphs import forward_ends, is_tangent
from .sizes import hint

if TYPE_CHECKING:
    from torch.fx.node import Argument, Target

aten = torch.ops.aten

RANDOM = ("torch", "counter")
"""The generators: numbers from PyTorch's are drawn once and kept, numbers from ours are drawn
again."""


def check_random(random: str) -> str:
    """Checks the argument ``random`` of the entry points.

    Raises:
        ValueError: ``random`` is not one of the choices.
    """
    if random not in RANDOM:
        raise ValueError(f"random={random!r} is not one of {', '.join(RANDOM)}")
    return random


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two values differ only in their memory."""
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


class _Rewriter:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.graph = gm.graph
        self.nodes = list(gm.graph.nodes)
        self.mode = detect_fake_mode([n.meta.get("val") for n in self.nodes])
        self.late: set[fx.Node] = set()
        self.seed: fx.Node | None = None
        self.streams = 0

    def run(self) -> int:
        """Replaces supported draws of the forward; returns their number."""
        theirs = set(self.nodes[forward_ends(self.nodes) :])
        for node in self.nodes:
            if is_tangent(node) or not self.late.isdisjoint(node.all_input_nodes):
                self.late.add(node)
                continue
            rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
            if rewrite is None or node in theirs:
                continue
            if node.kwargs.get("generator") is None:
                with self.graph.inserting_before(node):
                    rewrite(self, node)
        return self.streams

    # ---- nodes --------------------------------------------------------------------------------

    def call(self, like: fx.Node, target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        """Adds a call that takes the place of ``like``, with its own value."""
        node = self.graph.call_function(target, args, kwargs)
        values, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta = {k: v for k, v in like.meta.items() if k not in ("tensor_meta", "val")}
        with self.mode:
            node.meta["val"] = target(*values, **named)
        return node

    def _seed(self) -> fx.Node:
        if self.seed is None:
            first = next(n for n in self.nodes if n.op != "placeholder")
            with self.graph.inserting_before(first):
                self.seed = self.graph.call_function(
                    aten.randint.low, (0, 2**63 - 1, [1]),
                    {"dtype": torch.int64, "device": torch.device("cpu")},
                )  # fmt: skip
            with self.mode:
                self.seed.meta["val"] = torch.empty(1, dtype=torch.int64)
        return self.seed

    def _sizes(self, node: fx.Node) -> list[Argument]:
        """Returns the sizes of a random op's result, as nodes if they are symbolic."""
        if node.target in (aten.rand.default, aten.randn.default):
            return list(node.args[0])
        source = node.args[0]
        return [
            n if type(n) is int else self.call(node, aten.sym_size.int, source, d)
            for d, n in enumerate(source.meta["val"].shape)
        ]

    def draw(
        self, node: fx.Node, val: torch.Tensor, target: Target, *parameters: Argument
    ) -> fx.Node:
        """Adds a draw with the layout of ``val``: contiguous memory, then a view if the axes have
        another order."""
        sizes = self._sizes(node)
        strides = [hint(n) for n in val.stride()]
        order = sorted(range(val.dim()), key=lambda d: -strides[d])
        drawn = self.call(
            node, target, self._seed(), self.streams, [sizes[d] for d in order], *parameters,
            val.device,
        )  # fmt: skip
        self.streams += 1
        if order == sorted(order):
            return drawn
        back = [order.index(d) for d in range(val.dim())]
        view = self.call(node, aten.permute.default, drawn, back)
        # the view has the memory that `replace` assigns to it
        if _same_layout(view.meta["val"], val):
            with self.mode:
                drawn.meta["val"] = val.permute(order)
        return view

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Makes readers of ``old`` read ``new``. The new node also takes the old value: existing
        views refer to the memory of that value, and would otherwise look like copies of the new
        one."""
        if _same_layout(old.meta["val"], new.meta["val"]):
            new.meta["val"] = old.meta["val"]
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)


def _dropout(r: _Rewriter, node: fx.Node) -> None:
    x, p, train = node.args
    users = list(node.users)
    whole = [u for u in users if u.target is not operator.getitem]
    if train is not True or type(p) not in (int, float) or not 0 < p < 1 or whole:
        return
    mask = r.draw(node, node.meta["val"][1], draws.KEEP_MASK, float(p))
    value = r.call(node, aten.native_dropout_backward.default, x, mask, 1.0 / (1.0 - p))
    for user in users:  # insert before nodes added in between, at the position of the op
        r.replace(user, mask if user.args[1] == 1 else value)
    r.graph.erase_node(node)


def _bernoulli_p(r: _Rewriter, node: fx.Node) -> None:
    p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    if type(p) not in (int, float) or not 0 <= p <= 1:
        return
    val = node.meta["val"]
    mask = r.draw(node, val, draws.KEEP_MASK, 1.0 - p)
    r.replace(node, r.call(node, aten._to_copy.default, mask, dtype=val.dtype))


def _bernoulli(r: _Rewriter, node: fx.Node) -> None:
    val = node.meta["val"]
    chances = node.args[0].meta["val"]
    dtype = torch.float64 if chances.dtype == torch.float64 else torch.float32
    uniform = r.draw(node, val, draws.UNIFORM, dtype)
    hits = r.call(node, aten.lt.Tensor, uniform, node.args[0])
    r.replace(node, r.call(node, aten._to_copy.default, hits, dtype=val.dtype))


def _of_floats(target: Target) -> Callable[[_Rewriter, fx.Node], None]:
    def rewrite(r: _Rewriter, node: fx.Node) -> None:
        val = node.meta["val"]
        if val.dtype in (torch.float32, torch.float64) and val.layout is torch.strided:
            r.replace(node, r.draw(node, val, target, val.dtype))

    return rewrite


_REWRITES: dict[Target, Callable[[_Rewriter, fx.Node], None]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.p: _bernoulli_p,
    aten.bernoulli.default: _bernoulli,
    aten.rand.default: _of_floats(draws.UNIFORM),
    aten.rand_like.default: _of_floats(draws.UNIFORM),
    aten.randn.default: _of_floats(draws.NORMAL),
    aten.randn_like.default: _of_floats(draws.NORMAL),
}


def replace_draws(gm: fx.GraphModule) -> int:
    """Replaces PyTorch's draws in the forward of a graph, in place; returns their number. A graph
    that Inductor compiles has no such draws, because Inductor's generator is already
    counter-based."""
    return _Rewriter(gm).run()
