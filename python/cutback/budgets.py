"""Budgets: parses and formats the memory limits of steps."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MEASURES = ("arena", "live", "saved", "total")
PRESETS = (
    "autograd", "recompute_all", "conservative", "aggressive", "torch-compat", "shape-aware",
)  # fmt: skip

_NONE, _BYTES, _SHARE, _MIN, _POSITION, _SMALLEST = range(6)
BOUNDS = (_BYTES, _SHARE)
"""Kinds of budgets (the first item of :data:`NativeBudget`) that give bytes or a share."""
_ONLY = 2
"""``offload="only"`` in a :data:`NativeBudget`."""
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
# Patterns are compiled on first use, so that importing the package is fast.
_SIZE = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*"
_SHARE_TEXT = r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([xX%])\s*"

Budget = int | float | str | None
"""A budget in any form that users may pass; see :func:`parse`."""
NativeBudget = tuple[int, int, float, int] | tuple[int, int, float, int, int, int, bool]
"""A budget for the core: (kind, bytes, share, measure[, offload, pinned bytes, exact])."""


def parse_bytes(spec: int | str) -> int:
    """Converts ``3_000_000``, ``"3MB"`` or ``"2.5GiB"`` to bytes.

    Raises:
        ValueError, TypeError: if ``spec`` is not a size.
    """
    spec = _plain(spec)
    if isinstance(spec, int) and not isinstance(spec, bool):
        if spec < 0:
            raise ValueError(f"{short(spec)} is negative; write a number of bytes")
        if spec >= 2**63:
            raise ValueError(f"{short(spec)} is more bytes than any memory has")
        return spec
    if not isinstance(spec, str):
        raise TypeError(
            f"a size must be an int (bytes) or a string such as '6GiB', not {short(spec)}"
        )
    match, unit = _size_of(spec)
    if match is None or unit is None:
        raise ValueError(f"{spec!r} is not a size; write bytes, '500MB' or '6GiB'")
    if "." in match[1] and not match[2]:
        raise ValueError(
            f"{spec!r} is not a number of bytes; write a size such as '500MB' or '6GiB', a "
            "position as a number (budget=0.4), or a share such as '0.4x'"
        )
    size = float(match[1]) * unit
    if size >= 2**63:
        shown = spec if len(spec) < 40 else f"{spec[:37]}..."
        raise ValueError(f"{shown!r} is more bytes than any memory has")
    return int(size)


def _size_of(spec: str) -> tuple[re.Match[str] | None, int | None]:
    """Matches a size such as ``"6GiB"``. Returns the match and the bytes of the unit, each None if
    invalid."""
    match = re.fullmatch(_SIZE, spec)
    return match, _UNITS.get(match[2].lower()) if match else None


def parse(
    budget: Budget, measure: str = "arena", max_extra: float | None = None
) -> NativeBudget | None:
    """Converts a budget to the core's form; None stays None.

    The forms are:

    - a float from 0 to 1, or the int 0 or 1: a position between the smallest plan and saving
      everything;
    - any other int: bytes;
    - ``"6GiB"``, ``"500MB"``: bytes with a unit;
    - ``"0.4x"``, ``"40%"``: a share, in (0, 1], of the bytes of saving everything;
    - ``"min"``: the smallest peak that costs at most 40 % extra time, or ``max_extra``; if the
      constraints alone cost more than that, the smallest peak, however slow;
    - ``"smallest"``: the smallest peak, however slow.

    Raises:
        ValueError, TypeError: if ``budget``, ``measure`` or ``max_extra`` is invalid.
    """
    number = choice("measure", measure, MEASURES)
    if budget is None and max_extra is None:
        return None
    budget = _plain(budget)
    if isinstance(budget, str) and budget == "min":
        return _MIN, 0, _extra(max_extra), number
    if max_extra is not None:
        raise ValueError(f"max_extra needs budget='min', not {short(budget)}")
    if isinstance(budget, str) and budget == "smallest":
        return _SMALLEST, 0, 0.0, number
    if isinstance(budget, bool):
        raise TypeError(f"budget={budget} is neither a position from 0 to 1 nor a number of bytes")
    if isinstance(budget, float) or (isinstance(budget, int) and budget in (0, 1)):
        return _POSITION, 0, _position(budget), number
    if isinstance(budget, str) and budget.rstrip()[-1:] in ("x", "X", "%"):
        return _SHARE, 0, _share(budget), number
    if isinstance(budget, str) and None in _size_of(budget):
        raise ValueError(
            f"budget={short(budget)} is not a size; write bytes, '500MB' or '6GiB', a position "
            "such as 0.4, a share such as '0.4x', 'min' or 'smallest'"
        )
    if not isinstance(budget, (int, str)):
        raise TypeError(
            f"budget={short(budget)} has type {type(budget).__name__}; write a position from 0 to "
            "1 as a float, bytes as an int, or a string such as '6GiB', '0.4x' or 'min'"
        )
    return _BYTES, named_bytes("budget", budget), 0.0, number


def _position(budget: float) -> float:
    if not 0 <= budget <= 1:
        raise ValueError(
            f"budget={short(budget)}: a position must be from 0 (the smallest plan) to 1 (save "
            "everything); for bytes pass an int or '6GiB'"
        )
    return abs(float(budget))  # -0.0 is 0


def _share(budget: str) -> float:
    match = re.fullmatch(_SHARE_TEXT, budget)
    if match is None:
        raise ValueError(
            f"budget={short(budget)} is not a share such as '0.4x' or '40%', a size such as "
            "'6GiB', 'min' or 'smallest'"
        )
    share = float(match[1]) / (100 if match[2] == "%" else 1)
    if not 0 < share <= 1:
        raise ValueError(
            f"budget={short(budget)}: a share must be in (0, 1]; for bytes pass an int or '6GiB'"
        )
    return share


def as_share(part: Any) -> Any:
    """Converts a float to a share such as ``"0.4x"``, for arguments in which floats mean shares
    rather than positions. Returns anything else unchanged."""
    part = _plain(part)
    return f"{part!r}x" if isinstance(part, float) else part


class Position(NamedTuple):
    """A budget given as a position, and the bytes at both ends of its range."""

    position: float
    """From 0 to 1."""
    smallest: int
    """The bytes of position 0."""
    everything: int
    """The bytes of position 1."""

    @property
    def limit(self) -> int:
        """The bytes of the position."""
        return limit(*self)

    def describe(self, taken: int) -> str:
        """Returns a line that describes the position and the plan found for it.

        ``taken`` is the size of that plan in bytes. It can be below ``smallest``, which comes from
        a quick search. It can be above :attr:`limit`, because both ends of the range leave out the
        scratch memory of kernels, and because several calls may share the budget.

        >>> Position(0.5, 340 << 20, 1290 << 20).describe(812 << 20)
        '0.5: 812 MiB, 63 % of 1.26 GiB; smallest 340 MiB'
        >>> Position(0.5, 340 << 20, 1290 << 20).describe(1032 << 20)
        '0.5: 1.01 GiB, over its 815 MiB; 80 % of 1.26 GiB; smallest 340 MiB'
        """
        share = 100 * taken / self.everything if self.everything else 100.0
        over = f" over its {short_text(self.limit)};" if taken > self.limit else ""
        return (
            f"{self.position:g}: {short_text(taken)},{over} {share:.0f} % of "
            f"{short_text(self.everything)}; smallest {short_text(min(taken, self.smallest))}"
        )


class Shared(NamedTuple):
    """The budget shared by several calls of a PyTorch model before one backward."""

    calls: int
    """Number of calls."""
    taken: int
    """The total bytes that the calls hold."""
    limit: int
    """The budget for all calls, in bytes."""
    position: Position | None
    """The budget as a position, if it was given as one."""

    def describe(self) -> str:
        """Returns a line that describes the shared budget and the bytes held.

        >>> Shared(3, 812 << 20, 815 << 20, None).describe()
        '812 MiB of 815 MiB, for 3 calls before one backward'
        """
        if self.position is not None:
            said = self.position.describe(self.taken)
        else:
            said = f"{short_text(self.taken)} of {short_text(self.limit)}"
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{said}, for {calls} before one backward"


def limit(position: float, smallest: int, everything: int) -> int:
    """Returns the bytes of a position from 0 to 1: ``smallest + ceil(position * (everything -
    smallest))`` in exact arithmetic, or ``smallest`` if that is not below ``everything``."""
    if smallest >= everything:
        return smallest
    numerator, denominator = float(position).as_integer_ratio()
    return smallest - (-numerator * (everything - smallest) // denominator)


def short(value: object) -> str:
    """Returns the ``repr`` of a value for an error message, at most 60 characters long."""
    try:
        shown = repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"an int of {int(value).bit_length()} bits"  # type: ignore[call-overload]
    return shown if len(shown) < 60 else f"{shown[:57]}..."


def whole_number(text: str) -> bool:
    """Returns True if the text is an integer of at most 19 digits 0 to 9. (``int`` also accepts
    digits of other scripts, and underscores.)"""
    return text.isascii() and text.isdecimal() and len(text) < 20


def choice(name: str, value: object, options: tuple[str, ...]) -> int:
    """Returns the index of ``value`` in ``options``.

    Raises:
        ValueError: if it is not one of them; the message contains ``name``.
    """
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name}={short(value)} is not one of {', '.join(options)}")
    return options.index(value)


def truth(name: str, value: object) -> None:
    """Raises a TypeError that contains ``name`` if the value is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={short(value)} is neither True nor False")


def truths(**values: object) -> None:
    """Raises a TypeError that contains the name of the first value that is neither True nor
    False."""
    for name, value in values.items():
        truth(name, value)


def _plain(number: Any) -> Any:
    """Converts a NumPy scalar to a Python number; returns anything else unchanged."""
    scalar = isinstance(getattr(number, "shape", None), tuple) and number.shape == ()
    return number.item() if scalar and hasattr(number, "item") else number


def _extra(max_extra: float | None) -> float:
    if max_extra is None:
        return 0.0  # the core's default
    max_extra = _plain(max_extra)
    if isinstance(max_extra, bool) or not isinstance(max_extra, (int, float)):
        raise TypeError(f"max_extra={short(max_extra)} is not a number in (0, 100]")
    if not 0 < max_extra <= 100:
        raise ValueError(f"max_extra={short(max_extra)} is not a number in (0, 100]")
    return float(max_extra)


def named_bytes(name: str, spec: Any) -> int:
    """Parses the bytes in ``spec``, the value of the argument ``name``; see :func:`parse_bytes`.

    Raises:
        ValueError, TypeError: if it is not a size; the message begins with the argument.
    """
    try:
        return parse_bytes(spec)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={short(spec)}: {error}") from None


def of_bytes(size: int, measure: str) -> NativeBudget:
    """Returns a budget of ``size`` bytes. It may be 0 or 1, which :func:`parse` reads as
    positions."""
    return _BYTES, size, 0.0, choice("measure", measure, MEASURES)


def is_position(budget: NativeBudget | None) -> bool:
    """Returns True if the budget is a position between the smallest plan and saving everything."""
    return budget is not None and budget[0] == _POSITION


def is_bound(budget: NativeBudget | None) -> bool:
    """Returns True if the budget bounds bytes, which ``"min"`` and ``"smallest"`` do not."""
    return budget is not None and (budget[0] in BOUNDS or is_position(budget))


def is_share(budget: NativeBudget | None) -> bool:
    """Returns True if the budget is a share of the bytes of saving everything."""
    return budget is not None and budget[0] == _SHARE


INFEASIBLE = ("error", "min", "smallest", "warn")
"""Values of ``on_infeasible``, which says what to do if no plan meets the budget: ``"error"``
raises, ``"min"`` and ``"smallest"`` use the plan of that budget, ``"warn"`` saves everything."""

_FALLBACKS = {
    "min": "the smallest plan that costs at most 40 % more time is used",
    "smallest": "the smallest plan is used, however slow",
    "warn": "everything is saved, and no budget applies",
}


def fallen_back(error: object, wish: str) -> str:
    """Returns the text of the warning that ``on_infeasible`` issues instead of an error."""
    return f"{error}. Because of on_infeasible={wish!r}, {_FALLBACKS[wish]}"


def position_of(budget: NativeBudget | None) -> float | None:
    """Returns the position of a budget; None if it is not a position."""
    return budget[2] if budget is not None and budget[0] == _POSITION else None


def keeps_to_moves(budget: NativeBudget, recomputed: int, host_bytes: int) -> bool:
    """Returns True if a plan respects the options that :func:`with_options` added to a budget.

    Args:
        budget: the budget.
        recomputed: number of values that the plan recomputes.
        host_bytes: peak bytes that the plan holds on the host.
    """
    _, _, offload, pinned, _ = budget[2:] if len(budget) == 7 else (*budget[2:], 0, 0, False)
    return not (offload == _ONLY and recomputed) and not (pinned and host_bytes > pinned)


def in_bytes(budget: NativeBudget, limit: int) -> NativeBudget:
    """Returns the budget with ``limit`` bytes instead of its share or position, and the same
    options."""
    return (_BYTES, limit, 0.0, *budget[3:])


def with_options(
    budget: NativeBudget | None, offload: bool | str, pinned: int | str | None, exact: bool
) -> NativeBudget | None:
    """Returns the budget with these options added.

    Args:
        budget: the budget, or None.
        offload: ``False`` (only values whose policy asks for it move to the host), ``True`` (any
            value may move), or ``"only"`` (values may move, but nothing is recomputed).
        pinned: limit on the bytes held on the host at a time.
        exact: search again for exactly this budget.

    Raises:
        ValueError, TypeError: if an option is invalid, or needs a budget.
    """
    if not isinstance(offload, bool) and not (isinstance(offload, str) and offload == "only"):
        raise ValueError(f"offload={short(offload)} is not one of False, True, 'only'")
    truth("exact", exact)
    most = 0 if pinned is None else named_bytes("pinned", pinned)
    if pinned is not None and most == 0:
        raise ValueError("pinned=0 allows nothing on the host; leave offload out instead")
    kind = _ONLY if offload == "only" else int(offload)
    if budget is None:
        if kind or exact:
            raise ValueError(f"{'offload' if kind else 'exact'} needs a budget; give one")
        budget = (_NONE, 0, 0.0, 0)
    if not kind and not most and not exact:
        return budget if budget[0] != _NONE else None
    return (*budget[:4], kind, most, exact)


def pinned_alone(pinned: int | str | None) -> ValueError:
    """Returns the error for ``pinned`` without ``offload``."""
    return ValueError(
        f"pinned={short(pinned)} needs offload (--offload) or a policy that offloads: otherwise "
        "nothing moves to the host"
    )


def parse_preset(preset: str | None, searched: str | None = None) -> int:
    """Returns the number of a preset. None means ``autograd``, which saves every value that the
    backward reads. ``searched`` is the measure of the budget, if there is one.

    Raises:
        ValueError: if the preset does not exist, or a budget already decides what to save.
    """
    if preset is None:
        return 0
    number = choice("preset", preset, PRESETS)
    if searched not in (None, "saved"):
        raise ValueError(
            f"preset={short(preset)} can only be used without a budget (it says what to save) or "
            "with measure='saved' (it says what may be recomputed); omit preset or the budget"
        )
    return number


def text(n: int | None) -> str:
    """Formats bytes: ``"1.50 MiB"``."""
    if n is None:
        return "none"
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def short_text(n: int) -> str:
    """Formats bytes with three digits: ``"1.5 MiB"``."""
    size, _, unit = text(n).partition(" ")
    return f"{float(size):.4g} {unit}" if float(size) >= 1000 else f"{float(size):.3g} {unit}"
