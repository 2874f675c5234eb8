"""Arguments that are True or False: a string in their place ("no") would count as True."""

from __future__ import annotations


def check_flags(**given: bool) -> None:
    """Raises: TypeError: an argument is neither True nor False; the text names it."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r:.60} is neither True nor False")


def check_flags_or_none(**given: bool | None) -> None:
    """The same, but None is also allowed."""
    check_flags(**{name: value for name, value in given.items() if value is not None})
