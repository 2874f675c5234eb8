"""Memory that steps run in, a bound on it, and who holds what.

A compiled program needs an arena while it runs, and nothing of it afterwards. So all programs of a
step run in one block, as large as the largest of them needs, and steps that are told to share one:

>>> memory = cutback.Memory("10GiB")
>>> train = cutback.compile(loss, budget=0.5, optimizer=optimizer, memory=memory)
>>> evaluate = cutback.compile(metrics, argnums=None, memory=memory)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from .. import _native, budgets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..optim import Optimizer


LEAST = 1 << 16  # bytes of results that are kept and bounded: CB_KEPT_LEAST


class _Unset:
    """The default of an argument that may be None."""


_UNSET = _Unset()


class Held(NamedTuple):
    """Bytes that a memory holds, by who holds them."""

    limit: int | None
    """The bound, or None."""
    arenas: dict[str, int]
    """Blocks that steps run in, by the names of the steps."""
    results: int
    """Results and gradients that the program still has, of arrays of 64 KiB and more."""
    kept: int
    """Memory of results that were dropped, for the next ones of their size. Freed where it is
    needed for something else."""
    states: dict[str, int]
    """States of optimizers, by their classes."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.arenas.values()) + self.results + self.kept + sum(self.states.values())

    def describe(self) -> str:
        """``"arena of step `loss` 6.00 GiB, results 2.00 GiB, states of AdamW 3.00 GiB"``."""
        rows = [(f"arena of {name}", size) for name, size in self.arenas.items()]
        rows += [("results", self.results), ("kept for results", self.kept)]
        rows += [(f"states of {name}", size) for name, size in self.states.items()]
        said = [f"{name} {budgets.text(size)}" for name, size in rows if size]
        return ", ".join(said) or "nothing"

    def __str__(self) -> str:
        bound = "" if self.limit is None else f" of at most {budgets.text(self.limit)}"
        return f"{budgets.text(self.total)}{bound}: {self.describe()}"


class MemoryLimitError(MemoryError):
    """A bound on memory would be exceeded. Nothing has changed: parameters, states and results are
    as they were, and so are the step's programs.

    It can be pickled and copied.

    Attributes:
        limit: the bound, in bytes.
        wanted: bytes that were asked for on top of what is held.
        held: a :class:`cutback.run.memory.Held`: who holds what.
    """

    def __init__(self, what: str, wanted: int, held: Held) -> None:
        self.limit = held.limit
        self.wanted = wanted
        self.held = held
        bound = budgets.text(held.limit)
        asked = f"{what} would take {budgets.text(wanted)} more" if wanted else what
        super().__init__(
            f"{asked}, and the bound on memory is {bound}; held now: {held.describe()}. Lower the "
            "budget of a step, drop results that are not needed, clear() a step, or raise the bound"
        )
        self._arguments = what, wanted, held

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments, self.__dict__


def _size(array: Any) -> int:
    return int(math.prod(array.shape) * np.dtype(array.dtype).itemsize)


def _state_size(optimizer: Optimizer) -> int:
    rows = optimizer._state.arrays.values()
    return sum(_size(array) for row in rows for array in row if array is not None)


class _Weak:
    """Objects that are alive, in the order in which they were added. Threads may add and look at
    once, and an object may die meanwhile."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}

    def add(self, item: object) -> None:
        key = id(item)
        if key not in self._refs:
            self._refs[key] = weakref.ref(item, lambda _: self._refs.pop(key, None))

    def __iter__(self) -> Iterator[Any]:
        alive = (ref() for ref in list(self._refs.values()))
        return iter([item for item in alive if item is not None])


class Place:
    """What a step has of a memory: the block that its programs run in, and its name for errors."""

    def __init__(self, memory: Memory, name: str, native: _native.RunMemory) -> None:
        self.memory = memory
        self.name = name
        self.native = native
        self.optimizers = _Weak()

    @contextmanager
    def making_states(
        self, optimizer: Optimizer, names: Sequence[str], params: Sequence[Any], arena: int
    ) -> Iterator[None]:
        """Around what makes the states of an optimizer for these parameters, before a run whose
        arena takes ``arena`` bytes.

        Raises:
            MemoryLimitError: there is no room for both, so no state is made.
        """
        memory = self.memory
        self.optimizers.add(optimizer)
        if memory.limit is None:
            yield
            return
        more = max(optimizer.state_bytes(names, params) - _state_size(optimizer), 0)
        name = f"the states of {type(optimizer).__name__}"
        growth = max(arena - self.native.bytes, 0)
        if more > 0 and growth > 0:
            with memory._making(name, more, self.native):
                pass  # so that the error names the states alone if these are too much
            more, name = more + growth, f"{name} and the arena of {self.name}"
        with memory._making(name, more, self.native):
            yield

    def admit_results(self, sizes: Iterable[int]) -> None:
        """Before results on a GPU are made.

        Raises:
            MemoryLimitError: there is no room for them.
        """
        if self.memory.limit is not None:
            with self.memory._making(f"results of {self.name}", sum(sizes), self.native):
                pass


class Memory:
    """Memory of its own for steps that are compiled with ``memory=``: they run one after another in
    one block, which is as large as the largest of them needs.

    Between calls the block is scratch, so sharing it changes no result. A call allocates only if it
    is the first or the largest so far. Threads that run steps of one memory at once take turns.

    Args:
        limit: most bytes (``10 * 2**30``, ``"10GiB"``) of the block, the results that the program
            still has, and the states of the optimizers, together. None: no bound.

    Example:
        >>> memory = cutback.Memory("10GiB")
        >>> train = cutback.compile(loss, optimizer=cutback.optim.AdamW(), memory=memory)
        >>> print(memory.held())

    Raises:
        ValueError, TypeError: not a size.
    """

    _has_own_results = True

    def __init__(self, limit: int | str | None = None) -> None:
        self._limit = None if limit is None else budgets.parse_bytes(limit)
        self._places = _Weak()
        self._pending: dict[object, int] = {}  # bytes that are about to be made
        self._native = self._new_block(None, own=self._has_own_results)
        self._apply()

    # ---- blocks ----------------------------------------------------------------------------------

    def _new_block(self, like: _native.RunMemory | None, own: bool) -> _native.RunMemory:
        """A block that asks this memory before it grows. It refers to it weakly, since blocks are
        to be freed with the last step, not when Python next looks for cycles."""
        this = weakref.ref(self)

        def admit(block: _native.RunMemory, more: int) -> None:
            memory = this()
            if memory is not None:
                memory._admit_block(block, more)

        def refused(block: _native.RunMemory, sizes: list[int]) -> None:
            memory = this()
            if memory is not None:
                memory._admit_results(block, sizes)

        return _native.RunMemory(like, admit, refused, own)

    def place(self, name: str) -> Place:
        """Room for a step of this name."""
        return self._add(Place(self, name, self._native))

    def _add(self, place: Place) -> Place:
        self._places.add(place)
        return place

    # ---- who holds what --------------------------------------------------------------------------

    def held(self) -> Held:
        """Who holds what now. ``print`` it."""
        blocks: dict[int, tuple[_native.RunMemory, list[str]]] = {}
        states: dict[str, int] = {}
        seen = set()
        for place in self._places:
            names = blocks.setdefault(id(place.native), (place.native, []))[1]
            if place.name not in names:
                names.append(place.name)
            for optimizer in place.optimizers:
                if id(optimizer) not in seen:
                    seen.add(id(optimizer))
                    name = type(optimizer).__name__
                    states[name] = states.get(name, 0) + _state_size(optimizer)
        arenas: dict[str, int] = {}
        for native, names in blocks.values():
            name = " and ".join(names)
            arenas[name] = arenas.get(name, 0) + native.bytes
        in_use, kept = self._results()
        return Held(self._limit, arenas, in_use, kept, states)

    def _results(self) -> tuple[int, int]:
        """Bytes of results in use, and kept."""
        found = self._native.results()
        return found["in_use"], found["kept"]

    def _release_results(self) -> int:
        return self._native.release_results()

    # ---- the bound -------------------------------------------------------------------------------

    @property
    def limit(self) -> int | None:
        """The bound in bytes, or None."""
        return self._limit

    def bound(self, limit: int | str | None) -> Bound:
        """Sets the bound, or removes it with None. In a ``with`` statement the bound before comes
        back at its end, even if more than that is still in use then.

        Raises:
            MemoryLimitError: more than that is held already; the bound stays as it was.
            ValueError, TypeError: not a size.
        """
        new = None if limit is None else budgets.parse_bytes(limit)
        before, self._limit = self._limit, new
        try:
            self._check("the bound cannot be set: more is held than that", 0)
        except BaseException:
            self._limit = before
            raise
        finally:
            self._apply()
        return Bound(self, before)

    def _blocks(self) -> list[_native.RunMemory]:
        found: dict[int, _native.RunMemory] = {}
        for place in self._places:
            found[id(place.native)] = place.native
        return list(found.values())

    def _excess(self) -> int:
        """Bytes above the bound, with what is about to be made."""
        if self._limit is None:
            return 0
        return self.held().total + sum(self._pending.values()) - self._limit

    def _make_room(self, but: _native.RunMemory | None) -> bool:
        """Gives back what is held for later until the bound is kept: kept results, then blocks that
        no step is running in, which the next run allocates again. ``but``: not this one. Returns
        whether it is kept."""
        if self._excess() > 0:
            self._release_results()
        for block in self._blocks():
            if self._excess() > 0 and block is not but:
                block.release()
        return self._excess() <= 0

    def _check(self, what: str, more: int, but: _native.RunMemory | None = None) -> None:
        """Raises an error unless there is room, or can be made, for ``more`` pending bytes."""
        if not self._make_room(but):
            raise MemoryLimitError(what, more, self.held())

    def _apply(self) -> None:
        """Tells the memory of results what is left for it."""
        left = None
        if self._limit is not None:
            held = self.held()
            others = held.total - held.results - held.kept + sum(self._pending.values())
            left = max(self._limit - others, 0)
        self._native.limit_results(left)

    @contextmanager
    def _making(self, what: str, more: int, but: _native.RunMemory | None = None) -> Iterator[None]:
        """A context in which ``more`` bytes are made. ``but``: a block that is not released."""
        key = object()
        self._pending[key] = more
        try:
            self._check(what, more, but)
            yield
        finally:
            self._pending.pop(key, None)
            self._apply()

    def _admit_block(self, block: _native.RunMemory, more: int) -> None:
        """A block is about to grow."""
        if self._limit is None:
            return
        block.reserve(more)  # which counts as its bytes until the run ends
        if not self._make_room(block):
            block.reserve(0)
            names = [place.name for place in self._places if place.native is block]
            what = f"the arena of {' and '.join(dict.fromkeys(names))}"
            raise MemoryLimitError(what, more, self.held())
        self._apply()

    def _admit_results(self, block: _native.RunMemory, sizes: Iterable[int]) -> None:
        """The results of a step that runs in this block got no memory, because of the bound or
        because the system has none. Returns if it is worth another try."""
        if self._limit is None:
            return
        with self._making("the results of a step", sum(n for n in sizes if n >= LEAST), block):
            pass

    # ---- giving back -----------------------------------------------------------------------------

    def release(self) -> int:
        """Gives back what is kept for later: blocks that no step is running in, and the memory of
        results that were dropped. The next call allocates again. Returns how many bytes."""
        return sum(block.release() for block in self._blocks()) + self._release_results()

    def __repr__(self) -> str:
        return f"<cutback.Memory, {self.held()}>"


class Bound:
    """A bound that was set; as a context manager it brings back the one before at the end, and
    frees what is held for later if that exceeds it."""

    def __init__(self, memory: Memory, before: int | None) -> None:
        self._memory = memory
        self._before = before

    def __enter__(self) -> Memory:
        return self._memory

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._memory._limit = self._before
        self._memory._make_room(None)
        self._memory._apply()

    def __repr__(self) -> str:
        return f"<bound on memory: {self._memory.held()}>"


class _Default(Memory):
    """The memory of steps that are compiled without ``memory=``: each has a block of its own."""

    _has_own_results = False

    def place(self, name: str) -> Place:
        return self._add(Place(self, name, self._new_block(self._native, own=False)))

    def _results(self) -> tuple[int, int]:
        in_use, kept = super()._results()
        if _native.has_cuda():
            there = _native.device_stats(False)
            in_use, kept = in_use + there["in_use"], kept + there["kept"]
        return in_use, kept

    def _release_results(self) -> int:
        released = super()._release_results()
        return released + (_native.device_release() if _native.has_cuda() else 0)


_default: Memory = _Default()


def place_in(memory: Memory | Place | None, name: str) -> Place:
    """Where a step of this name runs: in its own block of the default memory, in the block of a
    memory of the caller's, or in a place that it has already.

    Raises:
        TypeError: something else.
    """
    if memory is None:
        return _default.place(name)
    if isinstance(memory, Place):
        return memory
    if isinstance(memory, Memory):
        return memory.place(name)
    raise TypeError(f"memory={budgets.short(memory)} is not a cutback.Memory")


@overload
def memory() -> Held: ...
@overload
def memory(limit: int | str | None) -> Bound: ...
def memory(limit: int | str | _Unset | None = _UNSET) -> Held | Bound:
    """Without an argument: who holds what, of all steps that were compiled without ``memory=``.

    With one, bounds what they hold together: the blocks that they run in, the results that the
    program still has, and the states of their optimizers. It stays until the next call; in a
    ``with`` statement until its end. None removes it.

    What would exceed the bound takes first what is held for later: memory that is kept for results
    to come, and blocks that no step is running in. If that is not enough, it is refused before
    anything changes, with a :class:`cutback.MemoryLimitError` that says who holds what. Results of
    fewer than 64 KiB do not count. A bound does not make plans smaller: give each step a budget.
    Steps that run in turn under a bound for one of them should share a :class:`cutback.Memory`,
    which saves allocating the block each time.

    Example:
        >>> cutback.memory("10GiB")  # doctest: +SKIP
        >>> print(cutback.memory())  # doctest: +SKIP
        8.50 GiB of at most 10.00 GiB: arena of step `loss` 5.50 GiB, states of AdamW 3.00 GiB

    Raises:
        MemoryLimitError: more than that is held already; the bound stays as it was.
        ValueError, TypeError: not a size.
    """
    return _default.held() if isinstance(limit, _Unset) else _default.bound(limit)


def release_memory() -> int:
    """Gives the system what is kept for later: the memory of results and gradients to come, and
    the blocks that steps run in, but for those that a step is running in now. How many bytes.

    What one step hands out and lets go is written again by the next: never more than what was
    lately in use at once. A program that makes no more arrays may ask for it. Steps that were
    compiled with ``memory=`` are left alone: see :meth:`Memory.release`.
    """
    return _default.release()
