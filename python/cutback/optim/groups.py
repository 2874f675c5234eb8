"""Groups of parameters, by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def checked_groups(owner: str, groups: Any) -> list[dict[str, Any]]:
    """Copies of the groups that an optimizer was given.

    Raises:
        TypeError: they are not a list of dicts.
    """
    is_list = isinstance(groups, Iterable) and not isinstance(groups, Mapping | str | bytes)
    rows = list(groups) if is_list else []
    if not is_list or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(
            f"{owner}: groups={groups!r} is no list of dicts, such as "
            """[{"names": "*bias*", "weight_decay": 0.0}]"""
        )
    return [dict(row) for row in rows]


def patterns_of(owner: str, groups: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """The name patterns of each group as they are now.

    Raises:
        TypeError: one is not a pattern or a list of them.
    """
    rows = []
    for group in groups:
        names = group["names"]
        row = (names,) if isinstance(names, str) else names
        if not isinstance(row, Sequence) or not all(isinstance(p, str) for p in row):
            raise TypeError(f"{owner}: names={names!r} of a group is no pattern or list of them")
        rows.append(tuple(row))
    return tuple(rows)


def check_matches(
    owner: str,
    groups: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    patterns: Sequence[Sequence[str]],
) -> None:
    """Whether each group has a pattern that matches some parameter.

    Raises:
        ValueError: one has none.
    """
    for group, row in zip(groups, patterns, strict=True):
        if names and not any(find_group(name, (row,)) for name in names):
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(
                f"{owner}: no parameter is named like names={group['names']!r} "
                f"of a group; the names of the {len(names)} parameters are {some}"
            )


def find_group(name: str, patterns: Sequence[Sequence[str]]) -> int:
    """The first group with a pattern that matches the name, from 1 on; 0 where none does."""
    from fnmatch import fnmatchcase

    for i, row in enumerate(patterns):
        # brackets are part of leaf names, not sets of characters
        if any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in row):
            return i + 1
    return 0
