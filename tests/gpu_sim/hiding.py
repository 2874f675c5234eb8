"""Simulates machines on which something is missing or broken, by environment changes that hide it
from a program and from everything that the program starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import nvrtc
from client import BUILD, build

HERE = Path(__file__).parent

BLOCKING = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocked())
"""
HEADERLESS = """
import sysconfig

for scheme in sysconfig._INSTALL_SCHEMES.values():
    for key in ("include", "platinclude"):
        if key in scheme:
            scheme[key] = {empty!r}
for key in ("INCLUDEPY", "CONFINCLUDEPY", "INCLUDEDIR", "CONFINCLUDEDIR"):
    sysconfig.get_config_vars()[key] = {empty!r}
"""


def _at_start(folder: Path, code: str) -> dict[str, str]:
    """Makes every Python process run some code first."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path}


def without_modules(folder: Path, *names: str) -> dict[str, str]:
    """Hides Python modules, which then cannot be imported."""
    return _at_start(folder / "blocked", BLOCKING.format(names=set(names)))


def without_python_header(folder: Path) -> dict[str, str]:
    """Hides Python's C headers."""
    empty = folder / "no_headers"
    empty.mkdir()
    return _at_start(folder / "headerless", HEADERLESS.format(empty=str(empty)))


def without_programs(folder: Path, *names: str) -> dict[str, str]:
    """Returns a PATH that has everything on it except some programs."""
    programs = folder / "programs"
    programs.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        for file in sorted(Path(entry).glob("*")) if Path(entry).is_dir() else ():
            link = programs / file.name
            if file.name not in names and not link.is_symlink():
                link.symlink_to(file)
    return {"PATH": str(programs)}


def with_program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Adds a program that comes before others of its name."""
    programs = folder / "more_programs"
    programs.mkdir(exist_ok=True)
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)
    return {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}


def without_home() -> dict[str, str]:
    """Sets a home folder in which nobody can create a file, not even root."""
    return {"HOME": "/proc/sys", "XDG_CACHE_HOME": ""}


def without_builtins(folder: Path) -> dict[str, str]:
    """Hides the library of NVRTC's built-in headers."""
    library = nvrtc.library()
    assert library is not None
    copied = folder / library.name
    shutil.copy(library, copied)
    return {"CUTBACK_NVRTC": str(copied)}


def broken_driver(folder: Path, how: str, item: str = "") -> dict[str, str]:
    """Puts the stand-in behind a driver that hangs, faults or belongs to another process
    (broken/broken.c). ``item`` limits that to processes that run this item of the ladder."""
    behind, made = build(), folder / "libbroken.so"
    source = HERE / "broken" / "broken.c"
    command = [
        os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
        "-shared", "-fPIC", "-o", str(made), f'-DBEHIND="{behind}"', str(source),
        "-Wl,--no-as-needed", str(behind), f"-Wl,-rpath,{BUILD}", "-ldl",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    found = {"CUTBACK_CUDA_DRIVER": str(made), "CUTBACK_BROKEN": how}
    return found | ({"CUTBACK_BROKEN_ITEM": item} if item else {})


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment with the changes. An empty value removes a variable."""
    return {k: v for k, v in (os.environ | dict(changes)).items() if v or k not in changes}
