"""Agreement between the processes of a group on a plan.

A plan may repeat collectives only if every process that takes part in them repeats them at the same
point. Each process plans for itself; then all compare a hash of their plans, once for each graph
that is compiled. They compare through the store that the process group was set up with, because a
process that compiles nothing would confuse a collective with those of the model. If a process does
not answer in time, or has another plan, all fall back to plans without repeated collectives, also
for later graphs over this group. The first process that knows the verdict writes it, and all follow
what is written, so they never disagree on it.

If a graph is compiled while a plan that repeats collectives is in force, its plan replaces that one
in this process only, unless the others compile a graph, too. So this plan is compared as well, and
it is an error if the others do not answer: the step would wait forever.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed

WAIT_S = float(os.environ.get("CUTBACK_AGREEMENT_S", "300"))
"""Seconds that a process waits for the plans of the other processes."""

NOTICE_S = {False: 60.0, True: 10.0}
"""Seconds after which a process prints which others it is waiting for. The key says whether a plan
that repeats collectives is in force: then the others have probably compiled nothing, and wait for
this process in a collective."""

_SAME, _DIFFERENT, _LATE = "same", "different", "late"


class PlansDifferError(RuntimeError):
    """Raised if other processes follow a plan that repeats collectives and this one cannot.

    >>> issubclass(cutback.torch.PlansDifferError, RuntimeError)
    True
    """


@dataclass
class _Group:
    """State of one process group in this process."""

    round: int = 0
    closed: bool = False
    """True if later plans must not repeat collectives over it."""
    repeats: bool = False
    """True if a plan that repeats collectives over it is in force."""


_groups: weakref.WeakKeyDictionary[distributed.Store, _Group] = weakref.WeakKeyDictionary()
"""Maps a group's store, which lives as long as the group, to the group's state."""


def _known(name: str) -> tuple[distributed.ProcessGroup, distributed.Store, _Group] | None:
    """Returns the state of a group, or None if the group or its store does not exist."""
    c10d = distributed.distributed_c10d
    try:
        group = c10d._resolve_process_group(name)
        store = c10d._get_process_group_store(group)
    except (AttributeError, KeyError, LookupError, RuntimeError, ValueError):
        return None
    return None if store is None else (group, store, _groups.setdefault(store, _Group()))


def may_repeat(names: Sequence[str]) -> bool:
    """True if a graph with collectives over these groups may still have a plan that repeats
    them."""
    known = [_known(name) for name in names]
    return bool(known) and all(k is not None and not k[2].closed for k in known)


def in_force(names: Sequence[str]) -> bool:
    """True if a plan that repeats collectives over one of the groups is in force."""
    return any(k is not None and k[2].repeats for k in map(_known, names))


def agree(names: Sequence[str], mark: str, repeats: bool) -> bool:
    """Compares a plan with those of all processes of the groups. All of them must call it.

    Args:
        names: names of the groups.
        mark: hash of the plan, which must be the same in all processes.
        repeats: True if the plan repeats collectives.

    Returns:
        True if all plans are the same.

    Raises:
        PlansDifferError: a plan that repeats collectives is in force, and a process did not answer.
    """
    found = [k for k in map(_known, names) if k is not None]
    was_in_force = any(state.repeats for _, _, state in found)
    verdict = _SAME
    try:
        for _ in found:  # a "no" needs one round per mesh dimension to reach all processes
            verdict = _exchange(found, f"{mark} {verdict}", verdict)
    except RuntimeError:  # stores of fake process groups keep nothing
        verdict = _LATE
    if verdict == _LATE and was_in_force:
        raise PlansDifferError(
            "this process compiled a graph with collectives, and the other processes of the group "
            f"did not within {WAIT_S:g} s. They follow a plan that runs collectives again, so the "
            "step would wait forever. Give all processes inputs of the same sizes, mark changing "
            "sizes with torch._dynamo.mark_dynamic, or pass collective_again=False"
        )
    for _, _, state in found:
        state.closed |= verdict != _SAME
        state.repeats |= repeats and verdict == _SAME
    return verdict == _SAME


def _exchange(
    groups: Sequence[tuple[distributed.ProcessGroup, distributed.Store, _Group]],
    word: str,
    verdict: str,
) -> str:
    """Runs one round: each process writes its word to the store of each group, then reads all
    words."""
    for group, store, state in groups:
        state.round += 1
        store.set(f"{_key(state)}/{group.rank()}", word)
    for group, store, state in groups:
        found = _compare(store, _key(state), group.size(), NOTICE_S[state.repeats])
        verdict = max(verdict, found, key=(_SAME, _DIFFERENT, _LATE).index)
    return verdict


def _key(state: _Group) -> str:
    return f"cutback/plan/{state.round}"


def _wait(store: distributed.Store, keys: list[str], notice_s: float) -> None:
    """Waits until all processes have written their words; after a while prints which are missing.

    Raises:
        RuntimeError: a process did not answer in time.
    """
    left = WAIT_S
    if notice_s < left:
        left -= notice_s
        try:
            store.wait(keys, timedelta(seconds=notice_s))
            return
        except RuntimeError:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            if missing:
                warnings.warn(
                    "this process has compiled a graph with collectives and compares its plan "
                    f"with those of the other processes of the group. After {notice_s:g} s there "
                    f"is no answer from rank {', '.join(missing)} of {len(keys)}; it waits "
                    f"{left:g} s longer (CUTBACK_AGREEMENT_S). If only this process has inputs "
                    "of another size, the others wait for it in a collective: pass "
                    "collective_again=False, or mark changing sizes with "
                    "torch._dynamo.mark_dynamic",
                    stacklevel=2,
                )
    store.wait(keys, timedelta(seconds=left))


def _compare(store: distributed.Store, key: str, size: int, notice_s: float) -> str:
    """Returns the verdict on one round of one group."""
    keys = [f"{key}/{rank}" for rank in range(size)]
    try:
        _wait(store, keys, notice_s)
        words = {store.get(k) for k in keys}
        mine = _SAME if len(words) == 1 else _DIFFERENT
    except RuntimeError:
        mine = _LATE
    said: bytes = store.compare_set(f"{key}/verdict", "", mine)
    return said.decode()
