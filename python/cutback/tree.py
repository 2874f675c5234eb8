"""Pytrees: nested dicts, lists, tuples, named tuples and dataclasses with arrays as leaves.

    leaves, tree = flatten({"w": w, "b": [b1, b2]})  # [b1, b2, w]: dicts in the order of their keys
    names(tree, "params")  # ["params['b'][0]", "params['b'][1]", "params['w']"]
    unflatten(tree, leaves)

``None`` is a tree without leaves. A tree is hashable, so it can be part of a cache key.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

Tree = tuple[Any, ...]
"""``("leaf",)``, ``("none",)``, or ``(kind, type, keys, children)``."""

LEAF: Tree = ("leaf",)
NONE: Tree = ("none",)


_kinds: dict[
    type, str
] = {}  # cached for each type, because flattening needs it for every leaf of every call


def _kind(cls: type) -> str:
    if cls is type(None):
        return "none"
    if issubclass(cls, dict):
        return "dict"
    if issubclass(cls, tuple):
        return "named" if hasattr(cls, "_fields") else "tuple"
    if issubclass(cls, list):
        return "list"
    return "dataclass" if hasattr(cls, "__dataclass_fields__") else "leaf"


def _parts(kind: str, x: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Returns (keys, children) of a container."""
    if kind == "dict":
        try:
            keys = tuple(sorted(x))
        except TypeError:
            keys = tuple(x)
        return keys, [x[k] for k in keys]
    if kind == "dataclass":
        keys = tuple(type(x).__dataclass_fields__)
        return keys, [getattr(x, k) for k in keys]
    return (tuple(x._fields) if kind == "named" else _indices(len(x))), list(x)


@lru_cache
def _indices(n: int) -> tuple[int, ...]:
    """Returns the keys of a list of length ``n``. The tuple is cached, so that comparing equal
    trees is fast."""
    return tuple(range(n))


@lru_cache
def _leaf_trees(n: int) -> tuple[Tree, ...]:
    return (LEAF,) * n


def flatten(x: Any) -> tuple[list[Any], Tree]:
    """Returns the leaves of ``x`` in a fixed order, and the tree with which :func:`unflatten`
    rebuilds ``x``."""
    leaves: list[Any] = []
    return leaves, _flatten(x, leaves)


def _flatten(x: Any, leaves: list[Any]) -> Tree:
    cls = type(x)
    kind = _kinds.get(cls) or _kinds.setdefault(cls, _kind(cls))
    if kind == "leaf":
        leaves.append(x)
        return LEAF
    if kind == "none":
        return NONE
    keys, children = _parts(kind, x)
    below = set(builtins.map(type, children))
    if len(below) == 1 and _kinds.get(next(iter(below))) == "leaf":  # fast path for long lists
        leaves.extend(children)
        return kind, cls, keys, _leaf_trees(len(children))
    return kind, cls, keys, tuple([_flatten(child, leaves) for child in children])


def parts(x: Any) -> tuple[tuple[Any, ...], list[Any]] | None:
    """Returns (keys, children) of a container, in the order of its leaves. Returns None for a leaf
    and for None."""
    kind = _kind(type(x))
    return None if kind in ("leaf", "none") else _parts(kind, x)


def unflatten(tree: Tree, leaves: Any) -> Any:
    """Returns the nested value of a tree, rebuilt from ``leaves``, which are in the order of
    :func:`flatten`.

    Raises:
        ValueError: if the number of leaves differs from that of the tree.
    """
    source = iter(leaves)
    value = _unflatten(tree, source)
    if next(source, LEAF) is not LEAF:
        raise ValueError("more leaves than the tree has places")
    return value


def _unflatten(tree: Tree, source: Iterator[Any]) -> Any:
    if tree == NONE:
        return None
    if tree == LEAF:
        return _take(source, 1)[0]
    kind, cls, keys, children = tree
    if isinstance(children, tuple) and children.count(LEAF) == len(children):
        values = _take(source, len(children))
    else:
        values = [_unflatten(child, source) for child in children]
    if kind == "dict":
        return dict(zip(keys, values, strict=True))
    if kind == "named":
        return cls(*values)
    if kind == "dataclass":
        return cls(**dict(zip(keys, values, strict=True)))
    return cls(values)


def _take(source: Iterator[Any], n: int) -> list[Any]:
    values = list(islice(source, n))
    if len(values) < n:
        raise ValueError("fewer leaves than the tree has places")
    return values


def count(tree: Tree) -> int:
    """Returns the number of leaves."""
    if len(tree) == 1:
        return int(tree == LEAF)
    children = tree[3]
    n = int(children.count(LEAF))
    return n if n == len(children) else sum(count(child) for child in children)


def names(tree: Tree, prefix: str) -> list[str]:
    """Returns a readable name for each leaf, such as ``"params['w1']"``, ``"state.mean"`` or
    ``"layers[0]"``."""
    if len(tree) == 1:
        return [prefix] if tree == LEAF else []
    kind, _, keys, children = tree
    spell: Callable[[Any], str]
    if kind in ("named", "dataclass"):
        spell = lambda key: f"{prefix}.{key}"  # noqa: E731
    else:
        spell = lambda key: f"{prefix}[{key!r}]"  # noqa: E731
    return [
        name for key, child in zip(keys, children, strict=True) for name in names(child, spell(key))
    ]


def map(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Calls ``function`` on each leaf of ``x`` (and the corresponding leaves of ``others``, which
    must have the same tree). Returns the results, nested like ``x``.

    Raises:
        ValueError: if the trees differ.

    >>> cutback.tree.map(lambda w, g: w - 0.5 * g, {"w": 3.0, "b": [1.0]}, {"w": 2.0, "b": [4.0]})
    {'b': [-1.0], 'w': 2.0}
    """
    leaves, tree = flatten(x)
    columns = [leaves]
    for other in others:
        more, other_tree = flatten(other)
        if other_tree != tree:
            raise ValueError("the trees differ in structure")
        columns.append(more)
    return unflatten(tree, [function(*row) for row in zip(*columns, strict=True)])


def leaves(x: Any) -> list[Any]:
    """Returns the leaves of ``x``, in the order of :func:`flatten`.

    >>> cutback.tree.leaves({"w": 1, "b": [2, 3]})
    [2, 3, 1]
    """
    return flatten(x)[0]


def structure(x: Any) -> Tree:
    """Returns the tree of ``x`` without its leaves; two values nested alike have equal
    structures."""
    return flatten(x)[1]


def reduce(function: Callable[[Any, Any], Any], x: Any, *initial: Any) -> Any:
    """Returns the leaves of ``x`` combined from left to right, like ``functools.reduce``.

    >>> cutback.tree.reduce(lambda a, b: a + b, {"w": 1, "b": [2, 3]}, 0)
    6
    """
    return functools.reduce(function, flatten(x)[0], *initial)


def beside(structure: Tree, x: Any, name: str) -> list[Any]:
    """Returns, for each leaf of a tree, the leaf of ``x`` at the same position. A None in ``x``
    applies to all leaves below it. ``name`` is the name of ``x`` for errors.

    Raises:
        ValueError: if ``x`` is nested differently.
    """
    leaves: list[Any] = []
    path: list[Any] = []
    if not _beside(structure, x, leaves, path):
        where = "".join(f"[{key!r}]" for key in reversed(path))
        raise ValueError(f"{name}{where} is not nested like the parameters")
    return leaves


def _beside(structure: Tree, x: Any, leaves: list[Any], path: list[Any]) -> bool:
    """Appends the leaves of ``x`` to ``leaves``. Returns False if ``x`` is nested differently; then
    ``path`` holds the keys that lead to the difference, innermost first."""
    if x is None:
        leaves += [None] * count(structure)
        return True
    if structure == LEAF:
        leaves.append(x)
        return True
    children, keys = parts(x), structure[2] if len(structure) > 2 else ()
    if children is None or len(structure) < 3 or children[0] != keys:
        return False
    if structure[3].count(LEAF) == len(keys):
        leaves += children[1]
        return True
    for key, below, y in zip(keys, structure[3], children[1], strict=True):
        if not _beside(below, y, leaves, path):
            path.append(key)
            return False
    return True
