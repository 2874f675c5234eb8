"""The memory that steps run in: blocks that they share, a bound, and a report of what is held.

A compiled program needs its arena only while it runs. So all programs of a step run in one block,
which is as large as the largest of them needs, and several steps can share a block:

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


LEAST = 1 << 16  # bytes; smaller results are neither kept nor counted (CB_KEPT_LEAST)


class _Unset:
    """The default of an argument that may be None."""


_UNSET = _Unset()


class Held(NamedTuple):
    """Bytes that a memory holds, by their use."""

    limit: int | None
    """The bound, or None."""
    arenas: dict[str, int]
    """Bytes of the blocks that steps run in, by the names of the steps."""
    results: int
    """Bytes of results and gradients that the program still holds; arrays of fewer than 64 KiB do
    not count."""
    kept: int
    """Bytes of freed results, kept for new results of the same size. They are returned to the
    system if something else needs memory."""
    states: dict[str, int]
    """Bytes of the optimizers' states, by the names of their classes."""

    @property
    def total(self) -> int:
        """All bytes held."""
        return sum(self.arenas.values()) + self.results + self.kept + sum(self.states.values())

    def describe(self) -> str:
        """Returns a text such as ``"arena of step `loss` 6.00 GiB, results 2.00 GiB, states of
        AdamW 3.00 GiB"``."""
        rows = [(f"arena of {name}", size) for name, size in self.arenas.items()]
        rows += [("results", self.results), ("kept for results", self.kept)]
        rows += [(f"states of {name}", size) for name, size in self.states.items()]
        said = [f"{name} {budgets.text(size)}" for name, size in rows if size]
        return ", ".join(said) or "nothing"

    def __str__(self) -> str:
        bound = "" if self.limit is None else f" of at most {budgets.text(self.limit)}"
        return f"{budgets.text(self.total)}{bound}: {self.describe()}"


class MemoryLimitError(MemoryError):
    """Raised if a bound on memory would be exceeded. Nothing has changed then: neither parameters,
    states nor results, nor the step's programs.

    Errors can be pickled and copied.

    Attributes:
        limit: the bound, in bytes.
        wanted: bytes that were requested on top of those held.
        held: a :class:`cutback.run.memory.Held`: the bytes held by their use.

    >>> small = cutback.Memory("1KiB")
    >>> bounded = cutback.value_and_grad(loss, memory=small)
    >>> try:
    ...     bounded(params, x, y)
    ... except cutback.MemoryLimitError:
    ...     small.bound("1GiB")
    ...     value, grads = bounded(params, x, y)
    """

    def __init__(self, what: str, wanted: int, held: Held) -> None:
        self.limit = held.limit
        self.wanted = wanted
        self.held = held
        bound = budgets.text(held.limit)
        asked = f"{what} would take {budgets.text(wanted)} more" if wanted else what
        super().__init__(
            f"{asked}, but the bound on memory is {bound}; held now: {held.describe()}. "
            f"{_ways_out(what, held)}"
        )
        self._arguments = what, wanted, held

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments, self.__dict__


def _ways_out(what: str, held: Held) -> str:
    """Lists what the user can do if ``what`` exceeds the bound. Blocks of idle steps have already
    been released then."""
    ways = ["Raise the bound"]
    if "arena" in what or any(held.arenas.values()):
        ways.append("lower the budget of a step")
    if held.results:
        ways.append("delete results that are not needed")
    if any(held.states.values()):
        ways.append("delete optimizers that are not needed")
    *first, last = ways
    return f"{', '.join(first)} or {last}" if first else last


def _size(array: Any) -> int:
    return int(math.prod(array.shape) * np.dtype(array.dtype).itemsize)


def _state_size(optimizer: Optimizer) -> int:
    rows = optimizer._state.arrays.values()
    return sum(_size(array) for row in rows for array in row if array is not None)


class _Weak:
    """Weak references to objects, in the order in which they were added. Threads may add and
    iterate at the same time, and objects may be freed meanwhile."""

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
    """A step's part of a memory: the block that its programs run in, and the step's name for
    errors."""

    def __init__(self, memory: Memory, name: str, native: _native.RunMemory) -> None:
        self.memory = memory
        self.name = name
        self.native = native
        self.optimizers = _Weak()

    @contextmanager
    def making_states(
        self, optimizer: Optimizer, names: Sequence[str], params: Sequence[Any], arena: int
    ) -> Iterator[None]:
        """Returns a context for making the states of an optimizer for these parameters, before a
        run whose arena takes ``arena`` bytes.

        Raises:
            MemoryLimitError: if the states and the arena exceed the bound; no state is made.
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
                pass  # if the states alone are too large, the error names only them
            more, name = more + growth, f"{name} and the arena of {self.name}"
        with memory._making(name, more, self.native):
            yield

    def admit_results(self, sizes: Iterable[int]) -> None:
        """Checks the bound before results on a GPU are made.

        Raises:
            MemoryLimitError: if the results exceed the bound.
        """
        if self.memory.limit is not None:
            with self.memory._making(f"results of {self.name}", sum(sizes), self.native):
                pass


class Memory:
    """Memory shared by the steps that are compiled with ``memory=``. They run one after another in
    one block, which is as large as the largest of them needs.

    The block holds no data between calls, so sharing it changes no result. A call allocates only if
    it needs more than all calls before. Threads that run steps of one memory wait for each other.

    Args:
        limit: maximum bytes (``10 * 2**30``, ``"10GiB"``) of the block, the results that the
            program still holds, and the optimizer states, together. None: no bound.

    Example:
        >>> memory = cutback.Memory("10GiB")
        >>> train = cutback.compile(loss, optimizer=cutback.optim.AdamW(), memory=memory)
        >>> print(memory.held())

    Raises:
        ValueError, TypeError: if ``limit`` is not a size.
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
        """Makes a block that asks this memory before it grows. Its reference to the memory is weak,
        so that the block is freed with its last step and not by the garbage collector."""
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
        """Returns a new place for a step of this name."""
        return self._add(Place(self, name, self._native))

    def _add(self, place: Place) -> Place:
        self._places.add(place)
        return place

    # ---- who holds what --------------------------------------------------------------------------

    def held(self) -> Held:
        """Returns the bytes held now, by their use; print the result for a summary."""
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
        """Returns the bytes of results in use, and the bytes kept for new results."""
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
        """Sets the bound in bytes, or removes it if ``limit`` is None. Returns an object for a
        ``with`` statement, which restores the previous bound at its end, even if more is in use
        then.

        Raises:
            MemoryLimitError: if more than ``limit`` is held already; the bound is unchanged.
            ValueError, TypeError: if ``limit`` is not a size.
        """
        new = None if limit is None else budgets.parse_bytes(limit)
        before, self._limit = self._limit, new
        try:
            self._check("the bound cannot be set, because more is held", 0)
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
        """Returns the bytes above the bound, counting those about to be allocated."""
        if self._limit is None:
            return 0
        return self.held().total + sum(self._pending.values()) - self._limit

    def _make_room(self, but: _native.RunMemory | None) -> bool:
        """Frees memory that is kept for later until the bound is met: memory of freed results, then
        blocks that no step is running in, except ``but``. The next run allocates them again.
        Returns True if the bound is met."""
        if self._excess() > 0:
            self._release_results()
        for block in self._blocks():
            if self._excess() > 0 and block is not but:
                block.release()
        return self._excess() <= 0

    def _check(self, what: str, more: int, but: _native.RunMemory | None = None) -> None:
        """Raises an error if the bound is exceeded, counting pending bytes, and cannot be met by
        freeing memory. ``what`` and ``more`` (bytes) are for the message."""
        if not self._make_room(but):
            raise MemoryLimitError(what, more, self.held())

    def _apply(self) -> None:
        """Sets the limit on the memory of results to the bytes that the bound leaves for it."""
        left = None
        if self._limit is not None:
            held = self.held()
            others = held.total - held.results - held.kept + sum(self._pending.values())
            left = max(self._limit - others, 0)
        self._native.limit_results(left)

    @contextmanager
    def _making(self, what: str, more: int, but: _native.RunMemory | None = None) -> Iterator[None]:
        """Returns a context in which ``more`` bytes are allocated. The block ``but`` is not
        released."""
        key = object()
        self._pending[key] = more
        try:
            self._check(what, more, but)
            yield
        finally:
            self._pending.pop(key, None)
            self._apply()

    def _admit_block(self, block: _native.RunMemory, more: int) -> None:
        """Checks the bound before a block grows by ``more`` bytes."""
        if self._limit is None:
            return
        block.reserve(more)  # counts as the block's bytes until the run ends
        if not self._make_room(block):
            block.reserve(0)
            names = [place.name for place in self._places if place.native is block]
            what = f"the arena of {' and '.join(dict.fromkeys(names))}"
            raise MemoryLimitError(what, more, self.held())
        self._apply()

    def _admit_results(self, block: _native.RunMemory, sizes: Iterable[int]) -> None:
        """Frees memory if the results of a step in this block could not be allocated, because of
        the bound or because the system has no memory. Returns if a retry may succeed; otherwise
        raises."""
        if self._limit is None:
            return
        with self._making("the results of a step", sum(n for n in sizes if n >= LEAST), block):
            pass

    # ---- giving back -----------------------------------------------------------------------------

    def release(self) -> int:
        """Frees memory that is kept for later: blocks that no step is running in, and the memory of
        freed results. The next call allocates again. Returns the number of bytes freed."""
        return sum(block.release() for block in self._blocks()) + self._release_results()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled or copied: pass the object "
            "itself, or make a cutback.Memory with the same limit"
        )

    def __repr__(self) -> str:
        return f"<cutback.Memory, {self.held()}>"


class Bound:
    """A bound that was set. As a context manager, it restores the previous bound at the end, and
    frees memory that is kept for later if that bound is exceeded."""

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
    """The memory of steps that are compiled without ``memory=``. Each step has its own block."""

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
    """Returns the place where a step of this name runs. It has its own block if ``memory`` is None,
    uses the block of a :class:`Memory`, or is the given place.

    Raises:
        TypeError: if ``memory`` is something else.
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
    """Reports or bounds the memory of all steps that were compiled without ``memory=``.

    Without an argument, returns the bytes held, by their use. With ``limit``, bounds the sum of the
    blocks that these steps run in, the results that the program still holds, and the states of
    their optimizers. The bound stays until the next call with a limit, or until the end of a
    ``with`` statement. None removes it.

    If an allocation would exceed the bound, memory that is kept for later is freed first: memory
    for future results, and blocks that no step is running in. If that is not enough, the call fails
    before anything changes, with a :class:`cutback.MemoryLimitError` that lists the bytes held.
    Results of fewer than 64 KiB do not count. A bound does not make plans smaller: give each step a
    budget. If several steps run in turn and the bound allows the block of only one of them, let
    them share a :class:`cutback.Memory`; otherwise each run allocates its block again.

    Example:
        >>> cutback.memory("10GiB")  # doctest: +SKIP
        >>> print(cutback.memory())  # doctest: +SKIP
        8.50 GiB of at most 10.00 GiB: arena of step `loss` 5.50 GiB, states of AdamW 3.00 GiB

    Raises:
        MemoryLimitError: if more than ``limit`` is held already; the bound is unchanged.
        ValueError, TypeError: if ``limit`` is not a size.
    """
    return _default.held() if isinstance(limit, _Unset) else _default.bound(limit)


def release_memory() -> int:
    """Frees memory that is kept for later: memory for future results and gradients, and blocks that
    no step is running in. Returns the number of bytes freed.

    The memory of freed results is kept for later steps, up to the peak that was recently in use.
    Call this function when a program needs no more results. It does not affect steps compiled with
    ``memory=``; see :meth:`Memory.release`.

    >>> freed = cutback.release_memory()  # bytes
    """
    return _default.release()
