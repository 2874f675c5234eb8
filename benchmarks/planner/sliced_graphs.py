"""Traced graphs whose widest rows run in pieces, as ``slices=True`` runs them in compiled steps.

A strip is a set of nodes that make or read wide rows: the logits of a language model with their
gradients, or the inner layer of one perceptron. Each of its nodes becomes k nodes of a kth of the
rows. Nodes that sum over rows (gradients of weights) become chains of k sums, each in the memory of
the one before. The graph is only planned, so the new nodes need sizes, times and flags, but no
arguments.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from typing import Any

Node = dict[str, Any]
Graph = dict[str, Any]


def _numel(out: dict[str, Any]) -> int:
    return math.prod(out["shape"])


def _has_rows(node: Node, rows: int) -> bool:
    """Whether all outputs have this many rows along their leading axes."""
    for out in node["out"]:
        leading, found = 1, False
        for size in out["shape"]:
            leading *= size
            found |= leading == rows
        if not found:
            return False
    return bool(node["out"])


class Strip:
    """The nodes of one strip of a graph."""

    def __init__(self, graph: Graph, wide: set[int], rows: int) -> None:
        nodes = graph["nodes"]
        readers = defaultdict(list)
        for i, node in enumerate(nodes):
            for j in node["inputs"]:
                readers[j].append(i)
        self.rows: set[int] = set(wide)  # nodes by rows
        self.sums: set[int] = set()  # nodes that add up over rows
        pending = sorted(wide)
        while pending:  # readers of wide values; statistics of rows stay inside if wide nodes read
            i = pending.pop()
            for j in readers[i]:
                if j in self.rows or j in self.sums:
                    continue
                if _turned(nodes, j) or (_is_narrow_view(nodes[j]) and i not in wide):
                    continue
                (self.rows if _has_rows(nodes[j], rows) else self.sums).add(j)
                feeds = any(k in wide for k in readers[j])
                if j in self.rows and feeds:
                    pending.append(j)
        between = True  # statistics of rows that are computed from others, such as a logarithm
        while between:
            between = {
                i
                for i, node in enumerate(nodes)
                if i not in self.rows | self.sums
                and node["kind"] != "placeholder"
                and self.rows & set(node["inputs"])
                and self.rows & set(readers[i])
                and _has_rows(node, rows)
            }
            self.rows |= between
        turned = {j for i in wide for j in readers[i] if _turned(nodes, j)}
        self.sums |= {k for j in turned for k in readers[j]} - self.rows
        self.rows |= turned

    def members(self) -> set[int]:
        """All its nodes."""
        return self.rows | self.sums


def _turned(nodes: list[Node], i: int) -> bool:
    """A transposed view of rows, which a product over rows reads."""
    return (
        bool(nodes[i].get("view"))
        and "permute" in nodes[i]["op"]
        and (len(nodes[i]["out"][0]["shape"]) == 2)
    )


def _is_narrow_view(node: Node) -> bool:
    return bool(node.get("view"))


def strips_of(graph: Graph, rows: int, widths: tuple[int, ...]) -> list[Strip]:
    """The strips whose inner rows have one of these widths."""
    nodes = graph["nodes"]
    wide = {
        i
        for i, node in enumerate(nodes)
        if node["kind"] != "placeholder"
        and any(_numel(out) in {rows * w for w in widths} for out in node["out"])
        and not _turned(nodes, i)
    }
    parent = {i: i for i in wide}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i in wide:
        for j in nodes[i]["inputs"]:
            if j in wide:
                parent[root(i)] = root(j)
    groups = defaultdict(set)
    for i in wide:
        groups[root(i)].add(i)
    return [Strip(graph, group, rows) for group in groups.values()]


class _Writer:
    """Appends nodes to a new graph."""

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.nodes: list[Node] = []
        self.storages: list[int] = []
        self.node: dict[int, int] = {}  # whole: old -> new
        self.storage: dict[tuple[int, int], int] = {}  # old, piece (-1: whole) -> new
        self.over: dict[int, int] = {}  # sum -> the sum before it

    def _storage(self, old: int, piece: int, nbytes: int) -> int:
        if (old, piece) not in self.storage:
            self.storage[old, piece] = len(self.storages)
            self.storages.append(nbytes)
        return self.storage[old, piece]

    def copy(self, i: int) -> None:
        """A node outside of strips."""
        node = copy.deepcopy(self.old["nodes"][i])
        node["inputs"] = [self.node[j] for j in node["inputs"]]
        for out in node["out"]:
            out["storage"] = self._storage(
                out["storage"], -1, self.old["storage_bytes"][out["storage"]]
            )
        self.node[i] = len(self.nodes)
        self.nodes.append(node)

    def piece(self, i: int, piece: int, k: int, made: dict[tuple[int, int], int]) -> None:
        """A node's rows of one piece."""
        node = copy.deepcopy(self.old["nodes"][i])
        node["name"] += f"_piece{piece}"
        node["inputs"] = [made[j, piece] if (j, piece) in made else self.node[j] for j in
                          node["inputs"]]  # fmt: skip
        if "flops" in node:
            node["flops"] //= k
        for out in node["out"]:
            out["bytes"] //= k
            out["shape"] = [_numel(out) // k]
            size = self.old["storage_bytes"][out["storage"]] // k
            is_inner = not node.get("view") or (out["storage"], piece) in self.storage
            if is_inner:
                out["storage"] = self._storage(out["storage"], piece, size)
            else:
                out["storage"] = self._storage(out["storage"], -1, 0)
        made[i, piece] = len(self.nodes)
        self.nodes.append(node)

    def sum(self, i: int, piece: int, k: int, made: dict[tuple[int, int], int]) -> None:
        """A sum over rows, added to that of the pieces before."""
        self.piece(i, piece, k, made)
        node, old = self.nodes[-1], self.old["nodes"][i]
        for out, whole in zip(node["out"], old["out"], strict=True):
            size = self.old["storage_bytes"][whole["storage"]]
            out["shape"], out["bytes"] = whole["shape"], whole["bytes"]
            self.storages[out["storage"]] = size
        if piece > 0:
            self.over[len(self.nodes) - 1] = made[i, piece - 1]
            node["inputs"].append(made[i, piece - 1])

    def join(self, i: int, k: int, made: dict[tuple[int, int], int]) -> None:
        """The pieces of a node that others read whole, joined."""
        node = copy.deepcopy(self.old["nodes"][i])
        node |= {"op": "aten.cat.default", "inputs": [made[i, p] for p in range(k)]}
        node.pop("flops", None), node.pop("tags", None), node.pop("view", None)
        for out in node["out"]:
            size = self.old["storage_bytes"][out["storage"]]
            out["storage"] = self._storage(out["storage"], -1, size)
        self.node[i] = len(self.nodes)
        self.nodes.append(node)


def _order(graph: Graph, strips: list[Strip]) -> list[int | tuple[int, bool]]:
    """Nodes, and strips as (number, backward), in an order in which each follows what it reads."""
    nodes = graph["nodes"]
    block: dict[int, tuple[int, bool]] = {}
    for number, strip in enumerate(strips):
        for i in strip.members():
            block[i] = (number, nodes[i]["phase"] == "is_backward")
    members = defaultdict(list)
    for i, key in sorted(block.items()):
        members[key].append(i)
    order: list[int | tuple[int, bool]] = []
    done: set[int] = set()
    waiting: set[int] = set()  # for what they read

    def visit(start: int) -> None:
        stack = [(start, False)]
        while stack:
            i, is_ready = stack.pop()
            if i in done:
                continue
            group = members[block[i]] if i in block else [i]
            if is_ready:
                done.update(group)
                order.append(block.get(i, i))
                continue
            stack.append((i, True))
            needs = {j for m in group for j in nodes[m]["inputs"]} - set(group) - done
            if needs & waiting:
                raise ValueError(f"{nodes[i]['name']} is between the ops of a strip")
            waiting.update(group)
            stack += [(j, False) for j in sorted(needs, reverse=True)]

    for i in range(len(nodes)):
        visit(i)
    return order


def sliced(
    graph: Graph, rows: int, widths: tuple[int, ...], k: int = 8
) -> tuple[Graph, dict[int, int]]:
    """The graph with its strips in k pieces, and the sums that take over the memory of others."""
    strips = strips_of(graph, rows, widths)
    nodes = graph["nodes"]
    readers = defaultdict(list)
    for i, node in enumerate(nodes):
        for j in node["inputs"]:
            readers[j].append(i)
    returned = {v for v in graph["forward_outputs"] + graph["backward_outputs"] if v is not None}
    writer = _Writer(graph)
    made: dict[tuple[int, int], int] = {}
    for item in _order(graph, strips):
        if isinstance(item, int):
            writer.copy(item)
            continue
        number, backward = item
        strip = strips[number]
        inside = sorted(
            i for i in strip.members() if (nodes[i]["phase"] == "is_backward") == backward
        )
        for piece in range(k):
            for i in inside:
                (writer.sum if i in strip.sums else writer.piece)(i, piece, k, made)
        for i in inside:
            if i in strip.sums:
                writer.node[i] = made[i, k - 1]
            elif i in returned or any(j not in strip.members() for j in readers[i]):
                writer.join(i, k, made)
    result = {**graph, "nodes": writer.nodes, "storage_bytes": writer.storages}
    for key in ("forward_outputs", "backward_outputs"):
        result[key] = [None if v is None else writer.node[v] for v in graph[key]]
    return result, writer.over
