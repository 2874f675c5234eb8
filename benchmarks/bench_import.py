"""Claim: importing cutback takes less than 6 ms more than importing NumPy, and less than 50 ms more
with everything that a first step needs; the wheel stays under 3 MB.

python benchmarks/bench_import.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import save, summary


def seconds(code: str) -> float:
    """Returns the wall time of a fresh interpreter that runs `code`, measured inside it."""
    probe = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return float(subprocess.check_output([sys.executable, "-c", probe], text=True))


def wheel_bytes() -> int:
    """Returns the size of a wheel built from this checkout."""
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder,
            str(root),
        ]
        subprocess.check_call(command)
        return next(Path(folder).glob("*.whl")).stat().st_size


AFTER_NUMPY = "import numpy; t = time.perf_counter(); import cutback"
WHAT = {
    "import numpy": "import numpy",
    "import cutback after numpy": AFTER_NUMPY,
    "and what a first step loads": f"{AFTER_NUMPY}; cutback.compile; cutback.tanh; cutback.optim",
}


def main() -> None:
    """Measures in turns, so that caches and other load affect all equally."""
    ms: dict[str, list[float]] = {what: [] for what in WHAT}
    for _ in range(41):
        for what, code in WHAT.items():
            ms[what].append(1e3 * seconds(code))
        time.sleep(0.01)
    rows = [{"what": what, "unit": "ms", **summary(ms[what])} for what in WHAT]
    rows.append({"what": "wheel", "unit": "bytes", "median": wheel_bytes()})
    save("import", "python benchmarks/bench_import.py", rows)


if __name__ == "__main__":
    main()
