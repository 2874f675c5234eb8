"""Counts the bytes of tensors that are live while a step runs."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_iter

from .. import budgets
from . import transfers

if TYPE_CHECKING:
    from torch import UntypedStorage
    from torch._ops import OpOverload
    from torch.fx.node import Argument
    from torch.utils.hooks import RemovableHandle

    from .types import GraphValue, Raised

MODULES = "__cutback_modules__"
"""Name of a global of planned code, which maps each line number to the path of its module."""

CATEGORIES = ("parameter", "buffer", "gradient", "optimizer", "activation")


class Event(NamedTuple):
    """A storage that appears or grows (``bytes`` > 0), or is freed or shrinks (``bytes`` < 0)."""

    bytes: int
    """The change of live bytes."""
    live: int
    """Live bytes after it."""
    op: str
    """The latest operation, ``"aten.mm.default"``."""
    id: int
    """Number of the storage, from 0 in order of appearance."""


_ALLOCATORS = ("_empty_strided_cpu", "_empty_strided_cuda", "_empty_strided_cpu_pinned")
_INDUCTOR = "inductor.buffer"
_TANGENT = "tangent"


def watch_inductor() -> None:
    """Lets trackers see the buffers that Inductor's code allocates, if it is loaded from now on.
    Such code takes the allocator's functions from a module of PyTorch when it is loaded; this
    replaces them with functions that notify the trackers. Without a tracker this costs one call.
    """
    source = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    for name in _ALLOCATORS:
        allocate = getattr(source, name, None)
        if allocate is not None and not hasattr(allocate, "__wrapped__"):
            setattr(source, name, _seen(allocate))


def _seen(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(allocate)
    def call(*args: Argument) -> torch.Tensor:
        made = allocate(*args)
        if torch._C._len_torch_dispatch_stack():
            for mode in _get_current_dispatch_mode_stack():
                if isinstance(mode, MemoryTracker):
                    mode._appear(made.untyped_storage(), _INDUCTOR)
        return made

    return call


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the plain tensors inside a wrapper subclass (for a DTensor: this rank's shard); for
    any other tensor, the tensor itself."""
    if not is_traceable_wrapper_subclass_type(type(tensor)):
        return [tensor]
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [part for t in inner if isinstance(t, torch.Tensor) for part in parts_of(t)]


def storages_of(tensor: torch.Tensor) -> tuple[UntypedStorage, ...]:
    """Returns the storages of a tensor: one, or those of its parts. The result is empty if they
    cannot be seen (layouts of other libraries)."""
    if is_traceable_wrapper_subclass_type(type(tensor)):
        return tuple(s for part in parts_of(tensor) for s in storages_of(part))
    try:
        return (tensor.untyped_storage(),)
    except (NotImplementedError, RuntimeError):
        parts: tuple[torch.Tensor, ...] = ()
    if tensor.layout is torch.sparse_coo:
        parts = tensor._indices(), tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return tuple(part.untyped_storage() for part in parts)


class _Life(NamedTuple):
    bytes: int
    op: str
    module: str


class MemoryTracker(TorchDispatchMode):
    """Measures the memory of code that runs inside ``with MemoryTracker() as memory:``.

    It sees each tensor that an operation returns, until the tensor is freed, in forward and
    backward, in eager and compiled code. It does not see memory that a kernel allocates and frees
    while it runs (workspace), or memory allocated earlier. Code made by Inductor allocates
    directly; it is seen if it was made by :func:`cutback.torch.compile` or loaded after the first
    tracker was made, except with the C++ wrapper. Host copies of a plan with offload are counted
    separately.

    Args:
        model: its parameters' gradients count as category ``"gradient"``, and memory of the eager
            forward is attributed to its modules. Planned code knows its modules itself.
        optimizer: its states count as category ``"optimizer"``.

    A tracker can be used only once.

    >>> with cutback.torch.MemoryTracker(model) as memory:
    ...     model(x).sum().backward()
    >>> print(memory)
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__()
        watch_inductor()
        self.live_bytes = 0
        self.peak_bytes = 0
        """Peak of the live bytes that were allocated since the beginning."""
        self.peak_total_bytes = 0
        """Peak of live bytes, including the parameters, buffers, gradients and optimizer states of
        ``model`` and ``optimizer`` that existed before."""
        self.host_bytes = 0
        self.peak_host_bytes = 0
        """Peak of the bytes of offloaded values on the host."""
        self.events: list[Event] = []
        self._model = model
        self._optimizer = optimizer
        self._standing = 0  # bytes from before that count in the total
        self._finalizers: list[weakref.finalize[[int], UntypedStorage]] = []
        self._names: dict[int, str] = {}
        if model is not None:
            self._names = {id(m): name for name, m in model.named_modules()}
        self._lives: list[_Life] = []
        self._known: dict[int, int] = {}  # id of a live storage object -> number
        self._category: dict[int, str] = {}
        self._before: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()
        self._op = ""
        self._hooks: list[RemovableHandle] = []
        self._ended = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Returns True: compiled functions stay compiled while the mode is active. Otherwise
        PyTorch would run them in eager mode, and another program would be measured."""
        return True

    # ---- life -------------------------------------------------------------------------------

    def __enter__(self) -> MemoryTracker:
        if self._ended or self._hooks:
            raise RuntimeError("a MemoryTracker is used once; make another one")
        if self._model is not None:
            for parameter in self._model.parameters():
                for storage in storages_of(parameter):
                    self._before.add(storage)
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(self._see_gradient)
                    self._hooks.append(hook)
            for buffer in self._model.buffers():
                for storage in storages_of(buffer):
                    self._before.add(storage)
        if self._optimizer is not None:
            self._hooks.append(self._optimizer.register_step_post_hook(self._see_states))
        self._stand()
        super().__enter__()
        return self

    def _stand(self) -> None:
        """Records the storages that already exist."""
        standing: list[Argument] = []
        if self._model is not None:
            standing += [*self._model.parameters(), *self._model.buffers()]
        if self._optimizer is not None:
            standing += [p for group in self._optimizer.param_groups for p in group["params"]]
            standing += tree_iter([list(s.values()) for s in self._optimizer.state.values()])
        standing += [t.grad for t in standing if isinstance(t, torch.nn.Parameter)]
        storages = {s for t in standing if isinstance(t, torch.Tensor) for s in storages_of(t)}
        for storage in storages:
            self._before.add(storage)
            self._standing += storage.nbytes()
            self._finalizers.append(weakref.finalize(storage, self._fall, storage.nbytes()))
        self.peak_total_bytes = self._standing

    def _fall(self, size: int) -> None:
        self._standing -= size

    def __exit__(self, *error: Raised) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        for finalizer in self._finalizers:
            finalizer.detach()
        self._ended = True

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> Argument:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # its own function runs, and the tracker sees the ops inside
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given: set[int] | None = None
        for tensor in tree_iter(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            for storage in storages_of(tensor):
                if self._is_known(storage, str(func)):
                    continue
                if given is None:
                    tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
                    given = {id(s) for t in tensors for s in storages_of(t)}
                if id(storage) in given:  # a view of older memory
                    self._before.add(storage)
                    continue
                self._appear(storage, str(func))
        return result

    def _is_known(self, storage: UntypedStorage, op: str) -> bool:
        """True if the storage has been seen. Records its new size if that has changed."""
        number = self._known.get(id(storage))
        if number is None:
            return storage in self._before
        if storage.nbytes() != self._lives[number].bytes:
            self._resize(number, storage.nbytes(), op)
        return True

    def _resize(self, number: int, size: int, op: str) -> None:
        """Handles an op that resized a storage."""
        more = size - self._lives[number].bytes
        self._lives[number] = self._lives[number]._replace(bytes=size)
        self._grow(more, op, number)

    def _grow(self, more: int, op: str, number: int) -> None:
        self._op = op
        self.live_bytes += more
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.peak_total_bytes = max(self.peak_total_bytes, self.live_bytes + self._standing)
        self.events.append(Event(more, self.live_bytes, op, number))

    def _appear(self, storage: UntypedStorage, op: str) -> None:
        number, size, key = len(self._lives), storage.nbytes(), id(storage)
        if transfers.making_host_memory():
            self._before.add(storage)
            self.host_bytes += size
            self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)
            weakref.finalize(storage, self._vanish_from_host, size)
            return
        self._lives.append(_Life(size, op, self._where()))
        self._known[key] = number
        self._grow(size, op, number)
        weakref.finalize(storage, self._vanish, key, number)

    def _vanish(self, key: int, number: int) -> None:
        self._known.pop(key, None)
        if self._ended:
            return
        size = self._lives[number].bytes
        self.live_bytes -= size
        self.events.append(Event(-size, self.live_bytes, self._op, number))

    def _vanish_from_host(self, size: int) -> None:
        if not self._ended:
            self.host_bytes -= size

    def _where(self) -> str:
        """Returns the innermost active module, found by the line of planned code or by the frame of
        a module of ``model``."""
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            modules = frame.f_globals.get(MODULES)
            if modules is not None:
                return str(modules.get(frame.f_lineno, ""))
            if self._names and frame.f_code.co_name == "forward":
                name = self._names.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name
            frame = frame.f_back
        return ""

    # ---- categories -------------------------------------------------------------------------

    def _mark(self, tensor: torch.Tensor | None, category: str) -> None:
        for storage in storages_of(tensor) if isinstance(tensor, torch.Tensor) else ():
            number = self._known.get(id(storage))
            if number is not None:
                self._category[number] = category

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        self._mark(parameter.grad, "gradient")

    def _see_states(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
    ) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                self._mark(value, "optimizer")

    def category(self, event: Event) -> str:
        """Returns ``"gradient"``, ``"optimizer"`` or ``"activation"`` (everything else that
        appeared)."""
        return self._category.get(event.id, "activation")

    # ---- answers ----------------------------------------------------------------------------

    def _profile(self, category: str | None = None) -> Iterator[int]:
        live = 0
        for event in self.events:
            if category is None or self.category(event) == category:
                live += event.bytes
            yield live

    @property
    def peak_activation_bytes(self) -> int:
        """The peak without gradients and optimizer states."""
        return max(self._profile("activation"), default=0)

    @property
    def timeline(self) -> list[int]:
        """Live bytes after each event."""
        return [event.live for event in self.events]

    def _at_peak(self) -> dict[int, int]:
        alive: dict[int, int] = {}
        peak: dict[int, int] = {}
        most = 0
        for event in self.events:
            alive[event.id] = alive.get(event.id, 0) + event.bytes
            if not alive[event.id]:
                del alive[event.id]
            if event.live > most:
                most, peak = event.live, dict(alive)
        return peak

    def by_category(self) -> dict[str, int]:
        """Returns the bytes at the peak by category."""
        found: dict[str, int] = defaultdict(int)
        for number, size in self._at_peak().items():
            found[self._category.get(number, "activation")] += size
        return dict(found)

    def by_module(self) -> dict[str, int]:
        """Returns the bytes at the peak by the innermost module that allocated them; ``""`` means
        unknown (the backward of eager code)."""
        found: dict[str, int] = defaultdict(int)
        for number, size in self._at_peak().items():
            found[self._lives[number].module] += size
        return dict(found)

    def __repr__(self) -> str:
        size = budgets.text
        host = f", {size(self.peak_host_bytes)} on the host" if self.peak_host_bytes else ""
        return (
            f"<cutback.torch.MemoryTracker: peak {size(self.peak_bytes)}, now "
            f"{size(self.live_bytes)}{host}; {len(self.events)} events>"
        )

    def by_op(self) -> dict[str, int]:
        """Returns the bytes at the peak by the operation that allocated them."""
        found: dict[str, int] = defaultdict(int)
        for number, size in self._at_peak().items():
            found[self._lives[number].op] += size
        return dict(found)


class StepTracker(MemoryTracker):
    """Tracks the memory of forwards and their backwards, which may be far apart. Frees in between
    are seen until :meth:`end`. Compiled code runs inside it, or reports its arguments and
    results."""

    def __exit__(self, *error: Raised) -> None:
        super().__exit__(*error)
        self._ended = False

    def end(self) -> None:
        """Stops tracking frees."""
        self._ended = True

    def given(self, args: Sequence[GraphValue], count: bool) -> None:
        """Registers arguments. Those of the caller do not count (``count``), tangents do."""
        for t in args:
            for storage in storages_of(t) if isinstance(t, torch.Tensor) else ():
                if id(storage) in self._known or storage in self._before:
                    continue
                if count:
                    self._appear(storage, _TANGENT)
                else:
                    self._before.add(storage)

    def made(self, result: Argument, op: str) -> None:
        """Registers results of an op that ran outside the tracker."""
        for t in tree_iter(result):
            for storage in storages_of(t) if isinstance(t, torch.Tensor) else ():
                if not self._is_known(storage, op):
                    self._appear(storage, op)

    def has_made(self, values: Iterable[Argument]) -> bool:
        """True if all of their memory was allocated by ops, and none came from arguments."""
        for t in tree_iter(values):
            for storage in storages_of(t) if isinstance(t, torch.Tensor) else ():
                number = self._known.get(id(storage))
                if number is None or self._lives[number].op == _TANGENT:
                    return False
        return True
