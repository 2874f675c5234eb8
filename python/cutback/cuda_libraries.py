"""Finds NVIDIA's libraries: the driver, NVRTC and cuBLASLt. No CUDA library is linked; each is
searched for at run time, in this order:

1. the file that an environment variable names (``CUTBACK_CUDA_DRIVER``, ``CUTBACK_NVRTC``,
   ``CUTBACK_CUBLASLT``);
2. files that PyTorch or another library has already mapped into the process;
3. the file that ``cuda.pathfinder`` finds, if it is installed (not for the driver);
4. NVIDIA's wheels in ``sys.path``: CUDA 13 has one folder, CUDA 12 has one for each library;
5. the conda environment (``CONDA_PREFIX``);
6. a toolkit: ``CUDA_PATH``, ``CUDA_HOME``, ``/usr/local/cuda``;
7. the system's loader.

A library with a newer major version than the driver's is skipped, because it cannot be used. Stubs
of a toolkit are skipped, because they exist only for linking. An error lists all places that were
searched.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import _native

T = TypeVar("T")

MAJORS = (13, 12)  # major versions of CUDA, the newest first


class LibraryError(RuntimeError):
    """Raised if a library was not found or cannot be used; the message lists all places that were
    searched.

    Attributes:
        places: the places that were searched, each with its problem.
    """

    def __init__(self, text: str, places: Sequence[Place] = ()) -> None:
        super().__init__(text)
        self.places = places


@dataclass(frozen=True)
class Library:
    """The names of a library: of its file (``stem.13``), of its folder in the wheels of each major
    version of CUDA, and for ``cuda.pathfinder``."""

    word: str
    variable: str
    stem: str
    wheels: Mapping[int, str]
    pathfinder: str | None = None

    def names(self, majors: Sequence[int]) -> list[str]:
        """Returns the file names, newest first."""
        return [f"{self.stem}.{major}" for major in majors]


DRIVER = Library("the CUDA driver", "CUTBACK_CUDA_DRIVER", "libcuda.so", {})
NVRTC = Library(
    "NVRTC",
    "CUTBACK_NVRTC",
    "libnvrtc.so",
    {13: "nvidia/cu13/lib", 12: "nvidia/cuda_nvrtc/lib"},
    "nvrtc",
)
CUBLASLT = Library(
    "cuBLASLt",
    "CUTBACK_CUBLASLT",
    "libcublasLt.so",
    {13: "nvidia/cu13/lib", 12: "nvidia/cublas/lib"},
    "cublasLt",
)


@dataclass(frozen=True)
class Surroundings:
    """The input of a search for libraries.

    ``mapped`` lists the files in the memory map of the process, ``packages`` the folders of
    installed packages. ``pathfinder`` returns the file of a library or raises."""

    environment: Mapping[str, str]
    mapped: Sequence[str] = ()
    packages: Sequence[Path] = ()
    toolkit: Path = Path("/usr/local/cuda")
    pathfinder: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Place:
    """A place that was searched: its description, and the file found there or the reason that none
    was found."""

    what: str
    path: str | None
    problem: str = ""


@dataclass
class Found(Generic[T]):
    """A usable library: what its loader returned, its file, and the places searched before."""

    value: T
    path: str
    places: list[Place] = field(default_factory=list)


def _mapped_files() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = (line.split(None, 5)[5] for line in lines if line.count("/") and len(line.split()) > 5)
    return list(dict.fromkeys(paths))


def _pathfinder() -> Callable[[str], str] | None:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return None
    return lambda name: str(load_nvidia_dynamic_lib(name).abs_path)


def surroundings() -> Surroundings:
    """Returns the input of a search in this process."""
    folders = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    return Surroundings(os.environ, _mapped_files(), folders, pathfinder=_pathfinder())


def _in_folders(what: str, folders: Sequence[Path], names: Sequence[str]) -> Iterator[Place]:
    """Yields a place for each file with one of these names in the folders, or, if no such file
    exists, one place that says so."""
    found = False
    for name in names:
        for folder in folders:
            if "stubs" not in folder.parts and (folder / name).exists():
                found = True
                yield Place(what, str(folder / name))
    if not found:
        yield Place(what, None, f"no {' or '.join(names)} in {', '.join(map(str, folders))}")


def _mapped(library: Library, around: Surroundings, names: Sequence[str]) -> Iterator[Place]:
    pattern = re.compile(re.escape(library.stem) + r"\.(\d+)(\.[\d.]*)?$")
    what, found = "mapped into this process", False
    for path in around.mapped:
        match = pattern.fullmatch(Path(path).name)
        if match and f"{library.stem}.{match[1]}" in names:
            found = True
            yield Place(what, path)
    if not found:
        yield Place(what, None, f"no {' or '.join(names)}")


def _asked(library: Library, around: Surroundings) -> Iterator[Place]:
    path = around.environment.get(library.variable)
    yield Place(library.variable, path or None, "" if path else "not set")


def _by_pathfinder(library: Library, around: Surroundings, names: Sequence[str]) -> Iterator[Place]:
    what = "cuda.pathfinder"
    if library.pathfinder is None:
        return
    if around.pathfinder is None:
        yield Place(what, None, "not installed")
        return
    try:
        path = around.pathfinder(library.pathfinder)
    except Exception as error:  # pathfinder raises many types if it finds no file
        yield Place(what, None, str(error).splitlines()[0] if str(error) else "nothing")
        return
    if any(Path(path).name.startswith(name) for name in names):
        yield Place(what, path)
    else:
        yield Place(what, None, f"{path}, which is not {' or '.join(names)}")


def _in_wheels(library: Library, around: Surroundings, majors: Sequence[int]) -> Iterator[Place]:
    for major in majors:
        if major in library.wheels:
            folders = [folder / library.wheels[major] for folder in around.packages]
            there = [folder for folder in folders if folder.is_dir()]
            what, names = f"wheels of CUDA {major}", library.names([major])
            if there:
                yield from _in_folders(what, there, names)
            else:
                yield Place(what, None, f"no {library.wheels[major]} in any folder of packages")


def _lib_folders(top: Path) -> list[Path]:
    return [top / "lib64", top / "lib", *sorted(top.glob("targets/*/lib"))]


def _in_toolkits(library: Library, around: Surroundings, names: Sequence[str]) -> Iterator[Place]:
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"):
        top = around.environment.get(variable)
        if top:
            yield from _in_folders(variable, _lib_folders(Path(top)), names)
        else:
            yield Place(variable, None, "not set")
    if around.toolkit.is_dir():
        yield from _in_folders("the toolkit", _lib_folders(around.toolkit), names)
    else:
        yield Place("the toolkit", None, f"no {around.toolkit}")


def places(library: Library, around: Surroundings, newest: int | None = None) -> Iterator[Place]:
    """Returns all places where a library may be, in order; those with a path can be tried.
    ``newest`` is the newest major version of CUDA that the driver supports; None allows any."""
    if library is DRIVER:
        names = ["libcuda.so.1"]
        yield from _asked(library, around)
        yield from _mapped(library, around, names)
        yield Place("the system's loader", names[0])
        return
    majors = [major for major in MAJORS if newest is None or major <= newest]
    names = library.names(majors)
    yield from _asked(library, around)
    yield from _mapped(library, around, names)
    yield from _by_pathfinder(library, around, names)
    yield from _in_wheels(library, around, majors)
    yield from _in_toolkits(library, around, names)
    for name in names:
        yield Place("the system's loader", name)


def listed(seen: Sequence[Place]) -> str:
    """Formats the places, one per line."""
    return "\n".join(f"  {place.what}: {place.problem or place.path}" for place in seen)


def find(
    library: Library,
    load: Callable[[str], T],
    around: Surroundings,
    newest: int | None = None,
) -> Found[T]:
    """Returns the first file that ``load`` accepts. Raises a LibraryError that lists all places if
    it accepts none. If the environment variable names a file, only that file is tried."""
    seen: list[Place] = []
    for place in places(library, around, newest):
        if place.path is None:
            seen.append(place)
            continue
        try:
            return Found(load(place.path), place.path, [*seen, place])
        except (NotImplementedError, RuntimeError) as error:
            seen.append(Place(place.what, place.path, str(error)))
        if place.what == library.variable:
            break
    text = f"{library.word} was not found or cannot be used:\n{listed(seen)}"
    raise LibraryError(text, seen)


Device = tuple[str, int, int]  # name, capability (90), bytes


def driver(around: Surroundings) -> Found[tuple[int, list[Device]]]:
    """Finds the driver. Returns it with its version (such as 13000) and its devices."""
    return find(DRIVER, _native.cuda_driver, around)


def nvrtc(around: Surroundings, newest: int | None = None) -> Found[tuple[int, int, int]]:
    """Finds NVRTC. Returns it with its version and the lowest and highest compute capability that
    it compiles for."""
    return find(NVRTC, _native.cuda_nvrtc, around, newest)


def blaslt(around: Surroundings, newest: int | None = None) -> Found[int]:
    """Finds cuBLASLt. Returns it with its version, in its own numbering."""
    return find(CUBLASLT, _native.cuda_blaslt, around, newest)


NONE = "none"  # value of CUTBACK_CUBLASLT: matrix products use cutback's own kernels


def _there(path: str) -> str:
    """Checks that the file exists, without loading it: it has half a gigabyte, and only steps with
    matrix products need it. A bare name is loaded, because the loader has to find it."""
    if "/" in path and not Path(path).is_file():
        raise RuntimeError(f"the file {path} does not exist")
    if "/" not in path:
        _native.cuda_blaslt(path)
    return path


def products(around: Surroundings, newest: int | None = None) -> str | None:
    """Returns the file of cuBLASLt, or None if it was not found or CUTBACK_CUBLASLT is "none".

    Raises:
        LibraryError: if CUTBACK_CUBLASLT names a file that does not exist.
    """
    asked = around.environment.get(CUBLASLT.variable)
    if asked == NONE:
        return None
    try:
        return find(CUBLASLT, _there, around, newest).path
    except LibraryError:
        if asked:
            raise
        return None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _reason(error: LibraryError) -> str:
    """Says in one line why the last file that was tried could not be used."""
    tried = [place for place in error.places if place.path is not None]
    return (tried[-1].problem if tried else str(error)).splitlines()[0]


def _found(text: str, found: Found[Any], verbose: bool) -> str:
    """Returns ``text`` for a usable library; ``verbose`` adds the places that were searched."""
    return f"{text}\n{listed(found.places)}" if verbose else text


def _nvrtc_line(around: Surroundings, newest: int | None, verbose: bool) -> str:
    try:
        found = nvrtc(around, newest)
    except LibraryError as error:
        extra = f"cutback[cuda{min(newest or MAJORS[0], MAJORS[0])}]"
        return str(error) if verbose else f"{_reason(error)} (pip install {extra} installs NVRTC)"
    version, least, most = found.value
    text = f"{_version(version)} in {found.path}, for sm_{least} to sm_{most}"
    return _found(text, found, verbose)


def _blaslt_line(around: Surroundings, newest: int | None, verbose: bool) -> str:
    if around.environment.get(CUBLASLT.variable) == NONE:
        return f"not used: {CUBLASLT.variable}={NONE}"
    try:
        found = blaslt(around, newest)
    except LibraryError as error:
        return str(error) if verbose else f"{_reason(error)} (cutback's own kernels are used)"
    return _found(f"{found.value} in {found.path}", found, verbose)


def lines(verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Returns labels and values for ``cutback doctor``: the driver, its devices and each library.
    Without a usable driver, returns one line that says why. ``verbose`` adds all places that were
    searched, and the libraries even without a driver."""
    around, newest = surroundings(), None
    try:
        found = driver(around)
    except LibraryError as error:
        reason = f"no GPU is used: {_reason(error)} (--verbose lists where it was searched for)"
        yield "cuda driver", str(error) if verbose else reason
        if not verbose:
            return
    else:
        version, devices = found.value
        newest = version // 1000
        yield "cuda driver", _found(f"{_version(version)} in {found.path}", found, verbose)
        for name, capability, size in devices:
            yield "cuda device", f"{name}, sm_{capability}, {size / 2**30:.1f} GiB"
    yield "nvrtc", _nvrtc_line(around, newest, verbose)
    yield "cublasLt", _blaslt_line(around, newest, verbose)
