"""Parameter groups, which are selected by name patterns or by functions of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Pattern = str | Callable[[str], bool]
"""A shell pattern, or a function of a name."""


def checked_groups(owner: str, groups: Any) -> list[dict[str, Any]]:
    """Checks the groups that the user passed, and returns a copy.

    Raises:
        TypeError: if ``groups`` is not a list of dicts.
    """
    is_list = isinstance(groups, Iterable) and not isinstance(groups, Mapping | str | bytes)
    rows = list(groups) if is_list else []
    if not is_list or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(
            f"{owner}: groups={groups!r} must be a list of dicts, such as "
            """[{"names": "*bias*", "weight_decay": 0.0}]"""
        )
    return [dict(row) for row in rows]


def patterns_of(owner: str, groups: Sequence[Mapping[str, Any]]) -> tuple[tuple[Pattern, ...], ...]:
    """Returns the current name patterns of each group.

    Raises:
        TypeError: if the names of a group are not a pattern, a function or a list of these.
    """
    rows = []
    for group in groups:
        names = group["names"]
        row = (names,) if isinstance(names, str) or callable(names) else names
        if not isinstance(row, Sequence) or not all(isinstance(p, str) or callable(p) for p in row):
            raise TypeError(
                f"{owner}: names={names!r} of a group must be a pattern, a function of a name, or "
                "a list of them"
            )
        rows.append(tuple(row))
    return tuple(rows)


def check_matches(
    owner: str,
    groups: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    patterns: Sequence[Sequence[Pattern]],
) -> None:
    """Checks that each group matches at least one parameter.

    Raises:
        ValueError: if a group does not match any parameter.
    """
    for group, row in zip(groups, patterns, strict=True):
        if names and not any(find_group(name, (row,)) for name in names):
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(
                f"{owner}: names={group['names']!r} of a group do not match any parameter; "
                f"the names of the {len(names)} parameters are {some}"
            )


def find_group(name: str, patterns: Sequence[Sequence[Pattern]]) -> int:
    """Returns the number of the first group that matches the name, counted from 1, or 0 if no group
    does."""
    from fnmatch import fnmatchcase

    for i, row in enumerate(patterns):
        for pattern in row:
            # leaf names contain brackets, so "[" must not start a character set
            if (
                fnmatchcase(name, pattern.replace("[", "[[]"))
                if isinstance(pattern, str)
                else pattern(name)
            ):
                return i + 1
    return 0
