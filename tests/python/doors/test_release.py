"""Tests the contents of a release: the archive of sources, and a wheel built from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_BYTES = 2_500_000
FILES = {"CHANGELOG.md", "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md"}
FOLDERS = {"cmake", "csrc", "cuda", "python", "tests"}


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Builds the archive in a copy of the checkout that also contains a developer's files: an
    environment, a build, an interpreter's cache."""
    pytest.importorskip("scikit_build_core")
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    folder = tmp_path_factory.mktemp("release")
    checkout = folder / "checkout"
    run("git", "clone", "-q", "--no-hardlinks", ROOT, checkout, cwd=ROOT)
    (checkout / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for name in (
        ".venv/bin/python",
        ".venv/lib/python/csrc/a.c",
        "build/package/cuda/a.c",
        "dist/cutback.whl",
        "python/cutback/__pycache__/a.pyc",
        "python/cutback/_native.cpython-311-x86_64-linux-gnu.so",
    ):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes(os.urandom(3_000_000))
    build = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=checkout)
    (found,) = folder.glob("*.tar.gz")
    return found


def test_an_archive_has_the_sources_and_no_more(archive):
    with tarfile.open(archive) as tar:
        names = {Path(*Path(name).parts[1:]) for name in tar.getnames()}
    top = {name.parts[0] for name in names}
    assert top == FILES | FOLDERS | {"PKG-INFO", "pyproject.toml"}
    assert not [name for name in names if name.suffix in (".pyc", ".so")]
    tests = {name.parts[1] for name in names if name.parts[0] == "tests"}
    assert "python" in tests and "c" in tests and not tests & {"data", "gpu_sim", "plan"}
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    assert {str(name) for name in names} - set(tracked) == {"PKG-INFO"}
    for folder in ("cmake", "csrc", "cuda", "python"):
        missing = {n for n in tracked if n.startswith(f"{folder}/")} - {str(n) for n in names}
        assert not missing
    assert archive.stat().st_size <= MOST_BYTES


def test_fast_tests_of_an_archive_read_what_it_has(archive):
    """Others are left out, or skipped if the folder does not exist."""
    with tarfile.open(archive) as tar:
        files = {str(Path(*Path(m.name).parts[1:])): m for m in tar.getmembers()}
        tests = [name for name in files if re.fullmatch(r"tests/python/.*test_\w+\.py", name)]
        texts = {name: tar.extractfile(files[name]).read().decode() for name in tests}
    assert len(tests) > 80
    for name, text in texts.items():
        for above, found in re.findall(r'parents\[(\d)\] / "([^"]+)"', text):
            path = str(Path(name).parents[int(above)] / found)
            here = any(other.startswith(path) for other in files)
            assert here or "exists()" in text or "very_slow" in text, f"{name} reads {path}"


@pytest.mark.very_slow
def test_a_wheel_is_built_from_the_archive_alone(archive, tmp_path):
    """The environment is empty: pip installs the build requirements, and NumPy, which the wheel
    needs."""
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, archive, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 4_000_000
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    run(python, "-m", "cutback", "doctor", cwd=tmp_path)
