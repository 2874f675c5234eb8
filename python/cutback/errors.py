"""The error for a budget that no plan meets: its attributes, and its message."""

from __future__ import annotations

import math
from typing import Any, cast

LONGEST = 199
"""Maximum length of a message, in characters."""


class BudgetError(ValueError):
    """Raised if no plan meets the budget. The attributes give the details, and ``str(error)`` is a
    sentence made from them. Errors can be pickled and copied. An attribute is None if it is unknown
    or does not apply; bytes are counted by ``measure``.

    Attributes:
        reason: the limit that cannot be met. ``"budget"``: no plan that fits was found;
            ``"time"``: every plan takes more than ``max_extra``; ``"constraints"``: no plan meets
            the constraints, under any budget; ``"region"``: the limit of a region; ``"pinned"``:
            the limit on host memory; ``"stopped"``: ``time_limit`` or ``progress`` ended the search
            early; ``"other"``: see the message.
        measure: the quantity that the budget bounds, ``"arena"``, ``"live"``, ``"saved"`` or
            ``"total"``.
        budget_bytes: the budget in bytes; for ``"region"`` the limit of the region.
        share: the budget, if it was given as a share (of ``reference_bytes``).
        position: the budget, if it was given as a position. A position can only fail if nothing may
            be recomputed (``offload="only"``), or if little may move to the host.
        smallest_bytes: the size of the smallest plan found, however slow; a budget of this many
            bytes can be met. For ``"region"``, the least that the region can save; for
            ``"pinned"``, the host memory needed.
        smallest_share: ``smallest_bytes`` as a share of ``reference_bytes``, rounded up to three
            digits; if it is above 1, no share can be met.
        floor_bytes: lower bound on the bytes of plans that run the operations in this order.
        floor_share: ``floor_bytes`` as a share of ``reference_bytes``, rounded down.
        save_all_bytes: the bytes of the plan that saves everything.
        reference_bytes: the bytes that shares refer to; ``save_all_bytes`` except for PyTorch
            models.
        reference: a description of ``reference_bytes``.
        held_bytes: results and gradients, which every plan holds at its end.
        op: name of the operation at the peak of the smallest plan, or, for the measure ``"saved"``,
            name of the operation with the largest saved result.
        location: source line of ``op``.
        floor_op: name of the operation that sets the floor.
        region: name of the region whose limit cannot be kept.
        max_extra: for ``"time"``, the extra time allowed, as a share of the step's.
        least_extra: for ``"time"``, the extra time of the fastest plan.
        pinned_bytes: the limit on host memory, if there was one.
        must_save: True if constraints require some values to be saved.
        batch: the batch size that ``cutback.torch.max_batch`` was planning.
        calls: number of calls of a PyTorch model that share the budget before one backward.
        unplanned_bytes: bytes held by parts of a PyTorch model that run in eager mode.
        is_upper_bound: True if the step may take less than ``smallest_bytes``, because results that
            Python code may hold are counted to the end of the step.
        sliced_bytes: bytes of the step with ``slices=True``, if that meets the budget.
        follows_autograd: True if the plan was for an eager region, where autograd orders the
            backward.

    >>> try:
    ...     plan = cutback.plan(loss, params, x, budget="2GiB")
    ... except cutback.BudgetError as error:
    ...     plan = cutback.plan(loss, params, x, budget=error.smallest_bytes)
    """

    reason: str = "other"
    measure: str | None = None
    budget_bytes: int | None = None
    share: float | None = None
    position: float | None = None
    smallest_bytes: int | None = None
    floor_bytes: int | None = None
    save_all_bytes: int | None = None
    reference_bytes: int | None = None
    reference: str = "saving everything takes"
    held_bytes: int | None = None
    op: str | None = None
    location: str | None = None
    floor_op: str | None = None
    region: str | None = None
    max_extra: float | None = None
    least_extra: float | None = None
    pinned_bytes: int | None = None
    must_save: bool = False
    batch: int | None = None
    calls: int | None = None
    unplanned_bytes: int | None = None
    is_upper_bound: bool = False
    sliced_bytes: int | None = None
    follows_autograd: bool = False

    _smallest_plan = cast("Any", None)
    """The smallest plan, if the search went on to find it; copies lack it."""

    def __init__(self, text: str = "", /, **facts: Any) -> None:
        unknown = facts.keys() - BudgetError.__annotations__.keys()
        if unknown:
            raise TypeError(f"BudgetError has no attribute {', '.join(sorted(unknown))}")
        self.__dict__.update(facts)
        if self.reference_bytes is None:
            self.reference_bytes = self.save_all_bytes
        super().__init__(text or _sentence(self))

    def replace(self, **facts: Any) -> BudgetError:
        """Returns a copy of the error with other attributes, and a message made from them."""
        known = {k: v for k, v in self.__dict__.items() if k in BudgetError.__annotations__}
        text = self.args[0] if self.reason == "other" and "reason" not in facts else ""
        return BudgetError(text, **{**known, **facts})

    @property
    def in_options(self) -> str:
        """The message with options of the command line in place of arguments."""
        if self.batch is not None or self.reason == "other":
            return str(self)
        named = _sentence(self).replace('budget="min"', "--budget min")
        return named.replace("offload=True", "--offload")

    @property
    def smallest_share(self) -> float | None:
        """The smallest share that can be met; if it is above 1, none can."""
        return _share(self.smallest_bytes, self.reference_bytes, up=True)

    @property
    def floor_share(self) -> float | None:
        """The share below which there is no plan with this order of operations."""
        return _share(self.floor_bytes, self.reference_bytes, up=False)


def rounded_share(size: int, whole: int, *, up: bool = True) -> float:
    """Returns ``size / whole`` rounded to three digits, so that a budget of this share is at least
    ``size`` bytes (at most, if not ``up``)."""
    if not 0 < size < whole:
        return size / whole if whole else float(size > 0)
    scale: int = 10 ** (3 - math.ceil(math.log10(size / whole)))
    share = size * scale // whole  # exact, because scale is an integer
    if up and int(share / scale * whole) < size:  # the planner's formula
        share += 1
    return share / scale


def _share(size: int | None, whole: int | None, *, up: bool) -> float | None:
    return None if size is None or not whole else rounded_share(size, whole, up=up)


# ---- the sentence --------------------------------------------------------------------------------


def _sentence(e: BudgetError) -> str:
    if e.reason == "budget":
        return _of_budget(e)
    if e.reason == "time":
        return _of_time(e)
    if e.reason == "constraints":
        return _of_constraints(e)
    if e.reason == "region":
        limit, least = _sizes((e.budget_bytes, 0), (e.smallest_bytes, 1))
        tail = (
            f' may save {limit}, but saves at least {least}, also with budget="min": raise its '
            "limit or relax MUST_SAVE"
        )
        return f"region {_short(e.region or '', LONGEST - len(tail) - 7)}{tail}"
    if e.reason == "pinned":
        needed, limit = _sizes((e.smallest_bytes, 1), (e.pinned_bytes, 0))
        return (
            f"values marked MUST_OFFLOAD need {needed} of host memory at one time, but the limit "
            f'is {limit}, also with budget="min": raise pinned or relax MUST_OFFLOAD'
        )
    if e.reason == "stopped":
        if e.budget_bytes is None:
            return (
                "the search was stopped before it had a plan: allow it more time, also for "
                'budget="min"'
            )
        asked = _asked(e, _sizes((e.reference_bytes if e.share else e.budget_bytes, 0))[0])
        return (
            f"the search was stopped before a plan fitted {asked}: allow it more time, raise the "
            'budget or pass budget="min"'
        )
    return 'no plan meets the budget: pass budget="min"'


def _of_budget(e: BudgetError) -> str:
    """Returns the message for ``"budget"``: the most important facts first; the operation and the
    floor only if there is room for them."""
    least, floor = e.smallest_share or math.inf, e.floor_share or 0.0
    by_share = e.share is not None and bool(e.reference_bytes)
    in_share = by_share and least <= 1
    limit, smallest, beside, bound = _sizes(
        (e.reference_bytes if by_share else e.budget_bytes, 0),
        (e.smallest_bytes, 1),
        (e.unplanned_bytes, 0),
        (None if by_share else e.floor_bytes, -1),
    )
    if in_share:
        needed = _percent(least) if least == 1 else f"{_percent(least)} ({smallest})"
        tells_floor = (e.share or 0.0) < floor < least
        bound = _percent(floor)
    else:
        needed = smallest
        lower = e.floor_bytes or 0
        tells_floor = not by_share and (e.budget_bytes or 0) < lower < (e.smallest_bytes or 0)
    place = "" if e.position is None else f"position {e.position:g}, "
    head = f"no plan fits {_asked(e, limit)} ({place}{e.measure})"
    if e.batch is not None:
        head = f"batch {e.batch}: {head}"
    elif e.calls is not None:
        head = f"{e.calls} calls before one backward: {head}"
    if e.smallest_bytes is not None:
        most = "at most " if e.is_upper_bound else ""
        head += f": the smallest found takes {most}{needed}"
    tail = _way_out(e, LONGEST - len(head))
    if e.unplanned_bytes is not None and beside not in (limit, smallest):
        head += _fitting(head, tail, f", and parts left to eager mode hold {beside} more")
    alone = _held_alone(e)
    said = _fitting(head, tail, alone)
    if e.smallest_bytes is not None:
        head += _where(e, LONGEST - len(head) - len(said) - len(tail))
    head += said
    if tells_floor and not alone:
        head += _fitting(
            head, tail, f"; no plan in this order of operations takes less than {bound}"
        )
    return f"{head}{tail}"


def _held_alone(e: BudgetError) -> str:
    """Says that no plan can meet the budget, because of what every plan holds at its end."""
    held = e.held_bytes or 0
    if e.measure not in ("arena", "live") or held <= (e.budget_bytes or 0):
        return ""
    return f"; results and gradients alone take {_amount(e, held, up=False)}"


def _amount(e: BudgetError, size: int, *, up: bool = True) -> str:
    """Returns ``size`` as a share if the budget is one, else in bytes."""
    if e.share is not None and e.reference_bytes:
        return _percent(rounded_share(size, e.reference_bytes, up=up))
    return _sizes((size, 1 if up else -1))[0]


def _fitting(head: str, tail: str, text: str) -> str:
    return text if len(head) + len(text) + len(tail) <= LONGEST else ""


def _asked(e: BudgetError, limit: str) -> str:
    """Returns the budget as the user gave it. ``limit``: its bytes, or those that a share refers
    to."""
    if e.share is None or not e.reference_bytes:
        return "one byte" if e.budget_bytes == 1 else limit
    asked = _percent(e.share)
    if e.smallest_share is not None and asked == _percent(e.smallest_share):
        asked = repr(e.share)
    return f"{asked} of the {limit} that {e.reference}"


def _way_out(e: BudgetError, room: int) -> str:
    if e.follows_autograd:
        return '. Checkpoint smaller regions or pass budget="min"'
    if e.batch is not None:  # max_batch does not accept "min", but compile does
        return '. Raise the budget or compile this batch with budget="min"'
    if e.sliced_bytes is not None:
        return f'. Pass slices=True, which takes {_amount(e, e.sliced_bytes)}, or budget="min"'
    pinned = " or pinned" if e.pinned_bytes is not None else ""
    if e.position is not None:
        return f'. Raise the position{pinned}, or pass offload=True or budget="min"'
    if e.budget_bytes == 1 and e.share is None:
        return '. Pass the number 1 to save everything, or budget="min"'
    relaxed = ", relax MUST_SAVE" if e.must_save else ""
    full = f'. Raise the budget{pinned}{relaxed} or pass budget="min"'
    return full if len(full) <= room else '. Raise the budget or pass budget="min"'


def _of_time(e: BudgetError) -> str:
    allowed, least = (f"{100 * (x or 0.0):.3g}%" for x in (e.max_extra, e.least_extra))
    if e.least_extra is not None and least != allowed:
        found = f"the fastest takes {least}"
    elif e.smallest_bytes is not None:
        found = (
            f"constraints rerun or move values; with more time, {_sizes((e.smallest_bytes, 1))[0]}"
        )
        found += f" ({e.measure}) is possible"
    else:
        found = "constraints rerun or move values"
    return (
        f'no plan takes at most {allowed} more time: {found}. Raise max_extra, pass budget="min" '
        "without it, or relax MUST_RECOMPUTE"
    )


def _of_constraints(e: BudgetError) -> str:
    if e.op is None:
        return (
            'no plan keeps all constraints, not even for budget="min": relax MUST_RECOMPUTE or '
            "MUST_OFFLOAD, or raise the limit of a region"
        )
    return (
        f'no plan keeps all constraints, not even for budget="min": {_short(e.op, 80)} can be '
        "neither saved nor recomputed"
    )


def _where(e: BudgetError, room: int) -> str:
    """Returns the name and source line of the operation, as far as they fit."""
    if e.op is None:
        return ""
    line = e.location or ""
    name = f", at {e.op}"
    full = [f"{name} ({place})" for place in (line, line.rpartition("/")[2]) if place]
    short = f", at {_short(e.op, room - 5)}" if room > 20 else ""
    return next((text for text in (*full, name) if len(text) <= room), short)


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 1e-4:  # which "g" writes with an exponent
        digits = 3 - math.floor(math.log10(percent))
        return f"{percent:.{digits}f}".rstrip("0") + "%"
    return f"{percent:.6g}%"


def _sizes(*wanted: tuple[int | None, int]) -> list[str]:
    """Formats sizes such as ``"1.50 MiB"``. Each is given as bytes and a rounding (1: up, -1: down,
    0: nearest). If two different sizes would look equal, all are given in exact bytes."""
    texts = ["" if size is None else _size(size, rounding) for size, rounding in wanted]
    shown = {(text, size) for text, (size, _) in zip(texts, wanted, strict=True) if text}
    if len({text for text, _ in shown}) < len(shown):
        return ["" if size is None else f"{size} bytes" for size, _ in wanted]
    return texts


def _size(size: int, rounding: int) -> str:
    unit = 1
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 * unit or name == "TiB":
            break
        unit *= 1024
    if unit == 1:
        return f"{size} B"
    parts = (100 * size + (0, unit // 2, unit - 1)[rounding + 1]) // unit
    return f"{parts // 100}.{parts % 100:02} {name}"
