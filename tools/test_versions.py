"""Runs the Python tests and those of the bridge with several versions of Python and PyTorch.

    python3 tools/test_versions.py                      all pairs
    python3 tools/test_versions.py 3.11=2.13.0 3.12=    some; "3.12=": without PyTorch
    python3 tools/test_versions.py 3.13= --tests tests/python/doors    a part of the tests

Each pair has a virtual environment of its own in build/versions, in which the package is built. A
pair that is not available here is listed as not run, with the reason: this Python is not installed,
there is no such wheel, or only one that needs the libraries of CUDA (several gigabytes;
--cuda-builds accepts it). The exit status is 1 if tests fail, and 2 if no pair was run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent
PAIRS = [f"{python}={torch}" for torch in ("2.13.0", "2.14.1")
         for python in ("3.11", "3.12", "3.13")]  # fmt: skip
WITHOUT_TORCH = ("tests/python", "tests/plan", "tests/gpu_sim")
WITH_TORCH = ("tests/torch",)


class NotHereError(Exception):
    """The reason why a pair cannot run on this machine."""


def python_of(version: str) -> str:
    """Returns the interpreter of a version: on the path, or from pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [which(f"python{version}"), *sorted(root.glob(f"versions/{version}*/bin/python3"))]
    for path in filter(None, found):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        told = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if told.returncode == 0 and told.stdout.strip() == version:
            return str(path)
    raise NotHereError(f"there is no Python {version}")


def check_torch(python: Path, torch: str) -> None:
    """Asks pip which build of PyTorch it would install.

    Raises:
        NotHereError: there is none, or only one that needs the libraries of CUDA.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        told = subprocess.run(
            [python, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed",
             "--report", report, f"torch=={torch}"],
            capture_output=True, text=True,
        )  # fmt: skip
        if told.returncode:
            raise NotHereError(f"pip finds no torch {torch} for it")
        (found,) = json.loads(report.read_text())["install"]
    needed = found["metadata"].get("requires_dist", [])
    if any(name.startswith(("nvidia-", "cuda-")) for name in needed):
        raise NotHereError(f"the only build of torch {torch} that pip finds needs CUDA")


def prepare(pair: str, cuda_builds: bool) -> Path:
    """Returns the interpreter of a pair's environment, with the package and the requirements of its
    tests."""
    version, _, torch = pair.partition("=")
    folder = ROOT / "build" / "versions" / pair.rstrip("=").replace("=", "-torch-")
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([python_of(version), "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "-q"]
    if torch and not cuda_builds:
        check_torch(python, torch)
    needed = ["-r", "requirements/build.txt", "-r", "requirements/test.txt"]
    if torch:
        lines = (ROOT / "requirements" / "torch.txt").read_text().splitlines()
        needed += [f"torch=={torch}", *(x for x in lines if not x.startswith("torch=="))]
    subprocess.run([*pip, *needed], cwd=ROOT, check=True)
    tree = f"build-dir={folder / 'tree'}"
    package = ["--no-build-isolation", "--no-deps", "--force-reinstall", "-C", tree, "."]
    subprocess.run([*pip, *package], cwd=ROOT, check=True)
    return python


def run(python: Path, runs: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Returns whether all tests pass, and pytest's summary line, for each of ``runs``."""
    words, passed = [], True
    for tests in runs:
        command = [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *tests]
        told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(told.stdout, flush=True)
        passed &= told.returncode == 0
        words.append((told.stdout.strip().splitlines() or ["no output"])[-1].strip("= "))
    return passed, "; ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="PYTHON=TORCH")
    parser.add_argument("--cuda-builds", action="store_true", help="also where CUDA comes with it")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="these, in place of all")
    given = parser.parse_args()
    rows, failed, ran = [], False, 0
    for pair in given.pairs:
        try:
            runs = (WITHOUT_TORCH, WITH_TORCH)[: 1 if pair.endswith("=") else 2]
            python = prepare(pair, given.cuda_builds)
            passed, words = run(python, [given.tests] if given.tests else runs)
            failed, ran = failed or not passed, ran + 1
        except NotHereError as reason:
            words = f"not run: {reason}"
        rows.append((pair, words))
    for pair, words in rows:
        version, _, torch = pair.partition("=")
        print(f"Python {version}, {'torch ' + torch if torch else 'no torch'}: {words}")
    return 1 if failed else 0 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
