"""Moves tensors to the host and back where a plan says so."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch.fx.node import has_side_effect

_EVENT = "_cutback_copied"
"""Attribute of a storage that was copied into: the event after the copy."""

_here = threading.local()


def making_host_memory() -> bool:
    """True if the memory that this thread allocates now is a copy on the host."""
    return getattr(_here, "making", False)


class _Streams(NamedTuple):
    out: torch.cuda.Stream
    back: torch.cuda.Stream


_streams: dict[torch.device, _Streams] = {}
_under_way: dict[int, tuple[torch.cuda.Event, torch.Tensor]] = {}
"""Maps the id of an event to a copy that nothing has waited for: its event, and the memory on the
device that it reads or writes. After an error nothing else may refer to that memory, and it must
not be reused before the copy has ended."""
_lock = threading.Lock()


def _streams_of(device: torch.device) -> _Streams:
    with _lock:
        found = _streams.get(device)
        if found is None:
            found = _streams[device] = _Streams(
                torch.cuda.Stream(device), torch.cuda.Stream(device)
            )
        for key in [key for key, (event, _) in _under_way.items() if event.query()]:
            del _under_way[key]
        return found


def _whole(t: torch.Tensor) -> torch.Tensor:
    """Returns all of a tensor's storage as one row."""
    return t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


def _like(row: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in a row with the layout that ``t`` has in its storage."""
    return row.as_strided(t.size(), t.stride(), t.storage_offset())


def _copied(t: torch.Tensor) -> torch.cuda.Event | None:
    """Returns the event after the copy that filled a tensor, or None if it is over or unknown."""
    return getattr(t.untyped_storage(), _EVENT, None)


def _copy(row: torch.Tensor, source: torch.Tensor, device: torch.device, out: bool) -> None:
    """Copies on a separate stream, after the work already queued on the current one."""
    streams = _streams_of(device)
    stream = streams.out if out else streams.back
    stream.wait_stream(torch.cuda.current_stream(device))
    if not out:
        left = _copied(source)
        if left is None:
            stream.wait_stream(streams.out)
        else:
            stream.wait_event(left)
    with torch.cuda.stream(stream):
        row.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(stream)
    setattr(row.untyped_storage(), _EVENT, event)
    with _lock:
        _under_way[id(event)] = event, source if out else row


@has_side_effect
def leave(t: torch.Tensor) -> torch.Tensor:
    """Returns a copy of ``t`` on the host. The copy may still be in progress."""
    source = _whole(t)
    on_cuda = t.device.type == "cuda"
    _here.making = True
    try:
        row = torch.empty(source.numel(), dtype=t.dtype, device="cpu", pin_memory=on_cuda)
    finally:
        _here.making = False
    if on_cuda:
        _copy(row, source, t.device, True)
    else:
        row.copy_(source)
    return _like(row, t)


@has_side_effect
def gone(t: torch.Tensor, host: torch.Tensor) -> None:
    """Allows the memory of ``t``, which left for ``host``, to be reused."""
    _wait(t.device, host)


@has_side_effect
def wait(host: torch.Tensor, device: torch.device) -> None:
    """Stalls until the copy to ``host`` has ended."""
    _wait(device, host)


@has_side_effect
def arrive(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the value that left for ``host``, in new memory. The copy may still be in
    progress."""
    source = _whole(host)
    row = torch.empty(source.numel(), dtype=host.dtype, device=device)
    if device.type == "cuda":
        _copy(row, source, row.device, False)
    else:
        row.copy_(source)
    return _like(row, host)


@has_side_effect
def ready(t: torch.Tensor) -> torch.Tensor:
    """Returns the same tensor, once it has arrived."""
    _wait(t.device, t)
    return t


def _wait(device: torch.device, filled: torch.Tensor) -> None:
    if device.type != "cuda":
        return
    current = torch.cuda.current_stream(device)
    event = _copied(filled)
    if event is not None:
        current.wait_event(event)
        with _lock:
            _under_way.pop(id(event), None)
    else:  # hooks of the user returned another tensor
        for stream in _streams_of(torch.device(current.device)):
            current.wait_stream(stream)
