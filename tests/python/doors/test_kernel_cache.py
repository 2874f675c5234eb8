"""`cutback cache` on folders prepared by somebody else: it counts and deletes only files written by
the core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutback import cli, cuda

CODE = "0" * 62 + ".bin"
SOURCE = "a" * 64 + ".cu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an empty cache that the process uses."""
    made = tmp_path / "kernels"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(made))
    return made


def write(path: Path, text: str = "12345678") -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o777])
@pytest.mark.parametrize("link", ["failed", "sources", "ab"])
def test_links_lead_to_no_deletion(folder: Path, tmp_path: Path, link: str, mode: int) -> None:
    """The targets of links are not deleted, even if they have names like ours."""
    names = (CODE, SOURCE, "a" * 64 + ".log", "thesis.tex", "model.cu", "weights.bin", "notes")
    precious = [write(tmp_path / "mine" / name) for name in names]
    (folder / link).symlink_to(tmp_path / "mine")
    folder.chmod(mode)
    assert cuda.cache_info().files == 0
    assert cli.main(["cache", "clear"]) == (0 if mode == 0o700 else 2)
    assert all(path.exists() for path in precious)
    assert (folder / link).is_symlink()


def test_linked_files_are_left(folder: Path, tmp_path: Path) -> None:
    precious = write(tmp_path / "weights.bin")
    (folder / "ab").mkdir()
    (folder / "ab" / CODE).symlink_to(precious)
    (folder / "failed").mkdir()
    (folder / "failed" / SOURCE).symlink_to("/nowhere")
    assert cuda.cache_clear().files == 0
    assert precious.exists() and (folder / "ab" / CODE).is_symlink()


def test_files_of_the_user_are_left(folder: Path) -> None:
    """A project's folder may be named `sources`, like ours."""
    ours = [
        write(folder / "ab" / CODE),
        write(folder / "sources" / SOURCE),
        write(folder / "failed" / SOURCE),
        write(folder / "failed" / SOURCE.replace(".cu", ".log")),
        write(folder / "writing-Ab3dE9"),
    ]
    theirs = [
        write(folder / "mine.txt"),
        write(folder / "writing-a-thesis"),
        write(folder / "ab" / "weights.bin"),
        write(folder / "sources" / "kernel.cu"),
        write(folder / "failed" / "notes.txt"),
        write(folder / "cd" / "weights.bin"),
        write(folder / "abc" / CODE),
    ]
    (folder / "failed" / SOURCE.replace("a", "b")).mkdir()  # a folder instead of a file
    assert (cuda.cache_info().files, cuda.cache_info().bytes) == (5, 40)
    assert cuda.cache_clear().files == 5
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in theirs)
    assert cuda.cache_info().files == 0


def test_empty_subfolders_go(folder: Path) -> None:
    for path in (folder / "ab" / CODE, folder / "sources" / SOURCE, folder / "failed" / SOURCE):
        write(path)
    cuda.cache_clear()
    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_cleared(
    folder: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = write(folder / "ab" / CODE)
    folder.chmod(mode)
    assert "others may write it" in cuda.cache_info().problem
    with pytest.raises(PermissionError, match="was not cleared: others may write it"):
        cuda.cache_clear()
    assert cli.main(["cache", "clear"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "was not cleared" in err and err.count("\n") == 1
    assert kept.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_not_cleared(folder: Path) -> None:
    kept = write(folder / "ab" / CODE)
    os.chown(folder / "ab", 12345, 12345)
    assert cuda.cache_clear().files == 0
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cuda.cache_clear()
    assert kept.exists()


def test_places_that_are_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    write(tmp_path / "file")
    for name, problem in {"loop": "symbolic links", "file": "not a directory"}.items():
        monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path / name))
        assert problem in cuda.cache_info().problem
        assert cli.main(["cache", "clear"]) == 2
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path / "nothing"))
    assert cli.main(["cache", "info"]) == cli.main(["cache", "clear"]) == 0
    assert not (tmp_path / "nothing").exists()
    monkeypatch.setenv("CUTBACK_CACHE_DIR", str(tmp_path / "\x1b]0;own\x07dir"))
    capsys.readouterr()
    assert cli.main(["cache", "info"]) == 0
    assert "\x1b" not in capsys.readouterr().out
