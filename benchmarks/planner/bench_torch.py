"""Claim: a cut takes a thousandth of the time of PyTorch's partitioner on the same joint graph, and
saves the same set.

python benchmarks/planner/bench_torch.py

Traces three models with PyTorch (AOT autograd, core decompositions, CPU) in the same run, times its
`min_cut_rematerialization_partition` with default settings, and the `torch-compat` cut of the same
joint graph: from the parsed problem, as measured by the library, and from its text. The two run in
turns, and the best time of each counts. Does nothing without PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import save  # noqa: E402

from cutback import _native, budgets  # noqa: E402

try:
    import torch
    from torch import nn
    from torch._decomp import core_aten_decompositions
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.flop_counter import flop_registry
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

COMMAND = "python benchmarks/planner/bench_torch.py"


class Block(nn.Module):
    """A GPT's block with eager attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (w // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Bottleneck(nn.Module):
    """A ResNet's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = ((4 * width, width, 1), (width, width, 3), (width, 4 * width, 1))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, padding=k // 2) for a, b, k in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in sizes)

    def forward(self, x: Any) -> Any:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = torch.relu(y) if i < 2 else y
        return torch.relu(x + y)


def cases() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Returns (module, example input) by name."""

    def gpt(layers: int) -> tuple[Any, Any]:
        return nn.Sequential(*[Block(256, 4) for _ in range(layers)]), torch.randn(2, 64, 256)

    def resnet() -> tuple[Any, Any]:
        return nn.Sequential(*[Bottleneck(16) for _ in range(24)]), torch.randn(2, 64, 16, 16)

    return {
        "GPT, 24 blocks": lambda: gpt(24),
        "GPT, 96 blocks": lambda: gpt(96),
        "ResNet, 24 blocks": resnet,
    }


class CapturedError(Exception):
    """Ends the compilation once the joint graph is captured."""


def trace(model: Any, x: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Returns the joint module after dead-code and common-subexpression elimination, its inputs,
    and the partitioner's other arguments."""
    held: list[Any] = []

    def capture(joint: Any, inputs: Any, **options: Any) -> Any:
        joint.graph.eliminate_dead_code()
        joint.graph = fx_graph_cse(joint.graph)
        joint.recompile()
        held.extend((joint, inputs, options))
        raise CapturedError

    def no_compiler(graph: Any, inputs: Any) -> Any:
        return graph

    step = aot_module(
        model, no_compiler, partition_fn=capture, decompositions=core_aten_decompositions()
    )
    with contextlib.suppress(CapturedError):
        step(x).sum().backward()
    assert held, "no joint graph was traced"
    return held[0], held[1], held[2]


def tensors(value: Any) -> list[Any]:
    """Returns the tensors of a node's value."""
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def flops(node: Any) -> int:
    """Returns a node's flops, as PyTorch counts them."""
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args = torch.fx.map_arg(node.args, lambda a: a.meta["val"])
    kwargs = torch.fx.map_arg(node.kwargs, lambda a: a.meta["val"])
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def op_name(target: Any) -> str:
    """Returns an op's name, such as ``aten.mul.Tensor`` or ``_operator.getitem``."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{target.__module__}.{target.__name__}"


def traced(joint: Any, n_forward: int, static: list[int]) -> dict[str, Any]:
    """Returns the joint graph in the format of traced graphs (docs/problem.md)."""
    nodes = [node for node in joint.graph.nodes if node.op != "output"]
    place = {node: i for i, node in enumerate(nodes)}
    storages: dict[int, int] = {}
    sizes: list[int] = []
    rows = []
    for node in nodes:
        out = []
        for value in tensors(node.meta.get("val")):
            memory = value.untyped_storage()
            s = storages.setdefault(memory._cdata, len(sizes))
            if s == len(sizes):
                sizes.append(int(memory.nbytes()))
            row = {"shape": list(map(int, value.shape)), "dtype": str(value.dtype)[6:]}
            out.append(row | {"bytes": value.numel() * value.element_size(), "storage": s})
        op = node.op if node.op == "placeholder" else op_name(node.target)
        row = {"name": node.name, "kind": node.op, "op": op, "out": out}
        row["inputs"] = [place[a] for a in node.all_input_nodes]
        if node.op == "placeholder":
            row["role"] = "tangent" if "tangents" in str(node.target) else "primal"
        else:
            row["flops"] = flops(node)
        rows.append(row)
    ends = [place.get(a) for a in joint.graph.output_node().args[0]]
    return {
        "nodes": rows,
        "storage_bytes": sizes,
        "forward_outputs": ends[:n_forward],
        "backward_outputs": ends[n_forward:],
        "static_inputs": static,
    }


def torch_partition(joint: Any, inputs: Any, options: dict[str, Any]) -> tuple[float, set[str]]:
    """Returns the seconds, and the names of the saved values."""
    module = copy.deepcopy(joint)
    begin = time.perf_counter()
    forward, _ = min_cut_rematerialization_partition(module, inputs, **options)
    seconds = time.perf_counter() - begin
    out = forward.graph.output_node().args[0][options["num_fwd_outputs"] :]
    return seconds, {node.name for node in out}


def measure(name: str, model: Any, x: Any, rounds: int) -> dict[str, Any]:
    """Returns one row."""
    joint, inputs, options = trace(model, x)
    static = options.get("static_lifetime_input_indices") or []
    graph = traced(joint, options["num_fwd_outputs"], list(static))
    text, preset = json.dumps(graph), budgets.parse_preset("torch-compat")
    theirs, solves, texts, saved, cut = [], [], [], set(), {}
    for _ in range(rounds):
        seconds, saved = torch_partition(joint, inputs, options)
        theirs.append(seconds)
        begin = time.perf_counter()
        cut = json.loads(_native.Problem.read(text).cut_json(preset, False)[0])
        texts.append(time.perf_counter() - begin)
        solves.append(cut["solve_ms"] / 1e3)
    own = {graph["nodes"][i]["name"] for i in cut["saved"]}
    row: dict[str, Any] = {"graph": name, "nodes": len(graph["nodes"])}
    row |= {
        "PyTorch s": min(theirs),
        "cut ms": 1e3 * min(solves),
        "ratio": min(theirs) / min(solves),
    }
    row |= {"cut from text ms": 1e3 * min(texts), "ratio from text": min(theirs) / min(texts)}
    return row | {"same set": "yes" if own == saved else f"{len(own ^ saved)} differ"}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name, case in cases().items():
        rows.append(measure(name, *case(), options.rounds))
        print(rows[-1], flush=True)
    save("planner_torch", COMMAND, rows, "torch")


if __name__ == "__main__":
    main()
