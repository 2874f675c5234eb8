"""Tests the patches of docs/extending. Each applies to this tree, touches the places that
ARCHITECTURE.md lists, and (very slow) builds and passes the tests that it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATCHES = sorted((ROOT / "docs" / "extending").glob("*.patch"))
CORES = str(os.cpu_count() or 1)

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no git checkout"
)


def _run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}"
    return done.stdout


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _tests(text: str, kind: str) -> list[str]:
    found = re.search(rf"^{kind}: (.*)$", text, re.MULTILINE)
    return found[1].split() if found else []


def test_there_are_patches() -> None:
    assert [patch.stem for patch in PATCHES] == ["kernel", "move", "op", "policy"]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_applies_and_is_what_the_map_says(patch: Path) -> None:
    _run("git", "apply", "--check", patch, cwd=ROOT)
    touched = set(re.findall(r"^\+\+\+ b/(.*)$", patch.read_text(), re.MULTILINE))
    rows = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("|") and f"`{patch.stem}.patch`" in row]
    cell = row.split("|")[2]
    assert set(re.findall(r"`([^`]+)`", cell)) == touched


@pytest.mark.very_slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_builds_and_passes(patch: Path, tmp_path: Path) -> None:
    tree, build, site = tmp_path / "tree", tmp_path / "build", tmp_path / "site"
    for name in _run("git", "ls-files", cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    _run("git", "apply", patch, cwd=tree)
    text = patch.read_text()
    c_tests = [f"test_{name}" for name in _tests(text, "ctest")]
    if c_tests:
        _run(_tool("cmake"), "-G", "Ninja", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
             "-DCB_TESTS=ON", cwd=tree)  # fmt: skip
        _run(_tool("cmake"), "--build", build, "-j", CORES, "--target", *c_tests, cwd=tree)
        names = f"^({'|'.join(c_tests)})$"
        said = _run(_tool("ctest"), "--test-dir", build, "-j", CORES, "-R", names, cwd=tree)
        assert f"100% tests passed, 0 tests failed out of {len(c_tests)}" in said or (
            f"100% tests passed out of {len(c_tests)}" in said
        )
    py_tests = _tests(text, "pytest")
    if py_tests:
        _run(sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps",
             "--target", site, tree, cwd=tree)  # fmt: skip
        said = _run(sys.executable, "-m", "pytest", "-q", *py_tests, cwd=tree, PYTHONPATH=str(site))
        assert re.search(r"\d+ passed", said)
    assert c_tests or py_tests
