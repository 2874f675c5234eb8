"""Compiles groups of nodes, and writes the functions that call them."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ... import BudgetError, _native
from ..graph.sizes import hint
from .building import Builder
from .grouping import Kinds, results_of
from .layouts import Held, Meta, Sizes, memory_of, meta_of
from .symbols import sizes_with
from .table import ROWS

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import sympy

_LARGE = 4 << 20
"""Bytes from which memory is asked for in huge pages. The C library returns such memory to the
system when it is freed, so it is new in each step, and a page fault for every 4 KiB would take
several times as long as writing the results."""

_KEPT = 512
"""How many executables are kept for other groups of the same structure."""


class CannotRunError(Exception):
    """Raised if our kernels cannot run a node that has a row in the table."""

    def __init__(self, node: fx.Node, why: Exception) -> None:
        super().__init__(f"{node}: {why}")
        self.node = node


# ---- threads ------------------------------------------------------------------------------------


@functools.cache
def join_threads() -> bool:
    """Runs our kernels on the threads of PyTorch's OpenMP library from now on.

    PyTorch's threads spin for milliseconds when they wait for work, and a second pool would compete
    with them for the processors. If they sleep (``OMP_WAIT_POLICY=passive``), our own threads are
    kept, because they wake faster.

    Returns:
        False if our own threads are kept.
    """
    if os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive":
        return False
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib")
    return any(_native.join_team(str(folder / name)) for name in names)


_HEAP = (32 << 20) - (1 << 16)
"""Bytes up to which the C library keeps freed blocks: just under the most that glibc allows."""


@functools.cache
def keep_freed_memory() -> None:
    """Has the C library keep freed memory for later blocks.

    At first glibc returns each freed block of over 128 KiB to the system, so every result has page
    faults, which may take longer than writing it. Once a larger block is freed, glibc keeps blocks
    up to that size, and up to twice as many free bytes. Steps with large tensors do so by
    themselves.
    """
    _FAST((_HEAP,), (1,), torch.uint8)


# ---- executables --------------------------------------------------------------------------------


class _Executables:
    """Compiled graphs by their text, least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: OrderedDict[str, _native.Step] = OrderedDict()

    def of(self, builder: Builder, room: int | None) -> _native.Step:
        """Returns the compiled graph of a group.

        Args:
            room: the bytes that it may use besides arguments and results; None means any number.

        Raises:
            BudgetError: the graph needs more.
        """
        text = builder.graph.native.text()
        if room is not None:
            text += f"in {room} bytes"
        with self._lock:
            step = self._steps.get(text)
            if step is not None:
                self._steps.move_to_end(text)
                return step
        join_threads()
        keep_freed_memory()
        step = builder.graph.compile(room)
        with self._lock:
            self._steps[text] = step
            if len(self._steps) > _KEPT:
                self._steps.popitem(last=False)
        return step


_executables = _Executables()


class Group(NamedTuple):
    """A compiled group."""

    step: _native.Step
    inputs: list[tuple[fx.Node, Meta]]
    results: list[tuple[fx.Node, Meta]]
    seed: fx.Node | None = None
    """The tensor with the seed, the last argument of a group that draws random numbers."""
    held: Mapping[fx.Node, Held] = MappingProxyType({})
    """The positions of inputs that have gaps. The step takes all memory that they hold."""

    @property
    def arguments(self) -> list[fx.Node]:
        """The tensors that a call takes, in order."""
        return [n for n, _ in self.inputs] + ([] if self.seed is None else [self.seed])


def compile_group(
    nodes: Sequence[fx.Node], kinds: Kinds, room: int | None, sizes: Sizes = hint
) -> tuple[Group, bool]:
    """Compiles a group. Also returns whether it runs within this many bytes besides arguments and
    results. If it needs more, it is planned again under that budget, so that some of its values are
    computed twice."""
    b = Builder(sizes, kinds)
    for node in nodes:
        b.values[node] = ROWS[node.target].build(b, node)
    results = results_of(nodes, kinds).nodes
    for node in results:
        b.graph.output(b.value(node).array)
    step = _executables.of(b, None)
    if room is None:
        room = step.run_bytes
    elif step.run_bytes > max(room, 0):
        try:
            step = _executables.of(b, max(room, 0))
        except BudgetError:
            room = -1
    metas = [(n, b.meta(n)) for n in b.inputs], [(n, b.meta(n)) for n in results]
    return Group(step, *metas, b.seed, b.held), step.run_bytes <= room


# ---- calls --------------------------------------------------------------------------------------


def laid(t: torch.Tensor, meta: Meta) -> torch.Tensor:
    """Returns a tensor in the layout that PyTorch's shape function gives, if its kernel used
    another."""
    at = tuple(slice(0, 1) if s == 0 else slice(None) for s in meta.stride)
    own = t.detach()[at]
    return torch.empty_strided(own.shape, meta.stride, dtype=meta.dtype).copy_(own)


def placed(t: torch.Tensor, meta: Meta, held: Held) -> torch.Tensor:
    """Returns a copy of a tensor with gaps in memory as planned."""
    at = tuple(slice(0, 1) if s == 0 else slice(None) for s in meta.stride)
    own = t.detach()[at]
    memory = torch.empty(held.elements, dtype=meta.dtype)
    return memory.as_strided(own.shape, meta.stride, held.offset).copy_(own)


def _check_held(name: str, number: int, held: Held, meta: Meta) -> str:
    """Returns the line that makes sure that an argument with gaps is where the group expects it in
    its memory, and that the memory is large enough."""
    m, size = f"M{number}", held.elements * meta.dtype.itemsize
    is_other = f"{name}.dtype is not {m}.dtype or {name}.stride() != {m}.stride"
    is_other += f" or {name}.storage_offset() != {held.offset}"
    is_other += f" or {name}.untyped_storage().nbytes() < {size}"
    return f"if {is_other}: {name} = placed({name}, {m}, H{number})"


def _check(name: str, number: int, meta: Meta) -> str:
    """Returns the line that makes sure that an argument has the memory layout for which the group
    was compiled."""
    m = f"M{number}"
    as_planned = f"{name}.is_contiguous()"
    if not meta.is_contiguous:
        as_planned = f"{name}.stride() == {m}.stride"
    return f"if {name}.dtype is not {m}.dtype or not {as_planned}: {name} = laid({name}, {m})"


def _strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Allocates a tensor so that dispatch modes such as :class:`MemoryTracker` see it."""
    return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")


_FAST = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cpu", _strided)
"""Does the same without modes. Inductor's code calls it, too: it takes a third of the time."""


def _allocation(name: str, meta: Meta, scope: dict[str, Any]) -> str:
    dtype = str(meta.dtype).rpartition(".")[2]
    scope[dtype] = meta.dtype
    return f"{name} = new({meta.shape!r}, {meta.stride!r}, {dtype})"


def call_of(group: Group, checked: Sequence[bool]) -> Callable[..., Any]:
    """Returns a function of a group's arguments that returns its results: a tensor, or a tuple.

    Args:
        checked: for each argument, True if its layout is checked in each call.
    """
    scope: dict[str, Any] = {
        "fast": _FAST, "strided": _strided, "modes": torch._C._len_torch_dispatch_stack,
        "run": group.step.call, "large": _native.ask_for_large_pages,
        "laid": laid, "placed": placed, "bytes": torch.uint8, "__name__": __name__,
    }  # fmt: skip
    lines = ["new = strided if modes() else fast"]
    given = [f"a{i}" for i in range(len(group.inputs))]
    addresses = [f"{name}.data_ptr()" for name in given]
    for i, (node, meta) in enumerate(group.inputs):
        held = group.held.get(node)
        scope[f"M{i}"], scope[f"H{i}"] = meta, held
        if held is not None:
            lines.append(_check_held(given[i], i, held, meta))
            addresses[i] += f" - {held.offset * meta.dtype.itemsize}"
        elif checked[i]:
            lines.append(_check(given[i], i, meta))
    made = [f"r{i}" for i in range(len(group.results))]
    lines += [_allocation(made[i], m, scope) for i, (_, m) in enumerate(group.results)]
    sizes = {name: _bytes(meta) for name, (_, meta) in zip(made, group.results, strict=True)}
    block = "0"
    if group.step.run_bytes:
        lines.append(f"b = new(({group.step.run_bytes},), (1,), bytes)")
        block, sizes["b"] = "b.data_ptr()", group.step.run_bytes
    lines += [f"large({name}.data_ptr(), {n})" for name, n in sizes.items() if n >= _LARGE]
    values = [*addresses, *(f"{name}.data_ptr()" for name in made), block]
    if group.seed is not None:
        given.append("seed")
        values.append("seed.item()")
    lines += [f"run({', '.join(values)})", f"return {', '.join(made)}"]
    source = f"def native({', '.join(given)}):\n    " + "\n    ".join(lines) + "\n"
    exec(compile(source, "<cutback native>", "exec"), scope)
    function: Callable[..., Any] = scope["native"]
    function._source = source  # type: ignore[attr-defined]
    return function


# ---- calls with sizes that vary -----------------------------------------------------------------

_SIZES_KEPT = 256
"""For how many sizes a call keeps its function."""


def _blank(meta: Meta) -> torch.Tensor:
    """Returns a tensor for an argument whose elements do not matter."""
    return torch.zeros(memory_of(meta), dtype=meta.dtype).as_strided(meta.shape, meta.stride)


def by_nodes(
    nodes: Sequence[fx.Node], kinds: Kinds, group: Group, sizes: Sizes = hint
) -> Callable[..., Any]:
    """Returns a function like that of :func:`call_of` that runs PyTorch's kernels, node by node."""
    graph, inside = fx.Graph(), set(nodes)
    env: dict[fx.Node, Any] = {n: graph.placeholder(n.name) for n in group.arguments}

    def have(node: fx.Node) -> Any:
        if node not in env:
            val = node.meta["val"]
            if isinstance(val, (int, torch.SymInt)):
                env[node] = sizes(val)
            elif node in inside or node in kinds.views:
                args, kwargs = fx.map_arg((node.args, node.kwargs), have)
                env[node] = graph.call_function(node.target, args, kwargs)
            else:  # our kernels do not read it, so results do not depend on its elements
                env[node] = graph.call_function(_blank, (meta_of(val, sizes),))
        return env[node]

    made = tuple(have(n) for n, _ in group.results)
    graph.output(made[0] if len(made) == 1 else made)
    function: Callable[..., Any] = fx.GraphModule({}, graph).forward
    return function


def varying(
    nodes: Sequence[fx.Node], kinds: Kinds, group: Group, room: int, checked: Sequence[bool],
    symbols: Sequence[sympy.Symbol],
) -> Callable[..., Any]:  # fmt: skip
    """Returns a function of the values of symbols and of a group's arguments. It compiles the group
    for each set of values.

    Args:
        group: the group as compiled for the hints.
        room: see :func:`compile_group`. It applies to sizes up to the hints.
    """
    known: OrderedDict[tuple[int, ...], Callable[..., Any]] = OrderedDict()
    held = bytes_of(group)

    def make(values: tuple[int, ...]) -> Callable[..., Any]:
        sizes = sizes_with(dict(zip(symbols, values, strict=True)))
        try:
            made, fits = compile_group(nodes, kinds, None, sizes)
            if not fits or made.arguments != group.arguments:
                return by_nodes(nodes, kinds, group, sizes)
            if bytes_of(made) <= held:
                made, _ = compile_group(nodes, kinds, room, sizes)
            return call_of(made, checked)
        except MemoryError:
            raise
        except Exception:  # sizes for which the table has no row, such as a mean of nothing
            return by_nodes(nodes, kinds, group, sizes)

    def native(*args: Any) -> Any:
        values = args[: len(symbols)]
        run = known.get(values)
        if run is None:
            run = known[values] = make(values)
            while len(known) > _SIZES_KEPT:
                known.popitem(last=False)
        return run(*args[len(symbols) :])

    return native


def _bytes(meta: Meta) -> int:
    size: int = meta.numel * meta.dtype.itemsize
    return size


def bytes_of(group: Group) -> int:
    """Returns the bytes that a group reads and returns."""
    return sum(_bytes(m) for _, m in (*group.inputs, *group.results))
