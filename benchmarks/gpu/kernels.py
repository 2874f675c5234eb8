"""Each kernel of a row separately: time, bytes of memory, warps and instructions from Nsight
Compute; if that has no counters, times from torch.profiler; without PyTorch, times of groups from
events.

python kernels.py --profiled "row 4" DTYPE      run by ncu: one step between start and stop
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "gpu")]

import gpu_rows
import items
import launches
import numpy as np
from device_clock import DeviceClock, Driver, about, is_small, torch_with_gpu

METRICS = {  # ncu's metrics: our name, and the factor from the base unit
    "gpu__time_duration.sum": ("us", 1e6),
    "dram__bytes.sum": ("dram bytes", 1.0),
    "smsp__inst_executed.sum": ("instructions", 1.0),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("warps %", 1.0),
}
UNITS = {  # ncu's units, in seconds, bytes or numbers
    "": 1.0, "%": 1.0, "inst": 1.0, "s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3,
    "us": 1e-6, "usecond": 1e-6, "ns": 1e-9, "nsecond": 1e-9, "byte": 1.0, "Kbyte": 1e3,
    "Mbyte": 1e6, "Gbyte": 1e9, "KB": 1e3, "MB": 1e6, "GB": 1e9, "Kinst": 1e3, "Minst": 1e6,
}  # fmt: skip
SECONDS = 40  # time limit for ncu


class NoCountersError(RuntimeError):
    """ncu is missing or gives no counters; the text gives the reason."""


# ---- the profiled program ------------------------------------------------------------------------


class Profiled:
    """A step of a row, or of AdamW, on device arrays."""

    def __init__(self, name: str, dtype: str) -> None:
        import cutback as cb
        from cutback import cuda

        self.clock = DeviceClock()
        self.row: gpu_rows.Row | None = None
        if name.startswith("row "):
            self.row = gpu_rows.Row(int(name.removeprefix("row ")), dtype)
            params, data, self.step = self.row.params, self.row.data, self.row.step
        else:
            shapes = [(5,)] * 3 if is_small() else gpu_rows.TENSORS["GPT-2 124M"]
            params = [cuda.to_device(np.full(shape, 0.5, np.float32)) for shape in shapes]
            data = []
            self.updated = gpu_rows.ADAMW_BYTES * sum(int(np.prod(shape)) for shape in shapes)
            optimizer = cb.optim.AdamW(lr=1e-4)
            self.step = cb.compile(gpu_rows.squares, optimizer=optimizer, device="cuda")
        self._arguments = (params, *data)
        for _ in range(2):
            self.run()

    def run(self) -> None:
        """Runs one call after flushing the L2 cache."""
        self.clock.flush()
        result = self.step(*self._arguments, stream=self.clock.stream)
        self.clock.wait()
        self.step.wait()
        del result

    def groups(self) -> list[dict[str, Any]]:
        """Returns the groups with their launches; the last one includes the optimizer's."""
        found = launches.groups(self.step.executable)
        if update := launches.update(self.step.executable):
            group = {"ops": "optimizer", "bytes": self.updated, "flops": {}}
            found.append({**group, "launches": update})
        return found


def profiled(name: str, dtype: str) -> None:
    """Runs one step between start and stop of a profiler; prints the groups."""
    what, driver = Profiled(name, dtype), Driver()
    has_profiler = hasattr(driver.library, "cuProfilerStart")  # the stand-in does not have it
    if has_profiler:
        driver.call("cuProfilerStart")
    what.run()
    if has_profiler:
        driver.call("cuProfilerStop")
    print(json.dumps(what.groups()))


# ---- ncu -----------------------------------------------------------------------------------------


def plain(name: str) -> str:
    """Returns a kernel's name without parameters: "void cb_k0(float const*)" is "cb_k0"."""
    return re.split(r"[(<]", name)[0].removeprefix("void ").strip()


def read_ncu(text: str) -> list[dict[str, Any]]:
    """Returns the kernels in the output of ``ncu --csv --page raw``: names, and METRICS in
    microseconds, bytes, instructions and percent. Missing metrics are left out.

    Raises:
        NoCountersError: if there are none; the text quotes ncu.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.DictReader(lines))
    said = "; ".join(
        line.strip("= ")
        for line in text.splitlines()
        if line.startswith("==") and "PROF==" not in line
    )[:500]
    if not table or "Kernel Name" not in table[0]:
        raise NoCountersError(said or "ncu wrote nothing")
    units = table[0] if not (table[0]["Kernel Name"] or "").strip() else {}
    found = []
    for row in table:
        name = (row["Kernel Name"] or "").strip()
        if not name:
            continue
        kernel: dict[str, Any] = {"name": plain(name)}
        for metric, (key, factor) in METRICS.items():
            number = (row.get(metric) or "").replace(",", "")
            unit = (units.get(metric) or "").strip()
            try:
                kernel[key] = float(number) * UNITS[unit] * factor
            except (ValueError, KeyError):
                continue  # "n/a", or an unknown unit
        found.append(kernel)
    if not any(set(kernel) > {"name"} for kernel in found):
        raise NoCountersError(said or "ncu wrote no metrics")
    return found


def by_ncu(name: str, dtype: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns (groups, kernels) of a step under ncu.

    Raises:
        NoCountersError: if ncu is missing or failed.
    """
    program = shutil.which("ncu")
    if program is None:
        raise NoCountersError("there is no ncu")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            program, "--clock-control", "none", "--profile-from-start", "off", "--csv",
            "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS),
            "--log-file", str(log), sys.executable, str(HERE / "kernels.py"), "--profiled", name,
            dtype,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoCountersError(f"ncu did not end within {SECONDS} s") from None
        text = log.read_text(errors="replace") if log.exists() else ""
    try:
        kernels = read_ncu(text)
        groups = json.loads(done.stdout.strip().splitlines()[-1])
    except NoCountersError as error:
        raise NoCountersError(f"{error} (exit status {done.returncode})") from None
    except (ValueError, IndexError):
        end = (done.stderr or done.stdout).strip()[-500:]
        raise NoCountersError(f"the step under ncu ended with {done.returncode}: {end}") from None
    return groups, kernels


# ---- torch.profiler ------------------------------------------------------------------------------


def by_torch(what: Profiled, torch: Any) -> list[dict[str, Any]]:
    """Returns names and microseconds of the kernels of a step: medians over some runs."""
    from torch.profiler import ProfilerActivity, profile

    rounds = 2 if is_small() else 10
    with profile(activities=[ProfilerActivity.CUDA]) as measured:
        for _ in range(rounds):
            what.run()
    return medians(in_order(measured.events(), torch.autograd.DeviceType.CUDA), rounds)


def medians(seen: Sequence[tuple[str, float]], rounds: int) -> list[dict[str, Any]]:
    """Returns the kernels of one run, from (name, microseconds) of the kernels of some equal runs.

    Raises:
        NoCountersError: if the runs are not equal, or there are no kernels.
    """
    n = len(seen) // rounds
    runs = [seen[k * n : (k + 1) * n] for k in range(rounds)]
    names = [name for name, _ in seen[:n]]
    if n == 0 or len(seen) % rounds or any([name for name, _ in run] != names for run in runs):
        raise NoCountersError(f"torch.profiler has seen {len(seen)} kernels in {rounds} equal runs")
    return [
        {"name": name, "us": statistics.median(run[k][1] for run in runs)}
        for k, name in enumerate(names)
    ]


def in_order(events: Iterable[Any], cuda: Any) -> list[tuple[str, float]]:
    """Returns (name, microseconds) of the kernels among the events of a profile, in order."""
    kernels = [
        (event.time_range.start, event.name, event.time_range.elapsed_us())
        for event in events
        if event.device_type == cuda and not event.name.startswith(("Memset", "Memcpy"))
    ]
    return [(plain(name), float(us)) for _, name, us in sorted(kernels)]


# ---- together ------------------------------------------------------------------------------------


def joined(groups: list[dict[str, Any]], kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups with measurements of their launches, which are the kernels in order; a
    foreign kernel between two of ours belongs to the product there.

    Raises:
        NoCountersError: if the kernels are not those that the step launches.
    """
    rest = list(kernels)
    for group in groups:
        for launch in group["launches"]:
            if "kernel" in launch:
                if not rest or rest[0]["name"] != launch["kernel"]:
                    seen = rest[0]["name"] if rest else "nothing"
                    raise NoCountersError(f"{launch['kernel']} was launched and {seen} measured")
                launch |= {k: v for k, v in rest.pop(0).items() if k != "name"}
            else:
                parts = []
                while rest and not rest[0]["name"].startswith("cb_"):
                    parts.append(rest.pop(0))
                _add_product(launch, parts)
        if all("us" in launch for launch in group["launches"]):
            group["us"] = sum(launch["us"] for launch in group["launches"])
    if rest:
        raise NoCountersError(f"{rest[0]['name']} was measured, and the step does not launch it")
    return groups


def _add_product(launch: dict[str, Any], parts: Sequence[dict[str, Any]]) -> None:
    """Adds up the times of the kernels of cuBLASLt."""
    launch["kernels"] = [part["name"] for part in parts]
    for key in ("us", "dram bytes", "instructions"):
        if parts and all(key in part for part in parts):
            launch[key] = sum(part[key] for part in parts)


def _by_events(what: Profiled) -> list[dict[str, Any]]:
    groups = what.groups()
    if what.row is not None:
        for group, ms in zip(groups, what.row.group_ms(2 if is_small() else 10), strict=False):
            group["us"] = 1e3 * ms
    elif groups:
        groups[-1]["us"] = 1e6 * what.step.executable.update_seconds
    return groups


def measured(name: str, dtype: str) -> dict[str, Any]:
    """Measures the item of stage kernels: the groups of a step, and the tool that measured their
    times."""
    found: dict[str, Any] = {"what": name, "dtype": dtype, **about()}
    ways: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ncu": lambda: joined(*by_ncu(name, dtype))
    }
    what: list[Profiled] = []

    def here() -> Profiled:
        if not what:
            what.append(Profiled(name, dtype))
        return what[0]

    ways["torch.profiler"] = lambda: _torch_groups(here())
    ways["events"] = lambda: _by_events(here())
    for way, run in ways.items():
        try:
            found |= {"by": way, "groups": run()}
            break
        except NoCountersError as error:
            found[f"no {way}"] = str(error)
            items.show(found)
    found["line"] = line(found)
    return found


def _torch_groups(what: Profiled) -> list[dict[str, Any]]:
    torch, why = torch_with_gpu()
    if torch is None:
        raise NoCountersError(why)
    return joined(what.groups(), by_torch(what, torch))


def line(found: dict[str, Any]) -> str:
    """Returns the time and the longest group, for the report."""
    groups = [group for group in found["groups"] if "us" in group]
    if not groups:
        return f"by {found['by']}: no times"
    longest = max(groups, key=lambda group: float(group["us"]))
    total = sum(group["us"] for group in groups)
    return f"by {found['by']}: {total:.1f} us, the longest {longest['ops']} {longest['us']:.1f} us"


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--profiled":
        profiled(sys.argv[2], sys.argv[3])
    else:
        sys.exit(f"usage: {sys.argv[0]} --profiled ROW DTYPE")
