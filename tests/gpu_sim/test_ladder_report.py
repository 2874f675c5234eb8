"""The report of the ladder for people with a GPU (tests/gpu): its first ten lines, how runs ended,
and errors about arguments, folders and damaged results."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import report
from ladder import Ladder
from stages import STAGES
from store import Store


def _store(folder: Path) -> Store:
    (folder / "out").mkdir(parents=True, exist_ok=True)
    return Store(folder, folder / "out")


# The first ten lines

STEPS = ("kernel", "product", "update", "stream", "dlpack", "index", "torch")


def _screen(store: Store) -> dict[str, str]:
    return {line[:13].strip(): line[13:] for line in report.first_screen(store)}


def _on_card(folder: Path, steps: tuple[str, ...] = STEPS) -> Store:
    """Makes a run on card A in which some first steps and a check passed."""
    store = _store(folder)
    store.start({"card": None, "sources": "1", "commit": "c"})
    store.put("facts", "card", {"status": "ok", "value": {"card": "card A"}})
    store.run.update(card="card A", items={"smoke": list(STEPS), "checks": ["row 1"]})
    libraries = {"libraries": ("torch",)}
    for stage, names in {"smoke": steps, **libraries, "checks": ("row 1",)}.items():
        for name in names:
            store.put(stage, name, {"status": "ok", "value": {"outputs": 2, "equal": 2}})
    store.run["ended"] = ""
    store.save()
    return store


def test_the_header_does_not_credit_a_machine_with_results_of_another(tmp_path: Path) -> None:
    assert _screen(_on_card(tmp_path))["works"] == "yes: of the first steps 7 pass"
    why = "libcuda.so.1: cannot open shared object file"
    for failed in (why, ""):  # no card; no time for the facts
        store = _store(tmp_path)
        store.start({"card": None, "sources": "1", "commit": "c"})
        if failed:
            store.put("facts", "card", {"status": "failed", "failed": failed, "value": None})
        found = _screen(store)
        expected = failed or "the first steps did not run"
        assert found["works"] == f"NOT KNOWN here: {expected} (elsewhere: 7 pass [card A])"
        assert found["correct"] == "of the checks not run here; 1 pass [card A]"
        assert found["bits"].startswith("not known here; elsewhere 2 of 2")
        assert found["card"].startswith("none;" if failed else "not known;")
        assert "smoke (only elsewhere)" in found["not finished"]
        assert report.missing(store, STAGES[2]) == (0, len(STEPS) + 1)
        assert store.here("smoke", "kernel") is None


def test_facts_of_another_machine_are_not_taken_over(tmp_path: Path) -> None:
    _on_card(tmp_path)
    store = _store(tmp_path)
    store.start({"card": None, "sources": "1", "commit": "c"})
    ladder = Ladder(store, os.environ, 60)
    store.put("facts", "smi", {"status": "cut", "failed": "ended with its stage", "value": None})
    assert ladder._learn(STAGES[0])
    assert store.run["card"] is None and store.run["facts"] == {"smi": None}
    assert "not known" in report.text(store) and not ladder._learn(STAGES[1])


def test_steps_that_never_began_are_not_done(tmp_path: Path) -> None:
    store = _on_card(tmp_path, STEPS[:4])
    found = _screen(store)
    assert found["works"] == "so far: 4 of 7 first steps are done: 4 pass"
    assert "smoke" in found["not finished"]
    assert "checks" in found["not finished"]  # the sanitizer did not run on them
    assert report.missing(store, STAGES[2], ("kernel", "index")) == (1, 0)  # index


def test_the_report_says_how_runs_ended(tmp_path: Path) -> None:
    store = _store(tmp_path)
    for how in (None, "interrupted by SIGINT", ""):
        store.start({"card": "card A", "sources": "1", "commit": "c"})
        assert "it had not ended when this was written" in report.text(store)
        store.run["ended"] = how
    lines = [line for line in report.text(store).splitlines() if line.startswith("run ")]
    assert [line.rpartition("; ")[2] for line in lines[:2]] == [
        "it did not end: killed?", "interrupted by SIGINT",
    ]  # fmt: skip
    assert ";" not in lines[2]


# Damaged state, folders and disks

RUN = Path(report.__file__).with_name("run.py")
RECORD: dict[str, Any] = {
    "status": "ok", "value": None, "card": None, "sources": "1", "run": 0, "cuts": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "runs, record",
    [
        ([3], RECORD), (None, RECORD), ([{"items": [1]}], RECORD), ([{"items": {"a": 1}}], RECORD),
        ([{}], None), ([{}], RECORD | {"status": None}), ([{}], RECORD | {"run": 1}),
        ([{}], RECORD | {"run": "0"}), ([{}], RECORD | {"card": []}), ([{}], {"status": "ok"}),
        ([{}], RECORD | {"value": 3}), ([{}], RECORD | {"cuts": None}),
    ],
)  # fmt: skip
def test_a_state_with_odd_contents_is_put_aside(tmp_path: Path, runs: Any, record: Any) -> None:
    state = {"runs": runs, "results": {"smoke": {"kernel": [record]}}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    store = _store(tmp_path)
    assert store.state == {"runs": [], "results": {}} and "is damaged" in store.notes[0]
    assert json.loads((tmp_path / "state.damaged").read_text()) == state


def test_a_whole_state_is_read(tmp_path: Path) -> None:
    state = {"runs": [{}], "results": {"smoke": {"kernel": [RECORD]}}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert _store(tmp_path).state == state


def _run(*arguments: str) -> tuple[int, str]:
    """Returns exit status and error output."""
    command = [sys.executable, str(RUN), "--installed", "--only", "facts", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


def test_folders_that_cannot_be_used_are_errors_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "a" / "state.json").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "out").write_text("")
    for name, said in {"a": "state.json", "b": "out"}.items():
        folder = tmp_path / name
        status, text = _run("--folder", str(folder))
        assert status == 1 and str(folder / said) in text and len(text.splitlines()) == 1, text


def test_a_full_disk_leaves_no_file_and_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _on_card(tmp_path)
    store.archive("report")
    assert store.written == [store.out / "report.txt", store.out / "gpu.tgz"]
    store.out = tmp_path / "full"
    store.out.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # Python ignores SIGXFSZ
    try:
        store.archive("report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.written == [] and store.problem.startswith(f"cannot write to {store.out}")
    assert list(store.out.iterdir()) == [] and store.problem in capsys.readouterr().out
    store.archive("report")
    assert store.problem == "" and len(store.written) == 2


# Arguments


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "14.9", "soon"])
def test_limits_in_which_nothing_can_run_are_refused(limit: str, tmp_path: Path) -> None:
    status, text = _run("--folder", str(tmp_path / "new"), f"--limit={limit}")
    assert status == 2 and not (tmp_path / "new").exists()
    assert text.splitlines()[-1].endswith(
        f"--limit: '{limit}' is not a useful limit: the smallest is 15 seconds"
    )


@pytest.mark.parametrize("patience", ["0", "-1", "nan", "inf"])
def test_patience_is_a_finite_number_above_0(patience: str, tmp_path: Path) -> None:
    status, text = _run("--folder", str(tmp_path / "new"), f"--patience={patience}")
    assert status == 2 and f"expected a finite number above 0, got '{patience}'" in text


def test_items_that_match_nothing_are_said(tmp_path: Path) -> None:
    stage = STAGES[3]
    ladder = Ladder(_on_card(tmp_path), os.environ, 60)
    ladder.prefixes = ("car", "row 9")
    assert ladder.unmatched((stage,)) == []  # not listed yet
    ladder._listed["card"] = [("card", 9.0)]
    assert ladder.unmatched((stage,)) == ["row 9"]
    status, _ = _run("--folder", str(tmp_path / "run"), "--items", "nothing", "--limit", "60")
    text = (tmp_path / "run" / "out" / "report.txt").read_text()
    assert status == 1 and "NOTE no item begins with 'nothing' (--items)" in text


# A PyTorch that is installed and broken


def test_a_torch_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('a library is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    why = "torch cannot be imported: RuntimeError: a library is broken"
    scripts = {
        "tests/gpu/facts.py": "torch", "tests/gpu/smoke.py": "torch",
        "tests/gpu/checks.py": "torch row 1", "benchmarks/gpu/bench_bridge.py": "small GPT",
        "benchmarks/gpu/bench_gpu.py": "warm:4",
    }  # fmt: skip
    for script, item in scripts.items():
        command = [sys.executable, str(RUN.parents[2] / script), "--item", item]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["left out"] == why
    store = _on_card(tmp_path)
    store.run["facts"] = {"machine": {"packages": {"torch": "2.13.0", "numpy": "2.4.0"}}}
    store.put("libraries", "torch", {"status": "ok", "value": {"left out": why}})
    assert f"machine, packages: torch 2.13.0, but {why}\n" in report.text(store)
