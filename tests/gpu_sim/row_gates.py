"""Judges rows 1 to 9 of benchmarks/gpu without a GPU: warps, instructions, bytes, spills, launches
and host time of each kernel, and the time predicted from them.

    python row_gates.py           rewrites row_gates.json and prints what has changed
    python row_gates.py 4 9       only prints these rows, in comparison with the file
    python row_gates.py --write 6 rewrites only this row

Grids and host times come from full sizes on the null driver; registers, shared memory and spills
from machine code for sm_90; instructions and bytes from small sizes on the stand-in, extrapolated
linearly to the number of elements. The time of a kernel is predicted as

    START_US + max(memory, issue) + OVERLAP * (1 - warps / 64) * min(memory, issue)
    memory = bytes / BYTES_PER_US        issue = warp instructions / INSTRUCTIONS_PER_US

because few warps cannot overlap memory time with instructions. A kernel with fewer blocks than
multiprocessors only waits for memory. The constants were fitted to the kernels that Nsight Compute
has measured on an H100 (`fit`); bytes that a kernel reads again come from memory with the
probability (bytes in flight / L2)^2, at most 1.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gates
import nvrtc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks/gpu", "benchmarks/cpu", "tests/gpu")]
GATES = HERE / "row_gates.json"
ROWS = range(1, 10)
DTYPES = ("f32", "bf16")
MEASURED = ROOT / "benchmarks" / "results"

# An H100 SXM. The middle three are fitted.
MULTIPROCESSORS, WARPS, L2_BYTES = 132, 64, 50e6
BYTES_PER_US = 2.9e6
INSTRUCTIONS_PER_US = MULTIPROCESSORS * 4 * 1500.0
OVERLAP, START_US = 0.6, 4.0
GAP_US = 2.06  # between two kernels, as measured

# sizes for the stand-in that give the same kernels, and again with the first axis doubled
SMALL = {
    1: (2, 32, 128, 128),
    2: (4, 2048, 8, 8),
    3: (1 << 18,),
    4: (512, 1024),
    5: (12, 128, 512),
    6: (16, 8192),
    7: (1 << 18,),
    8: (2, 64, 56, 56),
    9: (128, 4096),
}
# Times of torch.compile in ms for f32, predicted before they were measured.
COMPILED_MS = {1: 0.55, 2: 0.18, 3: 0.43, 4: 0.45, 5: 0.5, 6: 0.6, 7: 0.55, 8: 0.35, 9: 0.75}


NAMES = ("issued", "read", "written", "again")


class Counts(ctypes.Structure):
    """The struct sim_counts_of_launch."""

    _fields_ = tuple((key, ctypes.c_ulonglong) for key in NAMES)


class Zeros:
    """Replaces a random generator: launches do not depend on the numbers."""

    def standard_normal(self, size: Any, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
        return np.zeros(size, dtype)

    def integers(self, low: int, high: int, size: Any, dtype: Any) -> np.ndarray[Any, Any]:
        return np.zeros(size, dtype)


def made(number: int, dtype: str, sizes: tuple[int, ...]) -> Any:
    """Returns a row of benchmarks/gpu/gpu_rows.py on zeros, after a call."""
    import gpu_rows

    kept, gpu_rows.Repeated = gpu_rows.Repeated, lambda _: Zeros()
    full = gpu_rows.SIZES[number]
    try:
        gpu_rows.SIZES[number] = sizes
        row = gpu_rows.Row(number, dtype)
    finally:
        gpu_rows.SIZES[number], gpu_rows.Repeated = full, kept
    row.step(row.params, *row.data)
    return row


def launches_of(row: Any) -> list[dict[str, Any]]:
    """Returns the launches of a step, in order."""
    import launches

    return [launch for g in launches.groups(row.step.executable) for launch in g["launches"]]


def launched(numbers: Sequence[int]) -> dict[str, Any]:
    """Returns launches, source, bytes and host time of rows at full size, on the null driver."""
    import gpu_rows

    found: dict[str, Any] = {}
    for number in numbers:
        for dtype in DTYPES:
            row = made(number, dtype, gpu_rows.SIZES[number])
            source = row.step.code()
            times = []
            for _ in range(200):
                begin = time.perf_counter()
                result = row.step(row.params, *row.data)
                times.append(time.perf_counter() - begin)
                del result
            found[f"{number} {dtype}"] = {
                "launches": launches_of(row),
                "source": source[source.index("#include") :],
                "bytes": row.bytes,
                "host us": round(1e6 * statistics.median(times)),
            }
            del row
    return found


def counted(number: int, dtype: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Returns the launches of a row on the stand-in, with their work in `counts`."""
    from client import Driver

    driver = Driver()
    driver.library.sim_counted.restype = ctypes.c_char_p
    row = made(number, dtype, sizes)
    driver.set(counts=1)
    row.step(row.params, *row.data)
    driver.wait()
    found = launches_of(row)
    for i, launch in enumerate(found):
        counts = Counts()
        if driver.library.sim_counted(i, ctypes.byref(counts)) != launch["kernel"].encode():
            raise ValueError(f"row {number} {dtype}: {launch['kernel']} was not launched")
        launch["counts"] = {key: float(getattr(counts, key)) for key in NAMES}
    driver.set(counts=0)
    return found


def extended(number: int, dtype: str, full: Sequence[Any]) -> list[dict[str, float]]:
    """Extrapolates the counts linearly from two small sizes to these launches at full size. A
    kernel that small sizes do not need (it adds up a few blocks) counts as no work."""
    import gpu_rows

    small = SMALL[number]
    times = math.prod(gpu_rows.SIZES[number]) / math.prod(small)
    sides = [counted(number, dtype, (n * small[0], *small[1:])) for n in (1, 2)]
    found = []
    # numbers of blocks at full and small size, of this kernel and of the previous one
    more, before = 1.0, 1.0
    for launch in full:
        nothing = launch | {"counts": dict.fromkeys(NAMES, 0.0)}
        first, second = (
            side.pop(0) if side and side[0]["kernel"] == launch["kernel"] else nothing
            for side in sides
        )
        a, b = first["counts"], second["counts"]
        found.append({key: max(0.0, a[key] + (times - 1) * (b[key] - a[key])) for key in a})
        before, more = more, math.prod(launch["grid"]) / math.prod(first["grid"])
        found[-1]["written"] = a["written"] * more
        if launch["grid"] == first["grid"] and launch["grid"][0] > 1:  # it adds up those blocks
            found[-1]["read"] = a["read"] * before
    if any(sides):
        raise ValueError(f"row {number} {dtype}: small sizes launch other kernels than full ones")
    return found


def resident(kernel: gates.Kernel, threads: int, shared: int) -> int:
    """Returns the blocks of a kernel per multiprocessor of sm_90. `shared` includes the system's 1
    KiB."""
    warps = -(-threads // 32)
    by_registers = 65536 // (-(-max(kernel.registers, 1) * 32 // 256) * 256 * warps)
    by_shared = (228 << 10) // shared
    return min(32, WARPS // warps, by_registers, by_shared)


def predicted_us(memory_bytes: float, issued: float, warps: float, blocks: float) -> float:
    """Evaluates the formula above; `issued` counts warp instructions."""
    memory, issue = memory_bytes / BYTES_PER_US, issued / INSTRUCTIONS_PER_US
    share = min(1.0, blocks / MULTIPROCESSORS)
    if share < 1:
        return START_US + memory / share
    alone = 1 - min(1.0, warps / WARPS)
    return START_US + max(memory, issue) + OVERLAP * alone * min(memory, issue)


def kernel_row(launch: Any, kernel: gates.Kernel, counts: Any, elements: int) -> dict[str, Any]:
    """Returns a launch with its prediction."""
    blocks, threads = math.prod(launch["grid"]), launch["threads"]
    shared = max(kernel.shared, 1024) + launch["shared_bytes"]
    fit = resident(kernel, threads, shared)
    warps = -(-threads // 32) * min(fit, blocks / MULTIPROCESSORS)
    in_flight = counts["read"] * min(1.0, fit * MULTIPROCESSORS / blocks)
    missed = min(1.0, (in_flight / L2_BYTES) ** 2)
    moved = counts["read"] + counts["written"] + missed * counts["again"]
    us = predicted_us(moved, counts["issued"] / 32, warps, blocks)
    return {
        "kernel": launch["kernel"],
        "grid": "x".join(map(str, launch["grid"])),
        "threads": threads,
        "registers": kernel.registers,
        "shared": shared - 1024,
        "spills": kernel.spills,
        "warps": round(warps, 1),
        "instructions per element": round(counts["issued"] / elements, 1),
        "MB": round(moved / 1e6, 1),
        "us": round(us, 1),
    }


def row_of(number: int, dtype: str, told: Any) -> dict[str, Any]:
    """Returns a row: its kernels and their totals."""
    import gpu_rows

    machine = gates.measure(gates.cubin(told["source"], 90))
    counts = extended(number, dtype, told["launches"])
    elements = math.prod(gpu_rows.SIZES[number])
    kernels = [
        kernel_row(launch, machine[launch["kernel"]], count, elements)
        for launch, count in zip(told["launches"], counts, strict=True)
    ]
    total = sum(kernel["us"] for kernel in kernels) + GAP_US * (len(kernels) - 1)
    floor = told["bytes"] / 3.0e6
    out = {
        "launches": len(kernels),
        "floor us": round(floor, 1),
        "predicted us": round(total, 1),
        "floor / predicted": round(floor / total, 3),
        "spills": sum(kernel["spills"] for kernel in kernels),
        "instructions per element": round(sum(c["issued"] for c in counts) / elements, 1),
        "host us": told["host us"],
        "kernels": kernels,
    }
    return out | compared(number, dtype)


def compared(number: int, dtype: str) -> dict[str, float]:
    """Returns torch.compile's time: measured on an H100 if available, and otherwise predicted
    (f32)."""
    import rows

    title = rows.ROWS[number].named((0,)).partition(" (")[0]
    listed = json.loads((MEASURED / "gpu_rows_nvidia_h100_80gb_hbm3.json").read_text())["rows"]
    for row in listed:
        is_same = row["row"].startswith(title) and row["dtype"] == dtype and row.get("compiled ms")
        if is_same and number != 2:  # rows 1 and 2 have the same title
            return {"compiled us, measured": round(1e3 * row["compiled ms"], 1)}
    return {"compiled us, predicted": 1e3 * COMPILED_MS[number]} if dtype == "f32" else {}


def fit() -> dict[str, float]:
    """Returns how well the formula fits kernels of 20 us and more that were measured on an H100."""
    path = MEASURED / "gpu_kernels_nvidia_h100_80gb_hbm3.json"
    errors = []
    for row in json.loads(path.read_text())["rows"]:
        if not row.get("M instructions") or not row["grid"] or row["launch us"] < 20:
            continue
        blocks = math.prod(map(int, row["grid"].split("x")))
        if blocks < MULTIPROCESSORS:
            continue
        warps = min(row["blocks / SM"], blocks / MULTIPROCESSORS) * -(-row["threads"] // 32)
        us = predicted_us(row["dram bytes"], 1e6 * row["M instructions"], warps, blocks)
        errors.append(math.log(us / row["launch us"]))
    return {
        "kernels": len(errors),
        "typical error": round(math.sqrt(statistics.fmean(e * e for e in errors)), 3),
        "largest error": round(max(map(abs, errors)), 3),
    }


def environment(driver: Path) -> dict[str, str]:
    """Returns the environment of processes that use `driver`."""
    return {
        "CUTBACK_CUDA_DRIVER": str(driver),
        "CUTBACK_NVRTC": str(nvrtc.library()),
        "CUTBACK_CUBLASLT": "none",
        "CUTBACK_CACHE_DIR": str(HERE.parents[1] / "build" / "gpu_sim" / "cutback_kernels"),
    }


def measured(numbers: Sequence[int]) -> dict[str, Any]:
    """Returns the gates of some rows. CUTBACK_CUDA_DRIVER must name the stand-in
    (`environment`)."""
    import null_driver

    command = [sys.executable, str(HERE / "row_gates.py"), "--launched", *map(str, numbers)]
    full = os.environ | environment(null_driver.build())
    full.pop("CUTBACK_CUDA_CODE", None)
    with tempfile.TemporaryFile("w+") as out:
        subprocess.run(command, env=full, check=True, stdout=out)
        out.seek(0)
        told = json.load(out)
    found = {f"row {name}": row_of(int(name.split()[0]), name.split()[1], told[name])
             for name in told}  # fmt: skip
    return {"constants": constants(), "fit": fit(), "rows": found}


def constants() -> dict[str, float]:
    return {
        "bytes per us": BYTES_PER_US,
        "instructions per us": INSTRUCTIONS_PER_US,
        "overlap": OVERLAP,
        "start us": START_US,
        "gap us": GAP_US,
        "L2 bytes": L2_BYTES,
    }


def lines(rows: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Returns one line for each row, with the previously known time, and one for each kernel."""
    out = []
    for name, row in rows.items():
        before = known.get("rows", {}).get(name, {}).get("predicted us", 0)
        other = [v for k, v in row.items() if k.startswith("compiled")]
        out.append(
            f"{name:11} {row['predicted us']:7} us (was {before}; floor {row['floor us']}, "
            f"torch.compile {other[0] if other else '?'}), {row['instructions per element']} "
            f"instructions an element, host {row['host us']} us"
        )
        out += [f"    {' '.join(f'{k} {v}' for k, v in k.items())}" for k in row["kernels"]]
    return out


def mean(rows: dict[str, Any], dtype: str) -> float:
    """Returns the geometric mean of floor / predicted."""
    found = [row["floor / predicted"] for name, row in rows.items() if name.endswith(f" {dtype}")]
    return round(statistics.geometric_mean(found), 3)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--launched"]:
        json.dump(launched([int(n) for n in arguments[1:]]), sys.stdout)
        return
    from client import build

    writes = not arguments or arguments[0] == "--write"
    numbers = [int(n) for n in arguments if n != "--write"] or ROWS
    os.environ |= environment(build()) | {"CUTBACK_CUDA_CODE": "ptx"}
    found = measured(numbers)
    known = json.loads(GATES.read_text()) if GATES.exists() else {}
    print("\n".join(lines(found["rows"], known)))
    if not writes:
        return
    found["rows"] = known.get("rows", {}) | found["rows"]
    found["means"] = {dtype: mean(found["rows"], dtype) for dtype in DTYPES}
    found["before"] = known.get("before") or {
        name: row["predicted us"] for name, row in (known or found)["rows"].items()
    }
    print("floor / predicted, geometric means:", found["means"])
    GATES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
