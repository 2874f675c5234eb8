"""Budgets: how much memory a step may use, in the ways people write it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MEASURES = ("arena", "live", "saved", "total")
PRESETS = (
    "autograd", "recompute_all", "conservative", "aggressive", "torch-compat", "shape-aware",
)  # fmt: skip

_NONE, _BYTES, _SHARE, _MIN, _POSITION, _SMALLEST = range(6)
BOUNDS = (_BYTES, _SHARE)
"""Kinds of budgets (the first number of :data:`NativeBudget`) that name bytes or a share."""
_ONLY = 2
"""``offload="only"`` in a :data:`NativeBudget`."""
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
# Patterns are compiled when they are first used: the import of the package waits for none.
_SIZE = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*"
_SHARE_TEXT = r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([xX%])\s*"

Budget = int | float | str | None
"""A budget as users write it; see :func:`parse`."""
NativeBudget = tuple[int, int, float, int] | tuple[int, int, float, int, int, int, bool]
"""(kind, bytes, share, measure), or with (offload, pinned bytes, exact), as the core takes it."""


def parse_bytes(spec: int | str) -> int:
    """``3_000_000``, ``"3MB"`` or ``"2.5GiB"`` in bytes.

    Raises:
        ValueError, TypeError: not a size.
    """
    spec = _plain(spec)
    if isinstance(spec, int) and not isinstance(spec, bool):
        if spec < 0:
            raise ValueError(f"{short(spec)} is negative; write a number of bytes")
        if spec >= 2**63:
            raise ValueError(f"{short(spec)} is more bytes than any memory has")
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"a size is an int (bytes) or a string such as '6GiB', not {short(spec)}")
    match, unit = _size_of(spec)
    if match is None or unit is None:
        raise ValueError(f"{spec!r} is not a size; write bytes, '500MB' or '6GiB'")
    if "." in match[1] and not match[2]:
        raise ValueError(
            f"{spec!r} is not a number of bytes; write '500MB' or '6GiB', for a position the "
            "number itself, as in budget=0.4, or for a share '0.4x'"
        )
    size = float(match[1]) * unit
    if size >= 2**63:
        shown = spec if len(spec) < 40 else f"{spec[:37]}..."
        raise ValueError(f"{shown!r} is more bytes than any memory has")
    return int(size)


def _size_of(spec: str) -> tuple[re.Match[str] | None, int | None]:
    """What is written as a size, and bytes of its unit."""
    match = re.fullmatch(_SIZE, spec)
    return match, _UNITS.get(match[2].lower()) if match else None


def parse(
    budget: Budget, measure: str = "arena", max_extra: float | None = None
) -> NativeBudget | None:
    """A budget as users write it to the core's form; None stays None.

    A number from 0 to 1, also as an int: a position between the smallest plan and saving
    everything. Other ints: bytes. ``"6GiB"``, ``"500MB"``: with a unit. ``"0.4x"``, ``"40%"``: a
    share of what saving everything takes, in (0, 1]. ``"min"``: the smallest peak that costs at
    most 40 % more time (where constraints alone take more than that, at any price), or the share
    ``max_extra``. ``"smallest"``: the smallest peak, however slow.

    Raises:
        ValueError, TypeError: not a budget, or no such measure.
    """
    number = choice("measure", measure, MEASURES)
    if budget is None and max_extra is None:
        return None
    budget = _plain(budget)
    if isinstance(budget, str) and budget == "min":
        return _MIN, 0, _extra(max_extra), number
    if max_extra is not None:
        raise ValueError(f"max_extra goes with budget='min', not with {short(budget)}")
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
            "1 as a float, bytes as an int, or a text such as '6GiB', '0.4x' or 'min'"
        )
    return _BYTES, named_bytes("budget", budget), 0.0, number


def _position(budget: float) -> float:
    if not 0 <= budget <= 1:
        raise ValueError(
            f"budget={short(budget)}: a position is from 0 (the smallest plan) to 1 (save "
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
            f"budget={short(budget)}: a share lies in (0, 1]; for bytes pass an int or '6GiB'"
        )
    return share


def as_share(part: Any) -> Any:
    """For arguments that are shares where budgets are positions: a float as the text of a share;
    anything else as it is."""
    part = _plain(part)
    return f"{part!r}x" if isinstance(part, float) else part


class Position(NamedTuple):
    """A budget that is a position, and the bytes of both ends of its range."""

    position: float
    smallest: int
    everything: int

    @property
    def limit(self) -> int:
        """The bytes that it stands for."""
        return limit(*self)

    def describe(self, taken: int) -> str:
        """One line for people. ``taken``: bytes of the plan, which may be smaller than the one that
        a quick search finds for position 0; larger than the position's with scratch of kernels,
        which both ends are counted without, and where several calls share it.

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
    """What calls of a PyTorch model that are followed by one backward have together."""

    calls: int
    taken: int
    """The bytes that they hold together."""
    limit: int
    """The budget for all of them, in bytes."""
    position: Position | None
    """The same as a position, if it was given as one."""

    def describe(self) -> str:
        """One line for people.

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
    """The bytes of a position from 0 to 1: ``smallest + ceil(position * (everything - smallest))``,
    exactly; ``smallest`` if that is not below ``everything``."""
    if smallest >= everything:
        return smallest
    numerator, denominator = float(position).as_integer_ratio()
    return smallest - (-numerator * (everything - smallest) // denominator)


def short(value: object) -> str:
    """What was given, for an error."""
    try:
        shown = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return f"an int of {int(value).bit_length()} bits"  # type: ignore[call-overload]
    return shown if len(shown) < 60 else f"{shown[:57]}..."


def whole_number(text: str) -> bool:
    """Is it a number of 64 bits or less in the digits 0 to 9? ``int`` takes those of other scripts,
    too, and underscores."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def choice(name: str, value: object, options: tuple[str, ...]) -> int:
    """The place of a word among ``options``.

    Raises:
        ValueError: not one of them; the text names the argument.
    """
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name}={short(value)} is not one of {', '.join(options)}")
    return options.index(value)


def _plain(number: Any) -> Any:
    """A NumPy number as Python's; anything else as it is."""
    scalar = isinstance(getattr(number, "shape", None), tuple) and number.shape == ()
    return number.item() if scalar and hasattr(number, "item") else number


def _extra(max_extra: float | None) -> float:
    if max_extra is None:
        return 0.0  # the core's own
    max_extra = _plain(max_extra)
    if isinstance(max_extra, bool) or not isinstance(max_extra, (int, float)):
        raise TypeError(f"max_extra={short(max_extra)} is not a share of time in (0, 100]")
    if not 0 < max_extra <= 100:
        raise ValueError(f"max_extra={short(max_extra)} is not a share of time in (0, 100]")
    return float(max_extra)


def named_bytes(name: str, spec: Any) -> int:
    """The bytes of argument ``name``, see :func:`parse_bytes`.

    Raises:
        ValueError, TypeError: not a size; the text begins with the argument.
    """
    try:
        return parse_bytes(spec)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={short(spec)}: {error}") from None


def of_bytes(size: int, measure: str) -> NativeBudget:
    """A number of bytes as a budget, also 0 and 1, which :func:`parse` reads as positions."""
    return _BYTES, size, 0.0, choice("measure", measure, MEASURES)


def is_position(budget: NativeBudget | None) -> bool:
    """Is it a position between the smallest plan and saving everything?"""
    return budget is not None and budget[0] == _POSITION


def is_bound(budget: NativeBudget | None) -> bool:
    """Does it bound bytes? ``"min"`` and ``"smallest"`` do not."""
    return budget is not None and (budget[0] in BOUNDS or is_position(budget))


def is_share(budget: NativeBudget | None) -> bool:
    """Is it a share of what saving everything takes?"""
    return budget is not None and budget[0] == _SHARE


INFEASIBLE = ("error", "min", "smallest", "warn")
"""What ``on_infeasible`` may be: what to do if no plan meets the budget. ``"min"`` and
``"smallest"`` are the plans of these budgets; ``"warn"`` saves everything."""

_FALLBACKS = {
    "min": "the smallest plan that costs at most 40 % more time is used",
    "smallest": "the smallest plan is used, however slow",
    "warn": "everything is saved, and no budget applies",
}


def fallen_back(error: object, wish: str) -> str:
    """The warning that ``on_infeasible`` asks for instead of the error."""
    return f"{error}. Because of on_infeasible={wish!r}, {_FALLBACKS[wish]}"


def position_of(budget: NativeBudget | None) -> float | None:
    """The position that a budget is; None: it is not a position."""
    return budget[2] if budget is not None and budget[0] == _POSITION else None


def keeps_to_moves(budget: NativeBudget, recomputed: int, host_bytes: int) -> bool:
    """True if a plan keeps to what :func:`with_options` put into a budget.

    Args:
        recomputed: how many values the plan computes again.
        host_bytes: the most that it holds on the host at a time.
    """
    _, _, offload, pinned, _ = budget[2:] if len(budget) == 7 else (*budget[2:], 0, 0, False)
    return not (offload == _ONLY and recomputed) and not (pinned and host_bytes > pinned)


def in_bytes(budget: NativeBudget, limit: int) -> NativeBudget:
    """The budget with a number of bytes instead of its share or position; all else stays."""
    return (_BYTES, limit, 0.0, *budget[3:])


def with_options(
    budget: NativeBudget | None, offload: bool | str, pinned: int | str | None, exact: bool
) -> NativeBudget | None:
    """The budget with what may move to the host: ``False`` (only values whose policy asks for it),
    ``True``, or ``"only"``: nothing runs again. ``pinned``: most bytes the host may hold at a time.
    ``exact``: search again at just this budget.

    Raises:
        ValueError, TypeError: no such offload, not a size, or offload without a budget.
    """
    if not isinstance(offload, bool) and not (isinstance(offload, str) and offload == "only"):
        raise ValueError(f"offload={short(offload)} is not one of False, True, 'only'")
    if not isinstance(exact, bool):
        raise TypeError(f"exact={short(exact)} is neither True nor False")
    most = 0 if pinned is None else named_bytes("pinned", pinned)
    if pinned is not None and most == 0:
        raise ValueError("pinned=0 leaves no room on the host; leave offload out")
    kind = _ONLY if offload == "only" else int(offload)
    if budget is None:
        if kind or exact:
            raise ValueError(f"{'offload' if kind else 'exact'} goes with a budget; give one")
        budget = (_NONE, 0, 0.0, 0)
    if not kind and not most and not exact:
        return budget if budget[0] != _NONE else None
    return (*budget[:4], kind, most, exact)


def pinned_alone(pinned: int | str | None) -> ValueError:
    """The error for a bound on what the host holds where nothing moves there."""
    return ValueError(
        f"pinned={short(pinned)} goes with offload (--offload) or a policy that offloads: nothing "
        "else moves to the host"
    )


def parse_preset(preset: str | None, searched: str | None = None) -> int:
    """Number of a preset; None is ``autograd``, which saves what the backward reads. ``searched``:
    the measure of a budget that stands beside it.

    Raises:
        ValueError: no such preset, or one beside a budget that decides what to save.
    """
    if preset is None:
        return 0
    number = choice("preset", preset, PRESETS)
    if searched not in (None, "saved"):
        raise ValueError(
            f"preset={short(preset)} says what to save without a budget, or what may run again "
            "with measure='saved'; leave it or the budget out"
        )
    return number


def text(n: int | None) -> str:
    """Bytes for people: ``"1.50 MiB"``."""
    if n is None:
        return "none"
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def short_text(n: int) -> str:
    """Bytes for people, to three digits: ``"1.5 MiB"``."""
    size, _, unit = text(n).partition(" ")
    return f"{float(size):.4g} {unit}" if float(size) >= 1000 else f"{float(size):.3g} {unit}"
