"""The folder in which compiled kernels are cached.

``CUTBACK_CACHE_DIR`` names it; otherwise it is ``cutback/kernels`` in ``XDG_CACHE_HOME`` or
``~/.cache``. Only files whose names have the form that the core uses belong to the cache, and links
are not followed. So clearing the cache never deletes other files in the folder, or the targets of
links."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import files

_CODE = re.compile(r"[0-9a-f]{2}")  # subfolders of compiled code
_FILES = {
    "code": re.compile(r"[0-9a-f]{62}\.bin"),
    "sources": re.compile(r"[0-9a-f]{64}\.cu"),
    "failed": re.compile(r"[0-9a-f]{64}\.(cu|log)"),
    "": re.compile(r"writing-[0-9A-Za-z]{6}"),  # left by a process that died while it wrote
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of the compiled kernels."""
    named = environment.get("CUTBACK_CACHE_DIR")
    if named:
        return Path(named)
    return files.cache_folder(environment) / "kernels"


@dataclass(frozen=True)
class Cache:
    """The contents of the cache ``folder``: the number of ``files`` that belong to the cache, and
    their total ``bytes``.

    ``problem`` says why the folder is not used; it is empty if the folder is used.
    """

    folder: Path
    files: int
    bytes: int
    problem: str = ""


def _problem(state: os.stat_result) -> str:
    """Says why a folder must not be used, or returns "". The code in it is executed, so the core
    does not use a folder that other users can write to."""
    if state.st_uid != os.geteuid():
        return "it belongs to another user"
    return "others may write it (chmod 700)" if state.st_mode & 0o022 else ""


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[int, str]]:
    """Opens the folder. Yields its descriptor (-1 if it cannot be opened) and its problem."""
    try:
        opened = os.open(folder, _FOLDER)
    except FileNotFoundError:
        yield -1, ""
        return
    except OSError as error:
        yield -1, (error.strerror or str(error)).lower()
        return
    try:
        yield opened, _problem(os.fstat(opened))
    finally:
        os.close(opened)


@contextmanager
def _subfolder(outer: int, name: str) -> Iterator[int]:
    """Opens a subfolder. Yields its descriptor, or -1 if it is a link, a file, or has a problem."""
    try:
        opened = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
    except OSError:
        yield -1
        return
    try:
        yield -1 if _problem(os.fstat(opened)) else opened
    finally:
        os.close(opened)


def _files(folder: int, kind: str) -> Iterator[tuple[str, int]]:
    """Yields the name and size of each regular file in an open folder that belongs to the cache."""
    for name in sorted(os.listdir(folder)):
        if not _FILES[kind].fullmatch(name):
            continue
        try:
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # another process has just deleted it
            continue
        if stat.S_ISREG(state.st_mode):
            yield name, state.st_size


def _visit(folder: Path, deletes: bool) -> Cache:
    """Counts the files of the cache, and deletes them if ``deletes``."""
    files = size = 0
    with _opened(folder) as (outer, problem):
        if outer < 0 or (deletes and problem):
            return Cache(folder, 0, 0, problem)
        names = sorted(os.listdir(outer))
        subfolders = [n for n in names if _CODE.fullmatch(n) or n in ("sources", "failed")]
        for sub in [*subfolders, ""]:
            with _subfolder(outer, sub or ".") as inner:
                if inner < 0:
                    continue
                for name, count in _files(inner, "code" if _CODE.fullmatch(sub) else sub):
                    files, size = files + 1, size + count
                    if deletes:
                        with suppress(FileNotFoundError):  # another process has just deleted it
                            os.unlink(name, dir_fd=inner)
                if deletes and sub and not os.listdir(inner):
                    with suppress(OSError):  # a file was added in the meantime
                        os.rmdir(sub, dir_fd=outer)
    return Cache(folder, files, size, problem)


def cache_info() -> Cache:
    """Returns the number and total size of the cached files."""
    return _visit(cache_folder(), deletes=False)


def cache_clear() -> Cache:
    """Deletes the compiled kernels and saved sources, and nothing else in the folder.

    Returns:
        The number and total size of the deleted files.

    Raises:
        PermissionError: if the folder is not used (``cache_info().problem``); nothing is deleted.
    """
    cleared = _visit(cache_folder(), deletes=True)
    if cleared.problem:
        raise PermissionError(f"{cleared.folder} was not cleared: {cleared.problem}")
    return cleared
