"""Compares what real kernels allocate with what the reader of a joint graph says.

A function is traced as ``torch.compile`` traces it; its graph then runs node by node on real
tensors. A result that the reader gives memory of its own must have new memory of exactly that many
bytes, and a view must be in the memory that the reader names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch.utils._pytree import tree_leaves, tree_map

from cutback.torch.graph.graphs import Reader, nodes_in

GIVEN = ("as it is", "strided", "transposed", "channels last")
"""How the inputs of a function lie in memory."""


class _TracedError(Exception):
    """Ends the compilation of a function once its graph is traced."""


class _Watched(fx.Interpreter):
    """Runs a graph and compares each result's memory with the reader's."""

    def __init__(self, gm: fx.GraphModule, num_fwd_outputs: int) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.reader = Reader(gm, num_fwd_outputs)
        self.reader.read()
        self.real: dict[int, torch.UntypedStorage] = {}  # by the reader's id
        self.found: dict[str, str] = {}
        self.kinds: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        before = {s._cdata: id for id, s in self.real.items()}
        for t in self.reader.tensors.get(n, ()):
            given = result if t.position is None else result[t.position]
            if not isinstance(given, torch.Tensor):
                continue  # a kernel without a result where the graph has one
            memory = given.untyped_storage()
            known = self.real.setdefault(t.storage, memory)
            if n.op != "call_function":
                continue
            self.kinds.add(str(n.target))
            planned, real = self.reader.storage_bytes[t.storage], memory.nbytes()
            if known is not memory and known._cdata != memory._cdata:
                said = f"new memory of {real} B, planned as a view"
            elif memory._cdata in before and before[memory._cdata] != t.storage:
                said = f"a view, planned as new memory of {planned} B"
            elif real != planned and not self.reader.static[t.storage]:
                said = f"{real} B, planned {planned} B"
            else:
                continue
            args = tree_map(_layout, self.fetch_args_kwargs_from_env(n))
            self.found.setdefault(f"{n.target}[{t.position}]", f"{said}: {args}")
        return result


def _layout(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    size = value.untyped_storage().nbytes()
    return f"{list(value.shape)}{value.stride()}+{value.storage_offset()}/{size}"


def lay(t: torch.Tensor, how: str) -> torch.Tensor:
    """Returns the same values in another layout."""
    x = t.detach()
    if t.layout is not torch.strided or t.dim() == 0:
        return x
    if how == "strided":
        wide = torch.empty((*t.shape[:-1], 2 * t.shape[-1] + 3), dtype=t.dtype)
        x = wide[..., 1 : 2 * t.shape[-1] + 1 : 2].copy_(x)
    elif how == "transposed" and t.dim() > 1:
        x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif how == "channels last" and t.dim() in (4, 5):
        last = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=last)
    return x


def _ones_like(fake: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in memory of the same size and layout."""
    size = fake.untyped_storage().nbytes() // fake.element_size()
    memory = torch.ones(size, dtype=fake.dtype)
    return memory.as_strided(fake.size(), fake.stride(), fake.storage_offset())


def _of_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function without arguments, as one of a tensor, which PyTorch can trace."""
    return lambda x: [t if t.is_complex() else t + x for t in function()]


def compare(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    how: str = "as it is",
) -> tuple[dict[str, str], set[str]]:
    """Returns where kernels and the reader disagree, and the kinds of ops that ran.

    Args:
        function: from tensors to tensors. It is traced once, with its derivative if it has one.
        how: see :data:`GIVEN`.

    Raises:
        Exception: PyTorch's error for a function that it cannot trace.
    """
    given = [lay(t, how).requires_grad_(t.requires_grad) for t in inputs]
    if not given:
        function, given = _of_one(function), [torch.zeros(1)]

    def partition(gm: Any, joint: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        raise _TracedError(gm, num_fwd_outputs)

    def compile(gm: fx.GraphModule, args: Any) -> Any:
        raise _TracedError(gm, len(nodes_in(gm.graph.output_node().args)))

    traced = aot_function(function, fw_compiler=compile, partition_fn=partition)
    try:
        traced(*given)
    except _TracedError as ended:
        gm, num_fwd_outputs = ended.args
    vals = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    tangents = [_ones_like(v) for v in vals[len(given) :]]
    run = _Watched(gm, num_fwd_outputs)
    torch.manual_seed(3)
    run.run(*[lay(t, how) for t in given], *tangents, enable_io_processing=False)
    return run.found, run.kinds


def functions_of(op: Any, dtype: torch.dtype, most: int, seed: int) -> list[tuple[Any, list[Any]]]:
    """Returns some samples of an operator in PyTorch's database, without empty ones."""
    torch.manual_seed(17)
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    full = []
    for s in samples:
        tensors = [t for t in tree_leaves((s.input, s.args, s.kwargs)) if _is_tensor(t)]
        if all(t.numel() and t.layout is torch.strided for t in tensors):
            full.append((s, tensors))
    chosen = full if len(full) <= most else random.Random(seed).sample(full, most)
    return [(_caller(op, s), tensors) for s, tensors in chosen]


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _caller(op: Any, sample: Any) -> Callable[..., list[torch.Tensor]]:
    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        left = iter(tensors)
        x, args, kwargs = tree_map(
            lambda v: next(left) if _is_tensor(v) else v,
            (sample.input, sample.args, sample.kwargs),
        )
        return [t for t in tree_leaves(op(x, *args, **kwargs)) if _is_tensor(t)]

    return call
