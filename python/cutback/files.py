"""Problems, plans and measured times in files.

>>> cutback.files.write_text("problem.json.gz", json.dumps(plan.problem))
>>> text = cutback.files.read_text("problem.json.gz")
>>> timed = cutback.files.with_times(text, {"matmul_4": 1.5e-5})

A graph file holds a problem (``docs/problem.md``) or a joint graph written by PyTorch's tracer, as
JSON that may be compressed with gzip. Reading limits the size of files. Writing replaces a file
either completely or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import _native, budgets

if TYPE_CHECKING:
    from .problem import Op, Problem, Region, Value

__all__ = [
    "MOST_BYTES",
    "MOST_SECONDS",
    "parse_json",
    "read_text",
    "read_times",
    "with_times",
    "write_text",
]

MOST_BYTES = 1 << 30
"""Limit on the size of a text that is read, after decompression. A graph of a million operations
takes half of it."""

MOST_PACKED = 100
"""Limit on the compression ratio of a file whose text has more than :data:`SMALL` bytes. Graphs
have a ratio of about 30."""

SMALL = 64 << 20


_MODELS = (".onnx", ".pt", ".pt2", ".pth", ".safetensors")

SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
"""Characters that control a terminal, change the direction of text, or are invisible."""


def shown(text: str) -> str:
    """Makes a text safe to print on a terminal. Control characters, which may come from a file, are
    escaped (``\\x1b``), except line breaks and tabs."""
    return SHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: object) -> str:
    """Makes a text safe like :func:`shown`, but also escapes line breaks and tabs. Returns it."""
    return shown(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def for_people(problem: _native.Problem) -> _native.Problem:
    """Returns the problem with names that fit on one line of a table and are safe to print."""
    parts = problem.parts()
    rows: list[tuple[Op | Region | Value, tuple[str, ...]]] = []
    rows += [(op, ("name", "kind", "location")) for op in parts.ops]
    rows += [(region, ("name",)) for region in parts.regions]
    rows += [(value, ("type",)) for value in parts.values]
    is_plain = True
    for row, names in rows:
        for name in names:
            before = getattr(row, name)
            after = one_line(before)
            if after != before:
                is_plain = False
                setattr(row, name, after)
    return problem if is_plain else parts.check()


def write_text(path: str | os.PathLike[str], text: str, private: bool = False) -> None:
    """Writes a text file, compressed if its name ends in ``.gz``.

    The file is written completely or not at all: the text is written to a new file in the same
    folder, which is flushed to disk and then renamed. If that fails, because the disk is full or
    the process ends, the old file is unchanged. A symbolic link stays a link, and an existing file
    keeps its permissions. Anything but a regular file, such as ``/dev/stdout``, is written to
    directly.

    Args:
        path: the file.
        text: its content, written as UTF-8.
        private: if true, only the owner can read and write a new file.

    Raises:
        OSError: if the file cannot be written; the message names ``path``.

    >>> cutback.files.write_text("problem.json.gz", problem)  # compressed
    """
    name = os.fspath(path)
    data = text.encode("utf-8", "backslashreplace")
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    try:
        target = os.path.realpath(name)
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        if _is_open_file(name) or (mode is not None and not stat.S_ISREG(mode)):
            _write_into(name, data)
        else:
            _replace(target, data, mode, 0o600 if private else 0o666)
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(error.errno, f"not written: {reason}", name) from None
    except ValueError:
        raise _not_a_name(name) from None


def _not_a_name(name: str) -> ValueError:
    """Returns an error for a NUL, or a character that the file system's encoding does not have."""
    return ValueError(f"{name!r} is not a file name")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of caches: ``$XDG_CACHE_HOME/cutback`` or ``~/.cache/cutback``. For a user
    who has no home directory, returns a path at which no folder can be created."""
    top = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(top):
        home = os.path.expanduser("~")  # unchanged if there is no home
        top = os.path.join(home if os.path.isabs(home) else os.devnull, ".cache")
    return Path(top) / "cutback"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock for a file. The lock is a file next to it; if that cannot be created, the body
    runs without a lock."""
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.with_suffix(".lock"), "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def _is_open_file(name: str) -> bool:
    """Returns True if the name leads to an open file of a process, such as ``/dev/stdout``.
    Replacing that file would disconnect it from the process."""
    for _ in range(40):
        folder, base = os.path.split(os.path.abspath(name))
        folder = os.path.realpath(folder)
        if folder.startswith("/proc/"):
            return True
        name = os.path.join(folder, base)
        if not os.path.islink(name):
            return False
        name = os.path.join(folder, os.readlink(name))
    return False


def _write_into(name: str, data: bytes) -> None:
    """Writes to a device or a pipe. If a pipe has no reader, raises an error instead of waiting."""
    handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _replace(target: str, data: bytes, mode: int | None, new_mode: int) -> None:
    """Replaces ``target`` by a new file. ``mode`` is the current mode of ``target``, or None if it
    does not exist."""
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    folder, base = os.path.split(target)
    beside = os.path.join(folder, f".{base[:80]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, new_mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    with suppress(OSError):  # some file systems do not support this
        at = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a regular file for reading. Pipes and devices are refused: they may block or never
    end."""
    name = os.fspath(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError:
        raise _not_a_name(name) from None
    file = os.fdopen(handle, "rb") if stat.S_ISREG(os.fstat(handle).st_mode) else None
    if file is None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        os.close(handle)
        if folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        raise ValueError(
            f"{name} is a pipe or a device; copy its content to a file and pass that file"
        )
    return file


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads a text file, decompressing it if its first bytes are those of gzip.

    Args:
        path: the file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not UTF-8, is damaged, has more than :data:`MOST_BYTES` of text, is a
            model's or is not a regular file.

    >>> text = cutback.files.read_text("problem.json")
    """
    with _open(path) as file:
        start = file.read(2)
        packed = start == b"\x1f\x8b"
        if not packed and start[:1] != b"{" and os.fspath(path).endswith(_MODELS):
            raise ValueError(
                f"{os.fspath(path)}: a model file has no backward to plan; save a training step "
                "with cutback.torch.trace(model, *inputs).save(FILE)"
            )
        limit = MOST_BYTES
        if packed:
            limit = min(limit, max(SMALL, MOST_PACKED * os.fstat(file.fileno()).st_size))
        file.seek(0)
        try:
            source = gzip.GzipFile(fileobj=file) if packed else file
            data = source.read(limit + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{os.fspath(path)}: damaged gzip file ({error})") from None
    if len(data) > limit:
        what = "unpacks to" if packed else "is"
        raise ValueError(
            f"{os.fspath(path)}: {what} more than {limit >> 20} MiB of text, too large for a graph"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: not UTF-8 text (at byte {error.start})") from None


def parse_json(text: str, where: str | os.PathLike[str]) -> Any:
    """Parses JSON. Errors give the position but do not quote the file, which may contain secrets or
    control characters.

    Args:
        text: the JSON.
        where: the name to use in errors, such as the file's path.

    Raises:
        ValueError: if ``text`` is not JSON, is nested too deeply, or has a number that is too long.

    >>> cutback.files.parse_json('{"a": 1}', "a.json")
    {'a': 1}
    """
    name = os.fspath(where)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{name}: not JSON, at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ValueError(f"{name}: this JSON is nested too deeply to be read") from None
    except ValueError:  # an integer with more digits than Python parses
        raise ValueError(f"{name}: a number has too many digits") from None


def to_json(document: Any, what: str, indent: int | None = None) -> str:
    """Converts a document to JSON.

    Raises:
        TypeError, ValueError: if it contains itself, or something that JSON cannot represent; the
            message begins with ``what``.
    """
    try:
        return json.dumps(document, indent=indent)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply for JSON") from None


def is_traced(text: str) -> bool:
    """Returns True if this is the text of a traced graph rather than of a problem."""
    head = text[:4096]
    return '"cutback.problem"' not in head and '"nodes"' in text


MOST_SECONDS = 2.0**50 * 1e-12
"""Longest time of one operation, in seconds: 18 minutes."""


def read_times(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads measured times from a JSON file.

    Args:
        path: the file. It holds an object ``{"matmul_12": 1.5e-5, ...}``, or a document with
            ``format`` "cutback.times", ``version`` 1 and such an object under ``seconds``.

    Returns:
        A dict from the names of operations to seconds.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it contains anything else.

    >>> cutback.files.write_text("times.json", '{"matmul_12": 1.5e-5}')
    >>> cutback.files.read_times("times.json")
    {'matmul_12': 1.5e-05}
    """
    document = parse_json(read_text(path), path)
    if isinstance(document, dict) and document.get("format") == "cutback.times":
        if document.get("version") != 1:
            raise ValueError(
                f"{os.fspath(path)}: version {document.get('version')!r:.40} is not supported; "
                "expected version 1"
            )
        document = document.get("seconds")
    elif isinstance(document, dict) and isinstance(document.get("format"), str):
        raise ValueError(
            f"{os.fspath(path)}: {document['format'][:40]} is not a profile; expected an object "
            "of operation: seconds, or a cutback.times document"
        )
    if not isinstance(document, dict):
        raise ValueError(f"{os.fspath(path)}: a profile must be an object of operation: seconds")
    return document


def _ids_by_name(ops: Sequence[Op]) -> dict[str, list[int]]:
    table: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        if op.name:
            table.setdefault(op.name, []).append(i)
    return table


def with_times(problem: str, times: Mapping[Any, Any]) -> str:
    """Adds measured times to a problem. They replace the times of the cost model.

    Operations without a measured time keep their modelled time, which is not scaled. Views and
    placeholders never take time.

    Args:
        problem: a problem document, as JSON.
        times: seconds by the name or the number of an operation.

    Returns:
        The problem with its times, as JSON.

    Raises:
        TypeError: if ``times`` is not a mapping.
        ValueError: if there is no such operation, several have that name, or a time is not a
            number from 0 to :data:`MOST_SECONDS`.

    >>> timed = cutback.files.with_times(problem, {plan.entries[0].name: 1.5e-5})
    >>> faster = cutback.plan(timed, budget=0.5)
    """
    parts = _native.Problem.read(problem).parts()
    lay_times(parts, times)
    return parts.to_json()


def _hint_of_groups(ops: Sequence[Op]) -> str:
    if not any(op.inside for op in ops):
        return ""
    return (
        "; the operations of this problem are fused groups; use the problem of a step compiled "
        "with groups=False"
    )


def lay_times(problem: Problem, times: Mapping[Any, Any]) -> None:
    """Adds measured times to ``problem`` in place; see :func:`with_times`."""
    if not isinstance(times, Mapping):
        raise TypeError(
            f"profile must be a mapping of operation to seconds, not {type(times).__name__}"
        )
    ops = problem.ops
    names = _ids_by_name(ops)
    for key, seconds in times.items():
        found = names.get(str(key), [])
        if not found and budgets.whole_number(str(key)) and int(key) < len(ops):
            found = [int(key)]
        if len(found) != 1:
            what = "several operations are called" if found else "the graph has no operation"
            more = f": {found}" if found else _hint_of_groups(ops)
            raise ValueError(f"profile: {what} {str(key)!r}{more}")
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not math.isfinite(seconds) or not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(
                f"profile: {key!r} takes {seconds!r} seconds; a time is a number from 0 to "
                f"{MOST_SECONDS:.0f}"
            )
        ops[found[0]].time_ps = round(seconds * 1e12)
