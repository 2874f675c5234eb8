#!/usr/bin/env python3
"""Turns a joint graph traced with PyTorch 2.13 (CPU, fake tensors) into a problem of ours.

    make_problems.py TRACED.json.gz OUT.json.gz [--names]

The traced graph is a JSON object: ``nodes`` in execution order (``kind`` placeholder or
call_function, ``op``, ``inputs`` as node ids, ``out`` with shape, dtype, bytes and storage id per
tensor, ``flops``, ``mutates``, ``role`` of placeholders), ``storage_bytes``, ``forward_outputs``
and ``backward_outputs``. Op ids of the problem are its node ids. A node that reads another reads
all of that node's tensors, as in the traced graph, which cannot tell them apart.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "philox", "uniform")
COMPUTE = ("mm.", "addmm", "bmm", "convolution", "attention")
REDUCTIONS = ("sum", "mean", "var", "amax", "amin", "any", "argmax")
POINTWISE = {
    "add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu",
    "where", "le", "lt", "gt", "ge", "eq", "ne", "pow", "reciprocal", "clone",
    "convert_element_type", "full", "fma", "erf", "maximum", "minimum", "logical_not",
    "scalar_tensor", "abs", "cos", "sin", "select_scatter", "copy",
}  # fmt: skip
SHORT = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
}


def short_op(op: str) -> str:
    """Converts ``aten.mul.Tensor`` to ``mul``."""
    parts = op.split(".")
    return parts[1] if parts[0] in ("aten", "prims", "_operator") and len(parts) > 1 else op


def type_text(tensor: dict[str, Any]) -> str:
    """Describes a tensor, as in ``f32[8,32]``."""
    dtype = SHORT.get(tensor["dtype"], tensor["dtype"])
    return f"{dtype}[{','.join(map(str, tensor['shape']))}]"


def op_flags(node: dict[str, Any], tangent: bool, view: bool) -> list[str]:
    """Returns the flags of docs/problem.md for a traced node."""
    op, short = node["op"].lower(), short_op(node["op"])
    flags = []
    if node["kind"] == "placeholder":
        flags.append("placeholder")
    if tangent:
        flags.append("backward")
    if view:
        flags.append("view")
    elif any(c in op for c in COMPUTE):
        flags.append("compute")
    elif short in REDUCTIONS or short.split("_")[0] in REDUCTIONS:
        flags += ["fusible", "reduction"]
    elif short in POINTWISE:
        flags.append("fusible")
    random = any(r in op for r in RANDOM) and "dropout_backward" not in op
    if random and node["kind"] != "placeholder":
        flags.append("random_stateful")
    if node.get("mutates"):
        flags.append("mutates")
    return flags


def convert(graph: dict[str, Any], names: bool) -> dict[str, Any]:
    """Returns the problem as a JSON object."""
    nodes, storage_bytes = graph["nodes"], graph["storage_bytes"]
    static = {o["storage"] for n in nodes if n["kind"] == "placeholder" for o in n["out"]}
    ends = graph["forward_outputs"] + graph["backward_outputs"]
    held = {o["storage"] for i in ends if i is not None for o in nodes[i]["out"]} - static
    storages = []
    for s, size in enumerate(storage_bytes):
        flags = ["static"] if s in static else ["hold_end"] if s in held else []
        storages.append({"bytes": size, "flags": flags} if flags else {"bytes": size})
    tangent: set[int] = set()
    first: list[int] = []
    ops, n_value, backward_starts = [], 0, len(nodes)
    for i, node in enumerate(nodes):
        first.append(n_value)
        n_value += len(node["out"])
        if node.get("role") == "tangent" or any(a in tangent for a in node["inputs"]):
            tangent.add(i)
            if node["kind"] != "placeholder":
                backward_starts = min(backward_starts, i)
        ins: dict[int, int] = {}
        for a in node["inputs"]:
            for o in nodes[a]["out"]:
                s = o["storage"]
                ins[s] = max(ins.get(s, 0), min(o["bytes"], storage_bytes[s]))
        fresh = [o for o in node["out"] if o["storage"] not in ins]
        view = node["kind"] != "placeholder" and not fresh and not node.get("mutates")
        flags = op_flags(node, i in tangent, view)
        op: dict[str, Any] = {"kind": short_op(node["op"])}
        if names:
            op["name"] = node["name"]
        if flags:
            op["flags"] = flags
        op["in"] = [first[a] + k for a in node["inputs"] for k in range(len(nodes[a]["out"]))]
        op["out"] = [{"storage": o["storage"], "type": type_text(o)} for o in node["out"]]
        if node.get("flops"):
            op["flops"] = node["flops"]
        if node["kind"] != "placeholder" and not view and not node["op"].endswith("getitem"):
            op["bytes"] = sum(ins.values()) + sum(o["bytes"] for o in node["out"])
        ops.append(op)

    def value_ids(key: str) -> list[int]:
        chosen = [i for i in graph[key] if i is not None and nodes[i]["kind"] != "placeholder"]
        return [first[i] + k for i in chosen for k in range(len(nodes[i]["out"]))]

    return {
        "format": "cutback.problem",
        "version": 1,
        "source": f"{graph['name']}, traced with PyTorch {graph['torch']}",
        "backward_starts": backward_starts,
        "align": 64,
        "forward_outputs": value_ids("forward_outputs"),
        "backward_outputs": value_ids("backward_outputs"),
        "storages": storages,
        "ops": ops,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traced")
    parser.add_argument("out")
    parser.add_argument("--names", action="store_true", help="keep the names of nodes")
    args = parser.parse_args()
    with gzip.open(args.traced, "rt") as file:
        problem = convert(json.load(file), args.names)
    data = json.dumps(problem, separators=(",", ":")).encode()
    Path(args.out).write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
