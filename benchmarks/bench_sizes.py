"""Claim: under a budget, a new batch size of 60 small layers costs at most 30 ms of processor time
besides tracing, once a plan for its canonical size exists.

python benchmarks/bench_sizes.py
"""

from __future__ import annotations

import time

import numpy as np
from common import save, summary

import cutback as cb

LAYERS, WIDTH = 60, 32


def main() -> None:
    """Measures the processor time of tracing only, of a new size, and of the first size at a
    canonical size."""
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for _ in range(LAYERS)]

    def loss(params, x):
        for w in params:
            x = cb.tanh(x @ w)
        return (x * x).mean()

    step = cb.compile(loss, optimizer=cb.optim.AdamW(), budget=0.5)
    ms: dict[str, list[float]] = {"trace": [], "new size": [], "new canonical size": []}
    step.prepare(params, np.zeros((1000, WIDTH), np.float32))
    for rows in range(1001, 1042):
        x = np.zeros((rows, WIDTH), np.float32)
        begin = time.process_time()
        cb.trace(loss, params, x, argnums=0)
        traced, planned = time.process_time(), step.n_planned
        step.prepare(params, x)
        end = time.process_time()
        ms["trace"].append(1e3 * (traced - begin))
        what = "new size" if step.n_planned == planned else "new canonical size"
        ms[what].append(1e3 * (end - traced))
    rows_out = [{"what": what, "unit": "ms", **summary(times)} for what, times in ms.items()]
    save("sizes", "python benchmarks/bench_sizes.py", rows_out)


if __name__ == "__main__":
    main()
