"""Finds the layer of the model that each operation belongs to, and the spans of steps of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

_LINE = re.compile(r":\d+$")
_KEYS = re.compile(r"\[('?)([^\]']+)\1\]")  # "params['blocks'][3]['weight']_45"
SHORTEST = 3  # steps; shorter spans between two spans of one layer are merged into that layer


class Op(Protocol):
    """The part of an op (model.py) that this module uses."""

    id: int
    name: str
    location: str
    backward: bool
    view: bool
    placeholder: bool
    inputs: list[int]
    outputs: list[int]


@dataclass(frozen=True)
class Span:
    """The consecutive steps first .. stop - 1 of one layer."""

    layer: str
    first: int
    stop: int


def module_of(location: str) -> str:
    """Returns the module in the location of an op: ``"layers.0"`` for ``"model.py:12 (layers.0)"``
    and for ``"layers.0"``, and "" for ``"model.py:12"``."""
    _, bracket, module = location.rpartition("(")
    if bracket:
        return module.rstrip(")")
    return "" if _LINE.search(location) else location


def _owner_of(parameter: str) -> str:
    """Returns the layer of a parameter, such as ``"blocks.3"`` for
    ``"params['blocks'][3]['weight']_45"``. The last key is dropped as the parameter's own name,
    unless it is the only key or a number."""
    keys = [found[2] for found in _KEYS.finditer(parameter)]
    if len(keys) > 1 and not keys[-1].isdigit():
        keys.pop()
    if keys and all(key.isdigit() for key in keys):
        keys.insert(0, parameter.split("[")[0])
    return ".".join(keys)


def block_of(path: str) -> str:
    """Returns the part of a path that names a repeated block or a part of the model: up to the
    first number (``"encoder.layer.3"``), or else the first two names."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: i + 1])
    return ".".join(parts[:2])


def paths_of(ops: Sequence[Op]) -> list[str]:
    """Returns the layer of each op. The locations of PyTorch's ops name their modules. Another op
    belongs to the layer whose parameter it reads; in the backward, to that of the latest forward op
    whose result it reads; otherwise to the layer of the op before it. Ops before the first layer
    belong to that layer."""
    modules = [module_of(op.location) for op in ops]
    owners: dict[int, str] = {}  # value -> the layer of the parameter that it is, or is a view of
    makers: dict[int, int] = {}
    paths: list[str] = []
    before = {False: "", True: ""}
    for op in ops:
        owned = [owners[value] for value in op.inputs if value in owners]
        if op.placeholder:
            path = owner = "" if any(modules) else _owner_of(op.name)
        else:
            path = modules[op.id] or (owned[-1] if owned else "")
            owner = owned[-1] if owned and op.view else ""
            read = [i for v in op.inputs if (i := makers.get(v, -1)) >= 0 and not ops[i].backward]
            if not path and op.backward and read:
                path = paths[max(read)]
            path = before[op.backward] = path or before[op.backward]
        if owner:
            owners.update((value, owner) for value in op.outputs)
        if not op.placeholder and not owner:
            makers.update((value, op.id) for value in op.outputs)
        paths.append(path)
    first = next((path for op, path in zip(ops, paths, strict=True) if _has(op, path)), "")
    for op in ops:  # ops before the first layer belong to it
        if _has(op, paths[op.id]):
            break
        if not op.placeholder:
            paths[op.id] = first
    return paths


def _has(op: Op, path: str) -> bool:
    return bool(path) and not op.placeholder


def spans(layers: Sequence[str]) -> list[Span]:
    """Groups the layers of steps into spans, without short interruptions."""
    found: list[Span] = []
    at = 0
    for layer, steps in groupby(layers):
        stop = at + len(list(steps))
        found.append(Span(layer, at, stop))
        at = stop
    merged: list[Span] = []
    for span in found:
        if len(merged) > 1 and merged[-2].layer == span.layer and _is_short(merged[-1]):
            merged.pop()
        if merged and merged[-1].layer == span.layer:
            merged[-1] = Span(span.layer, merged[-1].first, span.stop)
        else:
            merged.append(span)
    return merged


def _is_short(span: Span) -> bool:
    return span.stop - span.first < SHORTEST


def common(names: Sequence[str]) -> str:
    """Returns one name for layers whose names differ in one number, such as ``"layers.0 ...
    11"``."""
    if len(names) == 1:
        return names[0]
    first, last = names[0].split("."), names[-1].split(".")
    for i, (a, b) in enumerate(zip(first, last, strict=True)):
        if a != b:
            return ".".join([*first[:i], f"{a} \N{HORIZONTAL ELLIPSIS} {b}", *first[i + 1 :]])
    return names[0]


def is_next(before: str, after: str) -> bool:
    """Returns True if the names differ in exactly one part, a number that grows by one."""
    a, b = before.split("."), after.split(".")
    different = [(x, y) for x, y in zip(a, b, strict=False) if x != y]
    if len(a) != len(b) or len(different) != 1:
        return False
    x, y = different[0]
    return x.isdecimal() and y.isdecimal() and int(y) == int(x) + 1
