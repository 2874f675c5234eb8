"""The ladder for people with a GPU (tests/gpu): what it keeps when items fail, hang or are cut
short, how a second call continues from its archive, and its report on machines where something is
missing. Items are real processes; those that need a GPU run on the stand-in."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn
import facts
import package
import processes
import pytest
import sanitizer
from ladder import Ladder
from stages import NAMES, STAGES, Listing, Stage
from store import Store

import hiding
import nvrtc

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "gpu" / "run.py"
needs_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)


# Processes

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
time.sleep(60)
"""


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("short_grace")
def test_what_ignores_sigterm_is_killed_with_what_left_its_group(tmp_path: Path) -> None:
    child = processes.Child([sys.executable, "-c", STUBBORN], os.environ, 60, tmp_path / "log")
    while not child.text(child.out).endswith("\n"):
        assert not child.poll()
        time.sleep(0.02)
    child.limit = 1.5
    child.wait()
    assert child.late and child.seconds < 50
    assert processes.ended(child) == "no end within 2 s"
    grandchild = int(child.text(child.out))
    for _ in range(100):
        if not _is_alive(grandchild):
            return
        time.sleep(0.02)
    os.kill(grandchild, signal.SIGKILL)
    pytest.fail("the grandchild in its own session is still there")


# A ladder of a script's items

ITEMS = """
import sys, time
sys.path.insert(0, {gpu!r})
import items

def hangs():
    items.show({{"until": "here"}})
    time.sleep(60)

def fails():
    items.show({{"before": 1}})
    raise ValueError("a planted error")

def stages():
    return {{
        "good": (60, lambda: {{"n": 1}}),
        "fails": (60, fails),
        "slow": (3, hangs),
        "cut": (60, hangs),
    }}

sys.exit(items.main({{"toy": stages}}))
"""


def _toy(tmp_path: Path) -> Stage:
    script = tmp_path / "toy.py"
    script.write_text(ITEMS.format(gpu=str(RUN.parent)))
    return Stage(Listing("toy", str(script), jobs=4, own_cache=True), 60, "a toy", each_card=True)


def _climb(store: Store, stage: Stage, prefix: str = "", until: str = "", **run: Any) -> None:
    """Runs a stage, and stops the run once the last item in ``until`` has a result, or `cut` has
    printed one."""
    store.start({"card": "card A", "sources": "1", "commit": "c", **run})
    ladder = Ladder(store, os.environ, 120)
    ladder.prefixes = (prefix,)
    number = len(store.state["runs"]) - 1
    printed = store.folder / "logs" / "toy" / "cut.out"

    def stop() -> None:
        while any((store.here("toy", item) or {}).get("run") != number for item in until.split()):
            time.sleep(0.05)
        while not (printed.exists() and "here" in printed.read_text()):
            time.sleep(0.05)
        ladder.stop()

    if until:
        threading.Thread(target=stop, daemon=True).start()
    ladder.climb((stage,))


def _store(folder: Path) -> Store:
    (folder / "out").mkdir(parents=True, exist_ok=True)
    return Store(folder, folder / "out")


@pytest.mark.usefixtures("short_grace")
def test_a_stage_keeps_what_its_items_found_and_a_second_run_goes_on(tmp_path: Path) -> None:
    stage = _toy(tmp_path)
    store = _store(tmp_path / "first")
    _climb(store, stage, until="good fails slow")
    records = {name: store.here("toy", name) for name in ("good", "fails", "slow", "cut")}
    assert {name: r and r["status"] for name, r in records.items()} == {
        "good": "ok", "fails": "failed", "slow": "failed", "cut": "cut",
    }  # fmt: skip
    assert all(records.values())
    assert records["fails"]["failed"] == "ValueError: a planted error"
    assert records["fails"]["value"] == {"before": 1}
    assert records["slow"]["failed"] == "no end within 3 s" and "until" in records["slow"]["value"]
    assert records["cut"]["value"] == {"until": "here"}
    # unpacked in another folder, the archive lets a second run continue without repeating anything
    second = tmp_path / "second"
    second.mkdir()
    with tarfile.open(store.out / "gpu.tgz") as archive:
        names = archive.getnames()
        archive.extractall(second, filter="data")
    assert {"state.json", "report.txt", "logs/toy/fails.err"} <= set(names)
    store = _store(second)
    (second / "logs" / "toy" / "cut.out").unlink()
    _climb(store, stage, until=" ")
    good, cut = store.here("toy", "good"), store.here("toy", "cut")
    assert good and cut and (good["run"], cut["run"], cut["cuts"]) == (0, 1, 2)
    failed = store.here("toy", "fails")
    assert failed and failed["run"] == 0  # with time left it would have run again
    text = (second / "out" / "report.txt").read_text()
    assert "run 2 (this one)" in text


@pytest.mark.usefixtures("short_grace")
def test_a_stage_ends_with_its_share_of_time(tmp_path: Path) -> None:
    stage = dataclasses.replace(_toy(tmp_path), seconds=5)
    store = _store(tmp_path / "gpu")
    begin = time.monotonic()
    store.start({"card": "card A", "sources": "1", "commit": "c"})
    ladder = Ladder(store, os.environ, 600)
    ladder.prefixes = ("cut",)
    ladder.run_stage(stage, first=True)
    cut = store.here("toy", "cut")
    assert cut and cut["status"] == "cut" and cut["failed"].startswith("ended with its stage")
    assert time.monotonic() - begin < 30


@pytest.mark.usefixtures("short_grace")
def test_cards_and_sources_do_not_mix(tmp_path: Path) -> None:
    stage = _toy(tmp_path)
    store = _store(tmp_path / "gpu")
    for run in ({"card": "card A"}, {"card": "card B"}, {"card": "card B", "sources": "2"}):
        _climb(store, stage, "good", **run)
    found = [(r["card"], r["sources"], r["status"]) for r in store.records("toy", "good")]
    assert found == [("card A", "1", "ok"), ("card B", "1", "ok"), ("card B", "2", "ok")]


def test_odd_results_do_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither results that the report does not expect nor an error in a stage stop a run."""
    store = _store(tmp_path)
    store.start({"card": "card A", "sources": "1", "commit": "c"})
    store.put("checks", "odd", {"status": "ok", "value": {"outputs": "many", "opened": 3}})
    ladder = Ladder(store, os.environ, 60)
    monkeypatch.setattr(ladder, "run_stage", lambda stage, first: 1 / 0)
    ladder.climb((_toy(tmp_path),))
    ladder.keep()
    assert "stage toy broke off" in store.notes[0] and "ZeroDivisionError" in store.notes[0]
    text = (store.out / "report.txt").read_text()
    assert text.startswith("the report cannot be made") and "many" in text + str(store.state)
    assert (store.out / "gpu.tgz").exists()


def test_a_signal_ends_a_run_with_its_archive(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--installed", "--folder", str(tmp_path), "--only", "card"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None and "facts" in run.stdout.readline()
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 1 and "works" in out and (tmp_path / "out" / "gpu.tgz").exists()
    assert "s] interrupted by SIGTERM" in out
    text = (tmp_path / "out" / "report.txt").read_text()
    assert "not finished interrupted by SIGTERM; facts" in text
    assert "clean, ; interrupted by SIGTERM" in text or "dirty, ; interrupted by SIGTERM" in text


def test_an_archive_that_is_too_large_leaves_out_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.MOST", 1 << 16)
    store = _store(tmp_path)
    store.start({"card": None, "sources": "1", "commit": "c"})
    for name in ("torch", "kernels"):
        (tmp_path / "caches" / name).mkdir(parents=True)
    (tmp_path / "caches" / "torch" / "large").write_bytes(os.urandom(1 << 17))
    (tmp_path / "caches" / "kernels" / "small").write_bytes(b"1")
    store.archive("report")
    with tarfile.open(store.out / "gpu.tgz") as archive:
        names = archive.getnames()
    assert "caches/kernels/small" in names and "caches/torch/large" not in names
    assert store.notes == ["the archive leaves out caches/torch: it is too large"]


def test_a_damaged_state_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"runs": [')
    store = _store(tmp_path)
    assert store.state == {"runs": [], "results": {}}
    assert "is damaged" in store.notes[0] and (tmp_path / "state.damaged").exists()


def test_the_stages_fit_two_calls() -> None:
    shares = {stage.name: stage.seconds for stage in STAGES}
    second = ("compile", "kernels", "models")
    assert sum(shares[name] for name in NAMES if name not in second) == 310
    assert sum(shares[name] for name in second) == 260


# Reading other programs' output

SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <pci><pci_gpu_link_info>
      <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width>
      </link_widths></pci_gpu_link_info></pci>
    <fb_memory_usage><total>81559 MiB</total><used>420 MiB</used></fb_memory_usage>
    <compute_mode>Exclusive_Process</compute_mode>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <gpu_power_readings><instant_power_draw>71.20 W</instant_power_draw></gpu_power_readings>
    <clocks><sm_clock>345 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <processes><process_info><pid>77</pid><type>C</type><process_name>other</process_name>
      <used_memory>400 MiB</used_memory></process_info></processes>
  </gpu>
</nvidia_smi_log>
"""


def test_what_nvidia_smi_says() -> None:
    found = facts.read_smi(SMI)
    assert found["name"] == "NVIDIA H100 80GB HBM3" and found["driver version"] == "580.95.05"
    assert (found["MIG"], found["ECC"], found["compute mode"]) == (
        "Disabled", "Enabled", "Exclusive_Process",
    )  # fmt: skip
    assert (found["PCIe generation"], found["most PCIe generation"]) == ("4", "5")
    assert found["reasons for lower clocks"] == ["gpu_idle", "hw_thermal_slowdown"]
    assert found["other processes"] == [
        {"pid": "77", "process_name": "other", "used_memory": "400 MiB"}
    ]
    assert facts.read_smi(SMI.replace("event_reason", "throttle_reason")) == found
    assert "temperature" not in found  # omitted, because this text has none


def test_an_nvidia_smi_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    monkeypatch.setenv("PATH", hiding.with_program(tmp_path, "nvidia-smi", broken)["PATH"])
    assert "version mismatch" in facts.smi()["problem"]
    monkeypatch.setenv("PATH", hiding.without_programs(tmp_path, "nvidia-smi")["PATH"])
    assert facts.smi() == {"left out": "there is no nvidia-smi"}


REFUSES = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
echo "========= Error: Device not supported. Please refer to the documentation."
exit 1
"""
WORKS = """#!/bin/sh
tool=$2
while [ "$1" != "--print-limit" ]; do shift; done; shift; shift
echo "========= COMPUTE-SANITIZER"
"$@" || exit 1
if [ $tool = racecheck ]; then
  echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
else
  echo "========= Invalid __global__ read of size 4 bytes"
  echo "=========     at cb_k0+0x90"
  echo "========= ERROR SUMMARY: 1 error"
  exit 9
fi
"""


@needs_nvrtc
def test_a_sanitizer_that_works_and_one_that_refuses_the_device(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTBACK_GPU_FOLDER", str(tmp_path))
    monkeypatch.setattr(sanitizer, "TOOLS", ("memcheck", "racecheck"))
    monkeypatch.setattr(sanitizer, "CHECKS", ("index",))
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", hiding.with_program(tmp_path, "compute-sanitizer", WORKS)["PATH"])
    found = sanitizer.sanitizer()
    assert found["memcheck"]["errors"] == ["Invalid __global__ read of size 4 bytes"]
    assert found["memcheck"]["summary"] == "ERROR SUMMARY: 1 error"
    assert found["racecheck"]["summary"].startswith("RACECHECK SUMMARY: 0 hazards")
    assert all(found[tool]["checks"] == 1 for tool in ("trial", "memcheck", "racecheck"))
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PATH", hiding.with_program(tmp_path, "compute-sanitizer", REFUSES)["PATH"])
    assert sanitizer.sanitizer()["left out"] == (
        "compute-sanitizer cannot be used here: Error: Device not supported. Please refer to the "
        "documentation."
    )


def test_cudnn_is_missed_in_words() -> None:
    said = cudnn.device_properties()
    assert isinstance(said, str) and said.startswith(("no cuDNN", "cuDNN "))


# The package and its commit


def test_the_commit_is_known_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "ROOT", tmp_path)
    monkeypatch.setenv("CUTBACK_GPU_FOLDER", str(tmp_path / "build"))
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.c").write_text("int a;\n")
    assert package.commit().startswith("unknown: there is no .git here, and no package")
    carried = tmp_path / "build" / "package"
    carried.mkdir(parents=True)
    described = {"commit": "0123456789ab clean", "sources": package.sources()}
    (carried / "made_from.json").write_text(json.dumps(described))
    assert package.commit() == "0123456789ab clean"
    (tmp_path / "csrc" / "a.c").write_text("int b;\n")
    assert package.commit() == (
        "unknown: there is no .git here, and the sources are not those of 0123456789ab clean"
    )


# Whole runs on the stand-in

# These limits only end a run that hangs: the machine may be busy, and each run recompiles its
# kernels.
PATIENT = ("--patience", "40", "--limit", "14400")


def _run(folder: Path, *more: str, **changes: str) -> tuple[int, str, dict[str, Any]]:
    """Returns exit status, report and results of a run."""
    command = [
        sys.executable,
        str(RUN),
        "--installed",
        "--stand-in",
        "--folder",
        str(folder),
        *more,
    ]
    done = subprocess.run(
        command, env=hiding.environment(changes), capture_output=True, text=True, check=False
    )
    text = (folder / "out" / "report.txt").read_text()
    assert text.splitlines()[0] in done.stdout, done.stdout + done.stderr
    state = json.loads((folder / "state.json").read_text())
    return done.returncode, text, state["results"]


@pytest.mark.very_slow
@needs_nvrtc
def test_a_kernel_that_faults_leaves_its_text_and_sources_and_the_next_call_goes_on(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    only = ("--only", "smoke", "--limit", "60", "--items")
    driver = hiding.broken_driver(tmp_path, "fault", "smoke index")
    status, text, results = _run(first, *only, "i", **driver)
    assert status == 1
    assert "works        NO: of the first steps 1 FAILED" in text
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "FAILED       smoke index" in text
    second.mkdir()
    with tarfile.open(first / "out" / "gpu.tgz") as archive:
        names = archive.getnames()
        archive.extractall(second, filter="data")
    kernels = [name for name in names if name.startswith("errors/smoke-index/")]
    assert {Path(name).suffix for name in kernels} >= {".cu", ".bin"}
    status, text, results = _run(second, *only, "i")
    assert status == 0 and "FAILED       nothing" in text
    assert results["smoke"]["index"][0]["run"] == 1


@needs_nvrtc
@pytest.mark.very_slow
def test_a_kernel_that_hangs_is_killed_and_said(tmp_path: Path) -> None:
    """The process waits for the device and blocks SIGTERM; the other items pass."""
    driver = hiding.broken_driver(tmp_path, "hang", "smoke index")
    patient = ("--patience", "4", "--limit", "900")  # the hanging item uses all of its time
    _, text, results = _run(tmp_path / "gpu", "--only", "smoke", *patient, **driver)
    assert "index" in text and results["smoke"]["index"][0]["status"] in ("failed", "cut")
    assert results["smoke"]["kernel"][0]["status"] == "ok"


@needs_nvrtc
@pytest.mark.very_slow
def test_a_card_that_another_process_has_for_itself(tmp_path: Path) -> None:
    driver = hiding.broken_driver(tmp_path, "exclusive")
    only = ("--only", "smoke", "--items", "kernel,index", *PATIENT)
    status, text, results = _run(tmp_path / "gpu", *only, **driver)
    assert status == 1 and "works        NO" in text.splitlines()[1]
    assert "another process has the card, whose mode is exclusive" in text.splitlines()[1]
    assert results["facts"]["card"][0]["value"]["compute mode"] == "exclusive process"


MISSING: dict[str, Callable[[Path], dict[str, str]]] = {
    "torch": lambda folder: hiding.without_modules(folder, "torch"),
    "triton": lambda folder: hiding.without_modules(folder, "triton"),
    "ncu": lambda folder: hiding.without_programs(folder, "ncu"),
    "compute-sanitizer": lambda folder: hiding.without_programs(folder, "compute-sanitizer"),
    "Python.h": hiding.without_python_header,
    "home": lambda folder: hiding.without_home(),
    "builtins": hiding.without_builtins,
}
SAID = {
    "torch": "no PyTorch: No module named 'torch'",
    "triton": "triton none: No module named 'triton'",
    "ncu": "machine, tools: ncu none",
    "compute-sanitizer": "there is no compute-sanitizer",
    "Python.h": "machine: Python.h none at",
    "home": "NOTE /proc/sys cannot be written",
    "builtins": "libnvrtc-builtins",
}
ITEMS_OF_ALL_STAGES = (
    "kernel,index,torch,card,sanitizer,row 4,warm:4,small,compiled row 4,kernels of row 4 in f32"
)


@needs_nvrtc
@pytest.mark.very_slow
@pytest.mark.parametrize("missing", MISSING)
def test_a_machine_without(missing: str, tmp_path: Path) -> None:
    """In two calls with an item or two of each stage, the report names what is missing, and items
    that do not need it pass."""
    (tmp_path / "hidden").mkdir()
    changes = MISSING[missing](tmp_path / "hidden")
    if missing == "builtins" and _finds_builtins(changes["CUTBACK_NVRTC"]):
        pytest.skip("this NVRTC finds its builtins elsewhere")
    stages = ("smoke,card,checks,rows,bridge", "compile,kernels")
    for only in stages:
        more = ("--only", only, "--items", ITEMS_OF_ALL_STAGES, *PATIENT)
        _, text, results = _run(tmp_path / "gpu", *more, **changes)
    assert SAID[missing] in text
    assert {"facts", "smoke", "card", "checks", "rows", "bridge", "kernels"} <= set(results)
    statuses = {
        f"{s} {i}": r[-1]["status"] for s, items in results.items() for i, r in items.items()
    }
    failed = {name for name, status in statuses.items() if status != "ok"}
    if missing == "builtins":
        assert {"smoke kernel", "checks row 4", "rows row 4"} <= failed
        assert "works        NO" in text
    else:
        assert failed <= ({"bridge small GPT"} if missing == "torch" else set()), text
        assert "works        so far: 3 of 7" in text


def _finds_builtins(library: str) -> bool:
    """True if NVRTC compiles without its own builtins: the loader may find another copy."""
    code = (
        "import ctypes, sys; n = ctypes.CDLL(sys.argv[1]); p = ctypes.c_void_p();"
        "n.nvrtcCreateProgram(ctypes.byref(p), b'__global__ void f() {}', None, 0, None, None);"
        "sys.exit(n.nvrtcCompileProgram(p, 0, None))"
    )
    return subprocess.run([sys.executable, "-c", code, library], check=False).returncode == 0


@needs_nvrtc
@pytest.mark.very_slow
def test_a_fresh_clone_builds_its_package_and_a_machine_without_headers_takes_another(
    tmp_path: Path,
) -> None:
    """If no package is carried, it is built, and the next call uses it; if it cannot be built and
    the carried one has other sources, that one is used with a warning."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
    command = [sys.executable, str(clone / "tests" / "gpu" / "run.py"), "--stand-in"]
    command += ["--only", "smoke", "--items", "index", *PATIENT]
    changes: dict[str, str] = {}
    for expected in ("built here", "carried, of", "carried, of other sources"):
        if expected == "carried, of other sources":
            # The build tree is removed, because CMake would still find the headers in its cache.
            shutil.rmtree(clone / "build" / "gpu-tree")
            (clone / "csrc" / "base" / "more.h").write_text("/* changed */\n")
            changes = hiding.without_python_header(tmp_path) | {"CMAKE_C_COMPILER_LAUNCHER": ""}
        done = subprocess.run(
            command, env=hiding.environment(changes), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        state = json.loads((clone / "build" / "gpu" / "state.json").read_text())
        built = state["results"]["build"]["package"][-1]["value"]
        assert built["how"].startswith(expected), built
    assert "WARNING: it cannot be built here" in done.stdout


@needs_nvrtc
@pytest.mark.very_slow
def test_full_sizes_on_the_driver_that_runs_nothing(tmp_path: Path) -> None:
    """Host times are measured at a GPU's sizes, for AdamW on GPT-2's 148 tensors and for a row."""
    command = [sys.executable, str(RUN), "--installed", "--null", "--folder", str(tmp_path)]
    command += ["--only", "card,rows", "--items", "card,row 6,adamw GPT", *PATIENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = json.loads((tmp_path / "state.json").read_text())["results"]["rows"]
    assert {name: r[0]["status"] for name, r in rows.items()} == {
        "row 6": "ok", "adamw GPT-2 124M": "ok",
    }, done.stdout  # fmt: skip
    assert rows["adamw GPT-2 124M"][0]["value"]["bytes"] > 3e9
