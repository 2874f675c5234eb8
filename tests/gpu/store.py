"""Results of items, and the archive that carries them from one call to the next.

``state.json`` has, for each stage and item, a record for each pair of card and sources: results of
one card or commit never replace those of another. It is written after each item, first under a
temporary name, so that a killed run leaves the last complete one. The archive contains the folder
and is written in the same way; once it is unpacked in ``build/gpu``, another call continues from
it, on this machine or another.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST = 15 << 20  # size of the archive: some machines return at most 16 MiB
LONGEST = 256 << 10  # size of a log file in the archive
ARCHIVE, REPORT = "gpu.tgz", "report.txt"
CACHES = ("torch", "triton", "kernels")  # dropped in this order if the archive is too large
Record = dict[str, Any]


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step."""
    aside = path.with_name(path.name + ".writing")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        _remove(aside)
        raise


def _remove(file: Path) -> None:
    """Removes a file if possible."""
    with contextlib.suppress(OSError):
        file.unlink()


def _checked(read: Any) -> dict[str, Any]:
    """Returns the state as read. ValueError: it does not have the form that runs write."""
    state = _typed(read, dict, "the state")
    runs = _typed(state.get("runs"), list, "runs")
    results = _typed(state.get("results"), dict, "results")
    for number, run in enumerate(runs):
        _typed(run, dict, f"run {number}")
        for stage, names in _typed(run.get("items", {}), dict, f"items of run {number}").items():
            for name in _typed(names, list, f"items of {stage}"):
                _typed(name, str, f"an item of {stage}")
    for stage, items in results.items():
        for item, records in _typed(items, dict, f"results of {stage}").items():
            for record in _typed(records, list, f"results of {stage} {item}"):
                _check_record(record, f"a result of {stage} {item}", len(runs))
    return {"runs": runs, "results": results}


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{what}: expected {kind.__name__}, got {str(value)[:40]!r}")
    return value


def _check_record(record: Any, what: str, runs: int) -> None:
    _typed(record, dict, what)
    if record.get("status") not in ("ok", "failed", "cut"):
        raise ValueError(f"{what}: unknown status {str(record.get('status'))[:40]!r}")
    if type(record.get("run")) is not int or not 0 <= record["run"] < runs:
        raise ValueError(f"{what}: there is no run {str(record.get('run'))[:40]!r}")
    for key in ("card", "sources"):
        if key not in record:
            raise ValueError(f"{what}: {key} is missing")
        if record[key] is not None:
            _typed(record[key], str, f"{key} of {what}")
    _typed(record.get("cuts", 0), int, f"cuts of {what}")
    if record.get("value") is not None:
        _typed(record["value"], dict, f"value of {what}")


def usable(folder: Path) -> bool:
    """True if files can be written there; makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def own(folder: Path) -> None:
    """Makes a folder that belongs to us and that nobody else can write, as caches of code require.
    A folder that was unpacked or carried may belong to another user."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        aside = folder.with_name(folder.name + ".own")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(folder, aside)
        shutil.rmtree(folder)
        aside.rename(folder)
    folder.chmod(0o700)


class Store:
    """The folder of one ladder: ``state.json``, ``logs``, ``errors``, ``package``, ``caches``."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.state: dict[str, Any] = {"runs": [], "results": {}}
        self.notes: list[str] = []
        self.written: list[Path] = []  # by the last call of `archive`
        # the reason why the state, or a part of the last `archive`, could not be written
        self.problem = ""
        self._said = ""
        file = folder / "state.json"
        if file.exists():
            try:
                self.state = _checked(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, RecursionError) as error:
                aside = file.with_suffix(".damaged")
                self.notes.append(
                    f"{file} is damaged ({error}); it is now {aside.name}, and all stages run again"
                )
                file.replace(aside)
        self._left_out: tuple[str, ...] = ()

    @property
    def run(self) -> Record:
        """Returns the facts about the present run."""
        run: Record = self.state["runs"][-1]
        return run

    def start(self, run: Record) -> None:
        """Begins another run. ``ended`` stays None if the run is killed."""
        self.state["runs"].append({**run, "ended": None})
        self.save()

    def records(self, stage: str, item: str) -> list[Record]:
        """Returns an item's results, one for each card and state of the sources."""
        records: list[Record] = self.state["results"].get(stage, {}).get(item, [])
        return records

    def now(self, stage: str, item: str) -> Record | None:
        """Returns the result of the present run."""
        number = len(self.state["runs"]) - 1
        return next((r for r in self.records(stage, item) if r["run"] == number), None)

    def here(self, stage: str, item: str) -> Record | None:
        """Returns the result for the present card and sources. While the card is unknown, only
        results of the present run count, because earlier ones may be from another machine."""
        if self.run.get("card") is None:
            return self.now(stage, item)
        return self.now(stage, item) or self._same(stage, item)

    def _same(self, stage: str, item: str) -> Record | None:
        """Returns the result with the same card (both may be unknown) and sources."""
        key = (self.run.get("card"), self.run.get("sources"))
        for record in self.records(stage, item):
            if (record["card"], record["sources"]) == key:
                return record
        return None

    def put(self, stage: str, item: str, record: Record) -> None:
        """Stores a result. A result that was cut short keeps the content of an earlier one."""
        run = self.run
        record |= {key: run.get(key) for key in ("card", "sources", "commit")}
        record["run"] = len(self.state["runs"]) - 1
        known, old = self.here(stage, item), self._same(stage, item)
        records = self.state["results"].setdefault(stage, {}).setdefault(item, [])
        if old is not None:
            records.remove(old)
        known = known or {}
        record["cuts"] = known.get("cuts", 0) + (record["status"] == "cut")
        if record.get("value") is None and known.get("value") is not None:
            record["value"] = known["value"]
        records.append(record)
        self.save()

    def save(self) -> None:
        """Writes the state. If that fails, the run continues and reports it at the end."""
        try:
            write_text(self.folder / "state.json", json.dumps(self.state, indent=1) + "\n")
        except OSError as error:
            self._cannot_write(self.folder, error)

    def _cannot_write(self, folder: Path, error: OSError) -> None:
        self.problem = f"cannot write to {folder}: {error}"
        if self.problem != self._said:
            print(self.problem, flush=True)
        self._said = self.problem

    # The archive

    def _members(self) -> Iterator[Path]:
        left_out = {self.folder / "caches" / name for name in self._left_out}
        left_out |= {self.out, self.folder / "out"}
        for top, folders, files in os.walk(self.folder):
            at = Path(top)
            folders[:] = sorted(
                name for name in folders if name != "__pycache__" and at / name not in left_out
            )
            yield from (at / name for name in sorted(files) if not name.endswith(".writing"))

    def _write(self, path: Path) -> None:
        with tarfile.open(path, "w:gz", compresslevel=5) as archive:
            for file in self._members():
                name = str(file.relative_to(self.folder))
                try:
                    if file.stat().st_size > LONGEST and name.startswith("logs/"):
                        _add_ends(archive, file, name)
                    else:
                        archive.add(file, name, recursive=False, filter=_nobody)
                except OSError:  # caches change while they are being read
                    continue

    def archive(self, report: str) -> None:
        """Writes the state, the report and the archive. A failure is printed but stops nothing;
        ``written`` names the new files in ``out``."""
        self.problem, self.written, aside = "", [], self.out / (ARCHIVE + ".part")
        self.save()
        try:
            write_text(self.out / REPORT, report)
            self.written.append(self.out / REPORT)
            write_text(self.folder / REPORT, report)
            while True:
                self._write(aside)
                rest = [name for name in CACHES if name not in self._left_out]
                if aside.stat().st_size <= MOST or not rest:
                    break
                self._left_out = (*self._left_out, rest[0])
                self.notes.append(f"the archive leaves out caches/{rest[0]}: it is too large")
            aside.replace(self.out / ARCHIVE)
            self.written.append(self.out / ARCHIVE)
        except OSError as error:
            _remove(aside)
            self._cannot_write(self.out, error)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add_ends(archive: tarfile.TarFile, file: Path, name: str) -> None:
    """Adds the first and last part of a long file."""
    import io

    with file.open("rb") as stream:
        first = stream.read(LONGEST // 2)
        stream.seek(-LONGEST // 2, os.SEEK_END)
        data = first + b"\n... left out ...\n" + stream.read()
    member = archive.gettarinfo(str(file), name)
    member.size = len(data)
    archive.addfile(_nobody(member), io.BytesIO(data))
