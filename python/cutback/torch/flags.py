"""Checks arguments that must be True or False; a string such as "no" would count as True."""

from __future__ import annotations


def check_flags(**given: bool) -> None:
    """Raises TypeError, which names the argument, if one is neither True nor False."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r:.60} is neither True nor False")


def check_flags_or_none(**given: bool | None) -> None:
    """Like :func:`check_flags`, but also allows None."""
    check_flags(**{name: value for name, value in given.items() if value is not None})
