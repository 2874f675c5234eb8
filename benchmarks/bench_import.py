"""Claim: importing cutback costs less than 50 ms over importing NumPy; the wheel stays under 3 MB.

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
    """Wall time of a fresh interpreter that runs `code`, measured inside it."""
    probe = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return float(subprocess.check_output([sys.executable, "-c", probe], text=True))


def wheel_bytes() -> int:
    """Size of a wheel built from this checkout."""
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


def main() -> None:
    """Measure in turns, so that caches and neighbours treat both alike."""
    numpy_ms, extra_ms = [], []
    for _ in range(21):
        numpy_ms.append(1e3 * seconds("import numpy"))
        extra_ms.append(1e3 * seconds("import numpy; t = time.perf_counter(); import cutback"))
        time.sleep(0.01)
    rows = [
        {"what": "import numpy", "unit": "ms", **summary(numpy_ms)},
        {"what": "import cutback after numpy", "unit": "ms", **summary(extra_ms)},
        {"what": "wheel", "unit": "bytes", "median": wheel_bytes()},
    ]
    save("import", "python benchmarks/bench_import.py", rows)


if __name__ == "__main__":
    main()
