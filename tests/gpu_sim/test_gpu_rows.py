"""The measurements for people with a GPU (benchmarks/gpu): items on the stand-in and on the null
driver, reports of missing pieces, the output of ncu, and the result tables."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cutback as cb
import hiding
import null_driver
import nvrtc
from client import BUILD, build

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks" / "gpu"
BENCH, BRIDGE, RESULTS = (GPU / f"{name}.py" for name in ("bench_gpu", "bench_bridge", "results"))
RUN = ROOT / "tests" / "gpu" / "run.py"

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports modules of benchmarks/gpu, and forgets them afterwards."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(GPU))
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(ROOT) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def on_stand_in() -> dict[str, str]:
    return {
        "CUTBACK_CUDA_DRIVER": str(build()),
        "CUTBACK_NVRTC": str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CUDA_CODE": "ptx",
        "CUTBACK_CACHE_DIR": str(BUILD / "cutback_kernels"),
        "CUTBACK_GPU_ROWS_SMALL": "1",
    }


def item(script: Path, name: str, variables: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Returns the last result that an item prints."""
    command = [sys.executable, str(script), *options, "--item", name]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def listed(script: Path, stage: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(script), "--list", stage], capture_output=True, text=True, check=True
    )
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


# ---- items ---------------------------------------------------------------------------------------


def test_lists_have_the_items_of_all_stages() -> None:
    stages = [(BENCH, s) for s in ("card", "warm", "rows", "compile", "kernels")]
    names = [
        name for pair in [*stages, (BRIDGE, "bridge"), (BRIDGE, "models")] for name in listed(*pair)
    ]
    assert len(names) == len(set(names)) > 40
    assert {"card", "adamw GPT-2 124M", "row 4", "compiled row 4", "warm:4"} <= set(names)


def check_row(found: dict[str, Any]) -> None:
    """Checks that both dtypes have results, with the resources of the kernels."""
    assert "stand-in" in found["gpu"] and [row["dtype"] for row in found["rows"]] == ["f32", "bf16"]
    for row in found["rows"]:
        assert row["ours ms"] > 0 and row["ours host ms"] > 0 and "PyTorch" in row["torch"]
        (group,) = row["groups"]
        assert group["bytes"] == row["bytes"] and group["ms"] > 0 and group["flops"]["points"] > 0
        for launch in group["launches"]:
            assert launch["registers"] == 32 and launch["blocks_per_multiprocessor"] > 0


def check_adamw(found: dict[str, Any]) -> None:
    """Checks that the optimizer is timed separately."""
    (row,) = found["rows"]
    assert row["bytes"] == 28 * 15  # three tensors of five elements
    assert 0 < row["ours ms"] < row["ours host ms"]
    assert [kernel["kernel"] for kernel in row["update"]] == ["cb_optim_count", "cb_optim_step"]


def check_card(found: dict[str, Any]) -> None:
    """Checks that the card's rates give a row for the cost model."""
    assert not [key for key in found if key.endswith("failed")]
    row = found["device"]
    assert row["flops_per_s"]["bf16"] > 0 and row["link_bytes_per_s"] > 0
    step = cb.compile(lambda x: (x * x).sum(), device=row)
    step.prepare(np.ones(3, np.float32))
    assert step.planned.time_ps > 0
    assert row["bytes_per_s"] == pytest.approx(1e9 * found["two reads, one write GB/s"], rel=1e-3)


CLOCK = """
import sys
sys.path[:0] = sys.argv[1:]
import null_driver
from device_clock import Candidate, DeviceClock
clock = DeviceClock(rounds=3)
import ctypes, json
driver = clock.driver
stream = ctypes.c_void_p(clock.stream)
memory = driver.allocate(64)
def work(value):
    n = ctypes.c_size_t(value)
    return lambda: driver.call("cuMemsetD8Async", memory, ctypes.c_ubyte(value), n, stream)
null = null_driver.NullDriver()
null.clear()
clock.measure({"a": Candidate(work(1)), "b": Candidate(work(2), own_ms=lambda: 7.0)})
seen = [(e.entry, e.bytes, e.stream == clock.stream) for e in null.events()]
times = clock.measure({"b": Candidate(work(2), own_ms=lambda: 7.0)})["b"]
print(json.dumps({"seen": seen, "flush": clock.flush_bytes, "own": times.device_ms}))
"""


def test_the_clock_flushes_the_cache_before_each_call_on_one_stream() -> None:
    variables = os.environ | {"CUTBACK_CUDA_DRIVER": str(null_driver.build())}
    variables.pop("CUTBACK_GPU_ROWS_SMALL", None)
    here = Path(__file__).parent
    folders = [str(GPU), str(here), str(here.parent / "gpu")]
    command = [sys.executable, "-c", CLOCK, *folders]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["own"] == 7.0 and found["flush"] == 4 * (50 << 20)
    word = {"cuMemsetD8Async": "m", "cuEventRecord": "r", "cuEventSynchronize": "s"}
    told = ""
    for entry, size, on_stream in found["seen"]:
        if entry == "cuMemsetD8Async":
            assert on_stream
            told += "F" if size == found["flush"] else "ab"[size - 1]
        elif entry in word:
            assert entry != "cuEventRecord" or on_stream
            told += word[entry]
    assert re.fullmatch(r"(F+rarsF*|F+rbrsF*)+", told), told
    order = re.sub("[^ab]", "", told)
    assert order == "aabb" + "ab" + "ba" + "ab"  # two warm-up rounds, then in turns


@pytest.mark.very_slow
def test_pytorch_beside_ours(tmp_path: Path) -> None:
    """PyTorch's part of each item runs on the CPU and fills its columns. The stand-in's clock does
    not see it, so device times are 0."""
    pytest.importorskip("torch")
    variables = on_stand_in() | {"CUTBACK_GPU_TORCH_ON_CPU": "1"}
    for name in ("row 7", "row 6", "compiled row 7"):
        for row in item(BENCH, name, variables)["rows"]:
            assert "failed" not in row and row["eager host ms"] > 0 and "eager / ours" in row, row
            assert ("compiled ms" in row) == name.startswith("compiled")
    (row,) = item(BENCH, "adamw GPT-2 124M", variables)["rows"]
    assert "fused / ours" in row and row["foreach host ms"] > 0
    assert item(BENCH, "warm:7", variables).keys() == {"f32 s", "bf16 s"}
    found = item(BENCH, "card", variables)
    assert not [key for key in found if key.endswith("failed")]
    assert found["torch TF32 products TFLOP/s"] > 0


# ---- what is missing -----------------------------------------------------------------------------


def test_without_pytorch_and_without_triton(tmp_path: Path) -> None:
    without = on_stand_in() | hiding.without_modules(tmp_path, "torch", "triton")
    assert "no PyTorch" in item(BENCH, "compiled row 7", without)["left out"]
    assert "no PyTorch" in item(BENCH, "warm:7", without)["left out"]
    assert "no PyTorch" in item(BRIDGE, "small GPT", without)["left out"]
    assert "no PyTorch" in item(BENCH, "row 7", without)["rows"][0]["torch"]


def test_without_ncu_and_pytorch_groups_are_timed_by_events(tmp_path: Path) -> None:
    without = on_stand_in() | hiding.without_modules(tmp_path, "torch")
    found = item(BENCH, "kernels of row 7 in f32", without | {"PATH": str(tmp_path)})
    assert found["by"] == "events" and found["no ncu"] == "there is no ncu"
    assert "no PyTorch" in found["no torch.profiler"]
    assert found["groups"][0]["us"] > 0 and "by events" in found["line"]


NCU = """#!{python}
import json, subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
program = arguments[arguments.index("--log-file") + 2:]
if {refuses}:
    open(log, "w").write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\\n")
    sys.exit(1)
done = subprocess.run(program, capture_output=True, text=True)
sys.stdout.write(done.stdout)
head = ["ID", "Kernel Name", "dram__bytes.sum", "gpu__time_duration.sum"]
lines = ["==PROF== Connected to process 7", head, ["", "", "byte", "ns"]]
for group in json.loads(done.stdout.splitlines()[-1]):
    for k, launch in enumerate(group["launches"]):
        lines.append([str(k), launch["kernel"] + "(float *, int)", "1,024", "2000"])
with open(log, "w") as file:
    for line in lines:
        file.write(line if isinstance(line, str) else ",".join(f'"{{x}}"' for x in line))
        file.write("\\n")
"""


@pytest.mark.very_slow
@pytest.mark.parametrize("refuses", [False, True])
def test_with_an_ncu(tmp_path: Path, refuses: bool) -> None:
    """Replaces ncu by a program that runs its argument as ncu would, and writes the same output."""
    program = tmp_path / "ncu"
    program.write_text(NCU.format(python=sys.executable, refuses=refuses))
    program.chmod(0o755)
    variables = on_stand_in() | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = item(BENCH, "kernels of row 7 in f32", variables)
    if refuses:
        assert found["by"] == "events" and "ERR_NVGPUCTRPERM" in found["no ncu"]
        return
    assert found["by"] == "ncu"
    for group in found["groups"]:
        assert group["us"] == pytest.approx(2 * len(group["launches"]))
        assert all(launch["dram bytes"] == 1024 for launch in group["launches"])


# ---- ncu's text, and kernels by groups -----------------------------------------------------------

WRITTEN = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "cb_k0" - 0: 0%....50%....100% - 1 pass
==WARNING== The clocks are not locked
"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes.sum",\
"gpu__time_duration.sum","smsp__inst_executed.sum","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","Mbyte","usecond","inst","%"
"0","4711","cb_k0","(256, 1, 1)","(132, 1, 1)","1,024.5","41.28","12,345,678","61.5"
"1","4711","void cutlass::Kernel2<cutlass_80>(Params)","(384, 1, 1)","(4, 2, 1)","3","8","10","n/a"
"2","4711","splitKreduce(float *, int)","(384, 1, 1)","(4, 2, 1)","1","2","5","20"
"3","4711","cb_k1(float const *, unsigned long)","(32, 1, 1)","(1, 1, 1)","0.25","1.5","77","3"
"""


@pytest.mark.usefixtures("scripts")
def test_reads_what_ncu_writes() -> None:
    import kernels

    first, product, reduce, last = kernels.read_ncu(WRITTEN)
    assert first == {
        "name": "cb_k0", "us": pytest.approx(41.28), "dram bytes": pytest.approx(1.0245e9),
        "instructions": 12345678, "warps %": 61.5,
    }  # fmt: skip
    assert product["name"] == "cutlass::Kernel2" and "warps %" not in product
    assert reduce["name"] == "splitKreduce" and last["name"] == "cb_k1" and last["us"] == 1.5
    base = WRITTEN.replace('"Mbyte","usecond"', '"byte","ns"')
    assert kernels.read_ncu(base)[0]["us"] == pytest.approx(0.04128)
    for text in ("", "==ERROR== ERR_NVGPUCTRPERM - no permission\n", "==PROF== Disconnected\n"):
        with pytest.raises(kernels.NoCountersError, match=r"NVGPUCTRPERM|nothing"):
            kernels.read_ncu(text)
    without = WRITTEN.replace("__", "_")
    with pytest.raises(kernels.NoCountersError, match="clocks are not locked"):
        kernels.read_ncu(without)


def groups() -> list[dict[str, Any]]:
    return [
        {"ops": "a", "launches": [{"kernel": "cb_k0"}, {"call": "cublasLtMatmul"}]},
        {"ops": "b", "launches": [{"kernel": "cb_k1"}]},
    ]


@pytest.mark.usefixtures("scripts")
def test_kernels_go_to_the_groups_that_launched_them() -> None:
    import kernels

    seen = kernels.read_ncu(WRITTEN)
    a, b = kernels.joined(groups(), seen)
    product = a["launches"][1]
    assert product["us"] == 10 and product["kernels"] == ["cutlass::Kernel2", "splitKreduce"]
    assert product["dram bytes"] == 4e6 and a["us"] == pytest.approx(51.28) and b["us"] == 1.5
    with pytest.raises(kernels.NoCountersError, match="cb_k1 was launched and nothing measured"):
        kernels.joined(groups(), seen[:3])
    with pytest.raises(kernels.NoCountersError, match="cb_k0 was launched and cb_k1 measured"):
        kernels.joined(groups(), seen[3:])
    with pytest.raises(kernels.NoCountersError, match="does not launch it"):
        kernels.joined(groups(), [*seen, {"name": "cb_k2", "us": 1.0}])


@pytest.mark.usefixtures("scripts")
def test_events_of_a_profile_in_their_order() -> None:
    import kernels

    def event(name: str, start: float, us: float, kind: str = "cuda") -> Any:
        span = SimpleNamespace(start=start, elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=kind, time_range=span)

    events = [
        event("cb_k1(float)", 30, 2), event("Memset (Device)", 1, 9), event("cb_k0", 20, 4),
        event("cudaLaunchKernel", 2, 1, "cpu"),
    ]  # fmt: skip
    assert kernels.in_order(events, "cuda") == [("cb_k0", 4.0), ("cb_k1", 2.0)]
    runs = [("cb_k0", 4.0), ("cb_k1", 2.0), ("cb_k0", 6.0), ("cb_k1", 1.0)]
    assert kernels.medians(runs, 2) == [{"name": "cb_k0", "us": 5.0}, {"name": "cb_k1", "us": 1.5}]
    for wrong in ([], runs[:3], [runs[0], runs[1], runs[3], runs[2]]):
        with pytest.raises(kernels.NoCountersError, match="2 equal runs"):
            kernels.medians(wrong, 2)


@pytest.mark.usefixtures("scripts")
def test_prediction() -> None:
    from prediction import Rates

    measured = {
        "copy GB/s": 2000.0, "two reads, one write GB/s": 2500.0, "launch gap us": 1.5,
        "f32 products TFLOP/s": 50.0, "bf16 products TFLOP/s": 700.0,
        "torch bf16 products TFLOP/s": 600.0,
    }  # fmt: skip
    rates = Rates(measured)
    assert rates.us(2.5e9, {}, 2) == pytest.approx(1003)
    flops = {"products bf16": 7e12, "points": 5e10}
    assert rates.us(2.5e9, flops, 1) == pytest.approx(1e4 + 1e3 + 1.5)
    for missing in ("f32 products TFLOP/s", "launch gap us"):
        with pytest.raises(KeyError):
            Rates({k: v for k, v in measured.items() if k != missing})


# ---- results -------------------------------------------------------------------------------------


def results(source: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    docs = folder / "cuda.md"
    text = (ROOT / "docs" / "cuda.md").read_text()
    begin, end = (f"<!-- results of GPUs: {word} -->" for word in ("begin", "end"))
    empty = f"{begin}\n\nnone of this has run on one\n\n{end}"
    docs.write_text(text.partition(begin)[0] + empty + text.partition(end)[2])
    command = [
        sys.executable,
        str(RESULTS),
        str(source),
        "--results",
        str(folder),
        "--docs",
        str(docs),
    ]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def other_card(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the same results under the name of a later card."""
    for items in state["results"].values():
        for records in items.values():
            for record in copy.deepcopy(records):
                record["card"] = "Other card"
                if isinstance(record.get("value"), dict) and "gpu" in record["value"]:
                    record["value"]["gpu"] = "Other card"
                records.append(record)
    return state


def test_results_of_a_ladder(tmp_path: Path) -> None:
    """Results of items that really ran become files and tables, with one set per card."""
    only = ["--only", "card,rows,kernels"]
    some = ["--items", "card,row 7,adamw GPT,kernels of row 7 in f32"]
    variables = os.environ | hiding.without_modules(tmp_path, "torch")  # its import is slow
    command = [
        sys.executable,
        str(RUN),
        "--installed",
        "--stand-in",
        "--folder",
        str(tmp_path / "gpu"),
    ]
    done = subprocess.run(
        [*command, *only, *some], env=variables, capture_output=True, text=True, check=False
    )
    archive, state_file = tmp_path / "gpu" / "out" / "gpu.tgz", tmp_path / "gpu" / "state.json"
    assert archive.exists(), done.stdout + done.stderr
    values = json.loads(state_file.read_text())["results"]
    check_card(values["card"]["card"][0]["value"])
    check_row(values["rows"]["row 7"][0]["value"])
    check_adamw(values["rows"]["adamw GPT-2 124M"][0]["value"])

    refused = results(archive, tmp_path / "none")
    assert refused.returncode == 1 and "stand-in" in refused.stderr
    assert "none of this has run on one" in (tmp_path / "none" / "cuda.md").read_text()

    made = results(archive, tmp_path / "one", "--any")
    assert made.returncode == 0, made.stderr
    slug = "stand_in_ptx_on_the_cpu"
    names = {path.name for path in (tmp_path / "one").glob("*.json")}
    assert names == {f"gpu_{kind}_{slug}.json" for kind in ("card", "rows", "kernels")}
    document = json.loads((tmp_path / "one" / f"gpu_rows_{slug}.json").read_text())
    assert document["machine"]["cpu"].startswith("stand-in") and document["commit"]
    assert {row["row"] for row in document["rows"]} == {"GELU by tanh (1024)", "AdamW, GPT-2 124M"}
    for row in document["rows"]:
        assert row["time / predicted"] == pytest.approx(row["ours ms"] / row["predicted ms"])
        assert "stand-in" in row["card"]
    card = json.loads((tmp_path / "one" / f"gpu_card_{slug}.json").read_text())
    assert card["device"]["name"].startswith("measured stand-in")
    kernels = json.loads((tmp_path / "one" / f"gpu_kernels_{slug}.json").read_text())["rows"]
    assert {row["dtype"] for row in kernels} == {"f32", "bf16"}
    assert all(row["registers"] == 32 and row["blocks / SM"] for row in kernels)

    state = other_card(json.loads(state_file.read_text()))
    (tmp_path / "two.json").write_text(json.dumps(state))
    assert results(tmp_path / "two.json", tmp_path / "two").returncode == 0  # one is not a stand-in
    text = (tmp_path / "two" / "cuda.md").read_text()
    assert "### Other card" in text and "### stand-in" not in text
    assert results(tmp_path / "two.json", tmp_path / "both", "--any").returncode == 0
    assert len(list((tmp_path / "both").glob("gpu_*.json"))) == 6
    for path in (tmp_path / "both").glob("gpu_*.json"):
        cards = {row["card"] for row in json.loads(path.read_text())["rows"]}
        assert len(cards) == 1 and path.stem.endswith(
            slug if "stand-in" in next(iter(cards)) else "other_card"
        )


def test_results_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"runs": [], "results": {}}')
    done = results(tmp_path, tmp_path / "out")
    assert done.returncode == 1 and "none" in done.stderr
    broken = tmp_path / "gpu.tgz"
    broken.write_bytes(b"no archive")
    assert "no results" in results(broken, tmp_path / "out").stderr
    assert "no results" in results(tmp_path / "missing", tmp_path / "out").stderr


@pytest.mark.usefixtures("scripts")
def test_bridge_rows_of_a_result(tmp_path: Path) -> None:
    import results as script

    rows = [
        {"row": "eager", "ms": 10.0, "host ms": 8.0, "peak": 4 << 20},
        {"row": "ours 0.5", "ms": 15.0, "host ms": 9.0, "peak": 2 << 20, "plan": 2 << 20,
         "peak / plan": 1.0, "apart": 0.0},
        {"row": "ours min", "failed": "ValueError: no"},
    ]  # fmt: skip
    record = {
        "card": "A card",
        "commit": "abc",
        "run": 0,
        "value": {"gpu": "A card", "what": "GPT-2", "rows": rows},
    }
    state = {"runs": [{"start": "2026-01-02"}], "results": {"models": {"GPT-2": [record]}}}
    table = script.Results(state, "A card").bridge_rows()
    assert table[1]["time / eager"] == 1.5 and table[1]["peak / eager"] == 0.5
    assert table[1]["gradients"] == "equal" and table[2]["note"] == "ValueError: no"
    assert script.Results(state, "Another").bridge_rows() == []


def test_items_that_were_killed_leave_what_they_have(tmp_path: Path) -> None:
    """Every item of a ladder may have printed only its first lines."""
    started = {"gpu": "A card"}
    values = {
        ("card", "card"): {**started, "copy GB/s": 2.0},
        ("rows", "row 7"): {**started, "what": "GELU", "rows": [{"dtype": "f32"}]},
        ("compile", "compiled row 7"): started,
        ("kernels", "kernels of row 7 in f32"): {**started, "what": "row 7", "dtype": "f32"},
        ("models", "GPT-2"): {**started, "what": "GPT-2", "rows": [{"row": "eager"}]},
        ("warm", "warm:7"): {"f32 s": 1.0},
    }
    state: dict[str, Any] = {"runs": [{}], "results": {}}
    for (stage, name), value in values.items():
        record = {"card": "A card", "commit": None, "run": 0, "value": value, "status": "cut"}
        nothing = {"card": "A card", "run": 0, "value": None, "status": "failed"}
        state["results"].setdefault(stage, {})[name] = [record, nothing]
    (tmp_path / "state.json").write_text(json.dumps(state))
    done = results(tmp_path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    names = {path.stem for path in (tmp_path / "out").glob("*.json")}
    assert names == {"gpu_card_a_card", "gpu_rows_a_card", "gpu_bridge_a_card"}


@pytest.mark.usefixtures("scripts")
def test_rows_of_both_stages_are_one_table() -> None:
    import results as script

    def record(*rows: dict[str, Any]) -> dict[str, Any]:
        value = {"gpu": "A card", "what": "GELU", "rows": list(rows)}
        return {"card": "A card", "commit": "abc", "run": 0, "value": value}

    timed = {"dtype": "f32", "bytes": 8, "ours ms": 1.0, "ours host ms": 2.0, "ours GB/s": 3.0}
    first = record({**timed, "eager / ours": 2.0}, {"dtype": "bf16", "failed": "TypeError: no"})
    second = record({**timed, "ours ms": 1.1, "compiled ms": 4.4, "compiled / ours": 4.0})
    cut = record({**timed, "ours ms": 9.0})  # killed before torch.compile was measured
    results_of = {"rows": {"row 7": [first]}, "compile": {"compiled row 7": [second]}}
    state = {"runs": [{}], "results": results_of}
    f32, bf16 = script.Results(state, "A card").kernel_rows()
    assert (f32["ours ms"], f32["compiled / ours"]) == (1.1, 4.0) and bf16["note"].startswith(
        "Type"
    )
    results_of["compile"]["compiled row 7"] = [cut]
    f32, _ = script.Results(state, "A card").kernel_rows()
    assert (f32["ours ms"], f32["eager / ours"]) == (1.0, 2.0)
    text = script.tables({"A card": {"gpu_rows": [f32, bf16]}})
    assert "| GELU | bf16 |" in text and "TypeError: no" in text and "card |" not in text


# ---- the bridge ----------------------------------------------------------------------------------


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["small GPT", "GPT-2 124M", "ResNet-50", "GPT-2 350M"])
def test_bridge_on_a_cpu(name: str) -> None:
    pytest.importorskip("torch")
    found = item(BRIDGE, name, {}, "--device", "cpu", "--small")
    rows = {row["row"]: row for row in found["rows"]}
    assert found["gpu"].startswith("CPU") and not [r for r in rows.values() if "failed" in r]
    for row in rows.values():
        assert row["ms"] > 0 and row["peak"] > 0
    if name == "small GPT":
        assert all(row["apart"] == 0 for row in rows.values() if row["row"].startswith("ours"))
    for row in rows.values():
        assert "plan" not in row or row["peak"] <= row["plan"] <= rows["eager"]["peak"]
    assert rows["ours 0.5"]["peak"] < rows["eager"]["peak"]
