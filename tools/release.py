#!/usr/bin/env python3
"""Builds the files of a release, and checks them.

    tools/release.py [--dry] [DIST]

Writes the archive of sources and a wheel that is built from it to DIST (default: dist), installs
the wheel in an empty environment, runs `cutback doctor` there and lists the files. Refuses a dirty
checkout and a version that the changelog does not date; with --dry these are warnings. RELEASING.md
says when to run it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"release: {' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def version() -> str:
    header = (ROOT / "csrc/include/cutback.h").read_text(encoding="utf-8")
    parts = re.findall(r"#define CB_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    return ".".join(parts)


def reasons_to_wait(number: str) -> list[str]:
    """Returns what must be done before this version is released."""
    found = []
    changed = run("git", "status", "--porcelain").splitlines()
    if changed:
        found.append(f"the checkout has {len(changed)} changed files: commit them")
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(number)} \(\d{{4}}-\d\d-\d\d\)$", log, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## {number} (YYYY-MM-DD)'")
    tag = f"v{number}"
    if run("git", "tag", "--list", tag).strip():
        found.append(f"the tag {tag} exists: this version is released")
    return found


def build(number: str, dist: Path) -> tuple[Path, Path]:
    """Returns the archive, and the wheel built from it."""
    archive = dist / f"cutback-{number}.tar.gz"
    others = [p.name for p in dist.glob("*") if not p.name.startswith(f"cutback-{number}")]
    if others:
        sys.exit(f"release: {dist} has files of another version: delete or move {others[0]}")
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(dist)!r})"
    run(sys.executable, "-c", code)
    commit = run("git", "rev-parse", "--short=10", "HEAD").strip()
    define = f"cmake.define.CB_COMMIT={commit}"
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps")
        run(*pip, "-C", define, "-w", folder, archive)
        (made,) = Path(folder).glob("*.whl")
        return archive, Path(shutil.move(made, dist / made.name))


def check(number: str, wheel: Path) -> None:
    """Installs the wheel in an empty environment and tests it there."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        venv.create(empty / "venv", with_pip=True)
        python = empty / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", wheel, cwd=empty)
        said = run(python, "-m", "cutback", "--version", cwd=empty)
        if not said.startswith(f"cutback {number} (commit "):
            sys.exit(f"release: the wheel says {said.strip()!r}, not version {number}")
        sys.stdout.write(run(python, "-m", "cutback", "doctor", cwd=empty))


def main(arguments: list[str]) -> None:
    dry = "--dry" in arguments
    places = [a for a in arguments if a != "--dry"]
    dist = Path(places[0] if places else ROOT / "dist").resolve()
    number = version()
    for reason in reasons_to_wait(number):
        if not dry:
            sys.exit(f"release: {reason}")
        print(f"warning: {reason}")
    dist.mkdir(parents=True, exist_ok=True)
    files = build(number, dist)
    check(number, files[1])
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.stat().st_size:>9} bytes  sha256 {digest}  {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
