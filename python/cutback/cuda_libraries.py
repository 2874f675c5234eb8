"""Where NVIDIA's libraries are: the driver, NVRTC, cuBLASLt. Nothing of CUDA is linked, so each is
looked for at run time, in this order:

1. the file that an environment variable names (``CUTBACK_CUDA_DRIVER``, ``CUTBACK_NVRTC``,
   ``CUTBACK_CUBLASLT``);
2. what is mapped into the process already, by PyTorch or others;
3. what ``cuda.pathfinder`` finds, where that is installed (not for the driver);
4. NVIDIA's wheels beside this package, of CUDA 13 (one folder) and of 12 (a folder each);
5. the conda environment (``CONDA_PREFIX``);
6. a toolkit: ``CUDA_PATH``, ``CUDA_HOME``, ``/usr/local/cuda``;
7. the system's loader.

A library of a newer major version than the driver's cannot be used, and is passed over; so are the
stubs that a toolkit has to link with. Whatever was looked at is remembered, and an error says it.
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

MAJORS = (13, 12)  # of CUDA, the newest first


class LibraryError(RuntimeError):
    """A library was found nowhere, or none that can be used; the text lists every place.

    Attributes:
        places: the same places, with the problem of each.
    """

    def __init__(self, text: str, places: Sequence[Place] = ()) -> None:
        super().__init__(text)
        self.places = places


@dataclass(frozen=True)
class Library:
    """What a library is called: ``stem.13``, its folders in wheels by CUDA's major version, and its
    name for ``cuda.pathfinder``."""

    word: str
    variable: str
    stem: str
    wheels: Mapping[int, str]
    pathfinder: str | None = None

    def names(self, majors: Sequence[int]) -> list[str]:
        """File names, the newest first."""
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
    """What a search looks at. ``mapped``: files of the process's memory map; ``packages``: folders
    of installed packages; ``pathfinder``: from a library's name to its file, or an exception."""

    environment: Mapping[str, str]
    mapped: Sequence[str] = ()
    packages: Sequence[Path] = ()
    toolkit: Path = Path("/usr/local/cuda")
    pathfinder: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Place:
    """A place that was looked at: what it is, and the file there or why there is none."""

    what: str
    path: str | None
    problem: str = ""


@dataclass
class Found(Generic[T]):
    """A library that could be used: what it says of itself, and the places down to it."""

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
    """Those of this process."""
    folders = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    return Surroundings(os.environ, _mapped_files(), folders, pathfinder=_pathfinder())


def _in_folders(what: str, folders: Sequence[Path], names: Sequence[str]) -> Iterator[Place]:
    """The first file of each name in the folders, or that there is none."""
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
    except Exception as error:  # whatever it raises means that it has found none
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
    """Every place where a library may be, in order; those with a path are worth a try. ``newest``:
    the major version of CUDA that the driver serves; None: any."""
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
    """The places, one a line."""
    return "\n".join(f"  {place.what}: {place.problem or place.path}" for place in seen)


def find(
    library: Library,
    load: Callable[[str], T],
    around: Surroundings,
    newest: int | None = None,
) -> Found[T]:
    """The first file that ``load`` takes. LibraryError lists all places, if it takes none. A file
    that the environment variable names is taken, or is the error: nothing else is tried."""
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
    text = f"{library.word} was not found, or none that can be used:\n{listed(seen)}"
    raise LibraryError(text, seen)


Device = tuple[str, int, int]  # name, capability (90), bytes


def driver(around: Surroundings) -> Found[tuple[int, list[Device]]]:
    """The driver: version (13000) and devices."""
    return find(DRIVER, _native.cuda_driver, around)


def nvrtc(around: Surroundings, newest: int | None = None) -> Found[tuple[int, int, int]]:
    """NVRTC: version, least and most capability that it compiles for."""
    return find(NVRTC, _native.cuda_nvrtc, around, newest)


def blaslt(around: Surroundings, newest: int | None = None) -> Found[int]:
    """cuBLASLt: version, as it counts."""
    return find(CUBLASLT, _native.cuda_blaslt, around, newest)


NONE = "none"  # for CUTBACK_CUBLASLT: products by our own kernels


def _there(path: str) -> str:
    """A file that is there: it has half a gigabyte, and is opened for steps with products alone."""
    if "/" in path and not Path(path).is_file():
        raise RuntimeError(f"there is no file {path}")
    if "/" not in path:
        _native.cuda_blaslt(path)
    return path


def products(around: Surroundings, newest: int | None = None) -> str | None:
    """The file of cuBLASLt; None: there is none, or CUTBACK_CUBLASLT asks for none.

    Raises:
        LibraryError: CUTBACK_CUBLASLT names what is not there.
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
    """Why the last file that was tried could not be used, in one line."""
    tried = [place for place in error.places if place.path is not None]
    return (tried[-1].problem if tried else str(error)).splitlines()[0]


def _found(text: str, found: Found[Any], verbose: bool) -> str:
    """A library that can be used; ``verbose`` adds the places that were looked at."""
    return f"{text}\n{listed(found.places)}" if verbose else text


def _nvrtc_line(around: Surroundings, newest: int | None, verbose: bool) -> str:
    try:
        found = nvrtc(around, newest)
    except LibraryError as error:
        extra = f"cutback[cuda{min(newest or MAJORS[0], MAJORS[0])}]"
        return str(error) if verbose else f"{_reason(error)} (pip install {extra} has NVRTC)"
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
    """(what, value) for ``cutback doctor``: the driver, its devices and each library. Without a GPU
    this is one line that says why. ``verbose`` adds every place that was looked at, and the
    libraries in any case."""
    around, newest = surroundings(), None
    try:
        found = driver(around)
    except LibraryError as error:
        reason = f"no GPU is used: {_reason(error)} (--verbose lists where it was looked for)"
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
