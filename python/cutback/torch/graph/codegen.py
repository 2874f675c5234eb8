"""Runs an FX graph op by op, in its order, and frees every value after its last use.

The graph becomes the source text of one Python function. The function takes its arguments in a list
and empties the list (PyTorch's "boxed" convention), so that only the function holds them. A graph
module called in the usual way would hold them until it returns.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import Argument

from ..memory import MODULES
from ..types import GraphInput, GraphValue
from .graphs import attribute, module_path
from .taking_over import VARIANTS, taken
from .taking_over import parts as parts_of

Boxed = Callable[[list[GraphInput]], Sequence[GraphValue]]


RUN_OF = "cutback_run_of"
"""Key in a node's ``meta``: the name of the joint graph's node that this node runs."""

STEP = "cutback_step"
"""Key in a node's ``meta``: the number of the plan's step that it runs, or None."""

NAME = "cutback_name"
"""Key in a node's ``meta``: its name in measurements, if that is not its target's name."""

UPDATE = "cutback_update"
"""Key in a node's ``meta``: the node steps its first argument, a parameter, with its second."""

PLUGS = "cutback_plugs"
"""Key in a graph module's ``meta``: the device, and for each step the bytes of the plugs
(:mod:`graph.segment`) that are allocated while the step runs."""


class Watch(Protocol):
    """Observer called before and after each op of a graph."""

    def op(self, name: str, node: str) -> AbstractContextManager[None]:
        """Returns the context that an op runs in.

        Args:
            name: name of the operation, ``"aten.mm.default"``.
            node: the node of the joint graph that is run.
        """
        ...

    def seen(self, result: Argument) -> None:
        """Receives the result of an op while the op's arguments are still alive."""
        ...

    def dropped(self, *values: Argument) -> AbstractContextManager[None]:
        """Returns the context in which values are freed after their last use."""
        ...

    def choose(self, run: Boxed, watched: Boxed) -> Boxed:
        """Returns a function that decides for each run which of the two to call."""
        ...


def _plug(sizes: tuple[int, ...], device: str) -> list[torch.UntypedStorage] | None:
    """Allocates memory that is never written and that tensor trackers do not see. Returns None if
    the allocation failed; the step works without it."""
    try:
        return [torch.UntypedStorage(size, device=device) for size in sizes]
    except torch.OutOfMemoryError:
        return None


class _Text:
    def __init__(self, gm: fx.GraphModule, watch: Watch | None) -> None:
        self.gm = gm
        self.watch = watch
        self.globals: dict[str, Any] = {}
        self._named: dict[int, str] = {}
        self.names: dict[fx.Node, str] = {}
        self.lines: list[str] = []
        self.modules: dict[int, str] = {}
        self.taken = taken(list(gm.graph.nodes))
        self._device, self._plugs = gm.meta.get(PLUGS, ("cpu", {}))

    def plug(self, node: fx.Node) -> bool:
        """Writes the allocation of an op's plugs. Returns False if the op has no plugs."""
        sizes = self._plugs.get(node.meta.get(STEP))
        if sizes is None:
            return False
        self.lines.append(f"p = {self.constant(_plug, 'plug')}({sizes}, {self._device!r})")
        return True

    def constant(self, value: Any, prefix: str = "c") -> str:
        """Returns a name for an object that has no source text."""
        name = self._named.get(id(value))
        if name is None:
            name = self._named[id(value)] = f"{prefix}{len(self.globals)}"
            self.globals[name] = value
        return name

    def write(self, value: Argument) -> str:
        """Returns an argument as source text."""
        if isinstance(value, fx.Node):
            return self.names[value]
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else self.constant(value)
        if type(value) in (tuple, fx.immutable_collections.immutable_list, list):
            items = ", ".join(map(self.write, value))
            if type(value) is tuple:
                return f"({items},)" if len(value) == 1 else f"({items})"
            return f"[{items}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.write(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self.write, parts))})"
        return self.constant(value)

    def call(self, node: fx.Node) -> str:
        args = [self.write(a) for a in node.args]
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        args += [f"{k}={self.write(v)}" for k, v in node.kwargs.items()]
        target = node.target
        if node in self.taken:
            target, keyword = VARIANTS[target]
            if keyword:
                args.append(f"{keyword}={self.names[self.taken[node]]}")
        return f"{self.constant(target, 'op')}({', '.join(args)})"


def _last_uses(order: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Maps each node to the values that nothing reads after it."""
    dying: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(order):
        for value in (*node.all_input_nodes, node):
            if value not in seen:
                seen.add(value)
                dying.setdefault(node, []).append(value)
    return dying


def compile_boxed(gm: fx.GraphModule, name: str = "step", watch: Watch | None = None) -> Boxed:
    """Compiles a function that takes a list of arguments, empties it, and runs the graph's nodes in
    order.

    Args:
        watch: observer; a second function is compiled, which reports each op to it.
    """
    run = _function(gm, name, None)
    if watch is None:
        return run
    chosen = watch.choose(run, _function(gm, name, watch))
    chosen._boxed_call = True  # type: ignore[attr-defined]
    return chosen


def _function(gm: fx.GraphModule, name: str, watch: Watch | None) -> Boxed:
    text = _Text(gm, watch)
    order = list(gm.graph.nodes)
    placeholders = [n for n in order if n.op == "placeholder"]
    body = [n for n in order if n.op != "placeholder"]
    dying = _last_uses(body)
    used = {v for values in dying.values() for v in values}
    text.names.update((n, f"a{i}") for i, n in enumerate(placeholders))
    text.names.update((n, f"v{i}") for i, n in enumerate(body) if n.op == "call_function")
    if placeholders:
        text.lines.append(", ".join(text.names[n] for n in placeholders) + ", = args")
    text.lines.append("args.clear()")
    _drop(text, [n for n in placeholders if n not in used])
    taken: set[fx.Node] = set()  # getitems that were taken from their tuple right away
    whole: set[fx.Node] = set()  # tuples that are freed by then
    for node in body:
        if node.op == "output":
            text.lines.append(f"return {text.write(node.args[0])}")
        elif node.op == "get_attr":
            text.names[node] = text.constant(attribute(gm, str(node.target)), "attr")
        else:
            if node not in taken:
                parts = parts_of(node)
                if parts is not None:
                    whole.add(node)
                    taken.update(parts)
                _statement(text, node, parts)
            _drop(text, [n for n in dying.get(node, ()) if n.op != "get_attr" and n not in whole])
    source = f"def {name}(args):\n    " + "\n    ".join(text.lines) + "\n"
    scope = text.globals
    scope[MODULES] = text.modules
    exec(compile(source, f"<cutback {name}>", "exec"), scope)
    function: Boxed = scope[name]
    function._boxed_call = True  # type: ignore[attr-defined]
    function._source = source  # type: ignore[attr-defined]
    return function


def _statement(text: _Text, node: fx.Node, parts: list[fx.Node] | None) -> None:
    """Writes one call. Elements of a tuple get names at once, so that each can be freed
    separately."""
    call = text.call(node)
    has_plug = text.plug(node)
    text.modules[len(text.lines) + 2] = module_path(node)  # lines count from 1, after "def"
    name = text.names[node] if parts is None else "t"
    if text.watch is None:
        text.lines.append(call if parts == [] else f"{name} = {call}")
    else:
        op, seen = text.constant(text.watch.op, "watch"), text.constant(text.watch.seen, "watch")
        what = node.meta.get(NAME) or str(node.target)
        said = f"{what!r}, {node.meta.get(RUN_OF, node.name)!r}"
        text.lines.append(f"with {op}({said}): {name} = {call}")
        text.modules[len(text.lines) + 2] = module_path(node)
        text.lines.append(f"{seen}({name})")
    if has_plug:
        text.lines.append("del p")
    if parts:
        text.lines += [f"{text.names[p]} = t[{p.args[1]}]" for p in parts]
    if parts or (parts is not None and text.watch is not None):
        text.lines.append("del t")


def _drop(text: _Text, nodes: Sequence[fx.Node]) -> None:
    if not nodes:
        return
    names = ", ".join(text.names[n] for n in nodes)
    if text.watch is None:
        text.lines.append(f"del {names}")
    else:
        dropped = text.constant(text.watch.dropped, "watch")
        text.lines.append(f"with {dropped}({names}): del {names}")
