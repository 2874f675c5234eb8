"""Finds the collectives of a joint graph, those that may run again, their process groups, the bytes
that they send, and their bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx

if TYPE_CHECKING:
    from .graphs import Reader

_WAIT = "_c10d_functional.wait_tensor.default"
_COPIES = frozenset({
    "_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.all_to_all_single.default",
    "_c10d_functional.broadcast.default",
})  # fmt: skip
"""Collectives that only move data, so that a second run gives the same bits on every backend.
Reductions are not among them, because they may add in another order."""

RATES = {
    "cpu": 1e9, "a100": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9, "rtx4090": 32e9,
}  # fmt: skip
"""Bytes per second that a process sends to its peers, by row of the device table: 1 GB/s for gloo
on a CPU, one direction of NVLink for data-center GPUs (data sheets), PCIe 4.0 x16 for the RTX 4090.
Networks between machines are slower: pass ``network_bytes_per_s`` for them."""


class Gathers(NamedTuple):
    """The collectives of a graph."""

    nodes: frozenset[fx.Node]
    """Forward collectives that may run again, and the nodes that wait for their results."""
    groups: tuple[str, ...]
    """The names of the process groups of all collectives, sorted."""


def find(reader: Reader) -> Gathers:
    """Finds the collectives of a graph and those of them that may run again. In a graph with
    dynamic sizes no collective may run again, because processes may see different sizes and then
    have different plans."""
    changes = any(_is_symbolic(n.meta.get("val")) for n in reader.nodes if n.op == "placeholder")
    nodes: set[fx.Node] = set()
    groups: set[str] = set()
    for node, kind in reader.kinds.items():
        name = group_of(node) if "collective" in kind.flags and kind.name != _WAIT else None
        if name is None:
            continue
        groups.add(name)
        waits = all(n in reader.kinds and reader.kinds[n].name == _WAIT for n in node.users)
        may = kind.name in _COPIES and node not in reader.late and not changes
        if may and waits and node.users:
            nodes.update((node, *node.users))
    return Gathers(frozenset(nodes), tuple(sorted(groups)))


def _is_symbolic(val: object) -> bool:
    if isinstance(val, torch.Tensor):
        return any(not isinstance(n, int) for n in (*val.shape, *val.stride()))
    return isinstance(val, (torch.SymInt, torch.SymFloat))


def group_of(node: fx.Node) -> str | None:
    """Returns the name of the process group of a collective, its last argument, or None if it is
    not known during planning."""
    group = node.args[-1] if node.args else None
    name = group if isinstance(group, str) else getattr(group, "group_name", None)
    return name if isinstance(name, str) else None


def sent_bytes(name: str, read: int, made: int) -> int:
    """Returns the bytes that a process sends in one call of a collective, or the bytes that it
    receives if these are more, for a ring algorithm with many processes.

    Args:
        name: name of the operation.
        read, made: bytes of its arguments and of its results.
    """
    if "all_gather" in name or "reduce_scatter" in name:
        return abs(made - read)
    return 2 * read if "all_reduce" in name else max(read, made)


def rate_of(device: object) -> float:
    """Returns the default of ``network_bytes_per_s`` for a row of the device table, or 0 if there
    is no default."""
    return RATES.get(device.partition("+")[0], 0.0) if isinstance(device, str) else 0.0
