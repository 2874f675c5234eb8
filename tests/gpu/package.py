"""Finds or builds the package for the Python that runs this, without installing anything.

python package.py --list build     python package.py --item package

``build/gpu/package`` is used if it loads in this Python and was built from the same sources. Its
``made_from.json`` records them with the commit, so a folder without ``.git`` knows its commit too.
Otherwise CMake builds it. If that fails, a package built from other sources, or an installed one,
is used with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import items

SOURCES = ("csrc", "cuda", "cmake", "python", "CMakeLists.txt", "pyproject.toml")
SUFFIXES = {".c", ".h", ".def", ".cu", ".cuh", ".py", ".pyi", ".txt", ".toml", ".in", ".cmake"}


def folder() -> Path:
    """Returns the folder of results and package: `build/gpu`, unless CUTBACK_GPU_FOLDER is set."""
    return Path(os.environ.get("CUTBACK_GPU_FOLDER") or ROOT / "build" / "gpu")


def sources() -> str:
    """Returns a hash of everything that the package is built from."""
    digest = hashlib.sha256()
    for top in SOURCES:
        path = ROOT / top
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and file.suffix in SUFFIXES:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git(*arguments: str) -> str | None:
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def made_from(package: Path) -> dict[str, Any]:
    """Returns the sources recorded in a package."""
    try:
        read: dict[str, Any] = json.loads((package / "made_from.json").read_text(encoding="utf-8"))
        return read
    except (OSError, ValueError):
        return {}


def commit() -> str:
    """Returns the commit, and whether the files differ from it. Without `.git`, or with the `.git`
    of an older commit, a carried package that was built from these sources gives the commit."""
    carried = made_from(folder() / "package")
    if (ROOT / ".git").exists() and (head := _git("rev-parse", "HEAD")):
        if not _git("status", "--porcelain"):
            return f"{head[:12]} clean"
        if carried.get("sources") != sources() or "dirty" in carried.get("commit", "dirty"):
            return f"{head[:12]} dirty"
    if not carried:
        return "unknown: there is no .git here, and no package that names a commit"
    if carried["sources"] == sources():
        return str(carried["commit"])
    return f"unknown: there is no .git here, and the sources are not those of {carried['commit']}"


def problem(package: Path | None) -> str:
    """Returns the reason why this Python cannot use a package, or "". None means the installed
    one."""
    variables = dict(os.environ)
    if package is not None:
        if not (package / "cutback").is_dir():
            return f"there is no {package}"
        variables["PYTHONPATH"] = os.pathsep.join([str(package), variables.get("PYTHONPATH", "")])
    check = "import cutback._native as n; print(n.__file__)"
    command = [sys.executable, "-c", check]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it does not load"])[-1]
    if package is not None and not done.stdout.startswith(str(package)):
        return f"{done.stdout.strip()} is loaded in its place"
    return ""


def _run(*command: str) -> None:
    print("$", *command, file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=sys.stderr)


def build(package: Path) -> None:
    """Builds the package. Raises CalledProcessError or OSError if it cannot be built here."""
    tree = package.parent.with_name(package.parent.name + "-tree")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DCB_PYTHON=ON", "-DCB_TESTS=OFF"]
    if shutil.which("ninja") and not (tree / "Makefile").exists():
        options += ["-G", "Ninja"]
    _run(
        "cmake", "-S", str(ROOT), "-B", str(tree), f"-DPython_EXECUTABLE={sys.executable}", *options
    )
    _run("cmake", "--build", str(tree), "--target", "_native", "-j", str(os.cpu_count() or 1))
    aside = package.with_name("package.writing")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(
        ROOT / "python" / "cutback", aside / "cutback", ignore=shutil.ignore_patterns("__pycache__")
    )
    (module,) = tree.rglob("_native.*so")
    shutil.copy(module, aside / "cutback")
    if strip := shutil.which("strip"):
        subprocess.run([strip, str(aside / "cutback" / module.name)], check=False)
    described = {"commit": commit(), "sources": sources(), "python": sys.version.split()[0]}
    (aside / "made_from.json").write_text(json.dumps(described) + "\n", encoding="utf-8")
    shutil.rmtree(package, ignore_errors=True)
    aside.rename(package)


def package() -> dict[str, Any]:
    """Returns facts about the package: ``package``, its folder, or "" if it is installed; its
    origin; and warnings."""
    if os.environ.get("CUTBACK_GPU_INSTALLED"):
        if why := problem(None):
            raise SystemExit(f"the installed package does not load: {why}")
        return {"package": "", "how": "the installed one"}
    here = folder() / "package"
    carried, why = made_from(here), problem(here)
    if not why and carried.get("sources") == sources():
        return {"package": str(here), "how": f"carried, of {carried['commit']}"}
    why = why or f"it was made from other sources, of {carried.get('commit', 'an unknown commit')}"
    print(f"the carried package is not taken: {why}", file=sys.stderr, flush=True)
    try:
        fresh = here if not carried or problem(here) else here.with_name("package-here")
        build(fresh)
        if why_not := problem(fresh):
            raise SystemExit(f"what was built does not load: {why_not}")
        if fresh != here:
            shutil.rmtree(here)
            fresh.rename(here)
        return {"package": str(here), "how": f"built here ({why})"}
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        for other, how in ((here, "carried, of other sources"), (None, "the installed one")):
            if not problem(other):
                warning = f"it cannot be built here ({error}); taken: {how}"
                return {"package": str(other or ""), "how": how, "warning": warning}
        raise


if __name__ == "__main__":
    sys.exit(items.main({"build": lambda: {"package": (1800, package)}}))
