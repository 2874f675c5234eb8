"""One contestant on one row, in its own process: builds, warms up, then answers requests.

`bench_fused.py` starts it with a JSON object as its argument, and exchanges JSON lines over
standard input and output. It is a separate process because glibc's memory settings are fixed when a
process starts; it uses no time while it waits for its turn.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rows

WARM = 3  # untimed steps after the first
LEAST_MS, MOST_STEPS = 50.0, 5  # a turn is enough steps to take this long, up to this number
TRIAD = 1 << 24


class Subject(NamedTuple):
    """A timed step."""

    step: Callable[[], Any]
    gradients: Callable[[], list[np.ndarray]] | None = None
    facts: Callable[[], dict[str, Any]] = dict
    """What is known once steps have run."""
    products: Callable[[], Any] | None = None


def ours(number: int, quick: bool, threads: int) -> Subject:
    """Returns Cutback without a budget, which saves everything that the backward reads."""
    import ours as losses

    import cutback as cb

    cb.set_num_threads(threads)
    params, data = rows.inputs(number, quick)
    loss = functools.partial(losses.LOSSES[number], **rows.ROWS[number].options)
    step = cb.value_and_grad(loss)

    def facts() -> dict[str, Any]:
        assert step.stats is not None
        least = rows.least_bytes(params, data)
        arena = step.planned.arena_bytes
        return {"peak_bytes": step.stats.peak_bytes, "arena_bytes": arena, "least_bytes": least}

    return Subject(
        lambda: step(params, *data),
        lambda: rows.leaves(step(params, *data)[1]),
        facts,
        losses.products_step(number, quick),
    )


def in_torch(number: int, quick: bool, threads: int, compiled: bool) -> Subject:
    """Returns PyTorch, eager or compiled by Inductor."""
    import in_torch as losses
    import torch

    torch.set_num_threads(threads)
    params, data = rows.inputs(number, quick)
    loss = functools.partial(losses.loss_of(number, params), **rows.ROWS[number].options)
    params = rows.mapped(params, lambda array: torch.tensor(array, requires_grad=True))
    data = rows.mapped(data, torch.tensor)
    wrt = rows.leaves(params)
    if compiled:
        import torch._inductor.compile_fx  # seconds, which should not count as compiling

        loss = torch.compile(loss, dynamic=False, fullgraph=True)

    def step() -> tuple[Any, tuple[Any, ...]]:
        value = loss(params, *data)
        return value, torch.autograd.grad(value, wrt)

    return Subject(step, lambda: [gradient.numpy() for gradient in step()[1]])


def in_jax(number: int, quick: bool, threads: int) -> Subject:
    """Returns JAX, compiled by XLA, with one thread for each core that it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import in_jax as losses
    import jax

    params, data = rows.mapped(rows.inputs(number, quick), jax.numpy.asarray)
    loss = functools.partial(losses.LOSSES[number], **rows.ROWS[number].options)
    step = jax.jit(jax.value_and_grad(loss))
    return Subject(
        lambda: jax.block_until_ready(step(params, *data)),
        lambda: rows.leaves(rows.mapped(step(params, *data)[1], np.asarray)),
        lambda: {"version": jax.__version__},
    )


def triad(quick: bool, threads: int) -> Subject:
    """Returns a = b + 3 c, which measures the memory bandwidth with this many threads."""
    import torch

    torch.set_num_threads(threads)
    a, b, c = (torch.ones(TRIAD >> 6 if quick else TRIAD) for _ in range(3))
    moved = sum(t.numel() * t.element_size() for t in (a, b, c))
    return Subject(lambda: torch.add(b, c, alpha=3.0, out=a), facts=lambda: {"least_bytes": moved})


def build(kind: str, number: int, quick: bool, threads: int) -> Subject:
    """Returns the contestant of that name."""
    if kind == "ours":
        return ours(number, quick, threads)
    if kind in ("eager", "inductor"):
        return in_torch(number, quick, threads, kind == "inductor")
    if kind == "jax":
        return in_jax(number, quick, threads)
    return triad(quick, threads)


def clock_for(threads: int) -> Callable[[], float]:
    """Returns a clock in seconds: processor time on one thread, which other load on the machine
    hardly affects, and elapsed time otherwise."""
    return time.process_time if threads == 1 else time.perf_counter


def timed(step: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Returns the milliseconds of a step; its results are dropped after the clock has stopped."""
    begin = clock()
    results = step()
    end = clock()
    del results
    return 1e3 * (end - begin)


class Turns:
    """Runs turns: one untimed step, because the caches hold other data, and then some timed
    ones."""

    def __init__(self, step: Callable[[], Any], clock: Callable[[], float], quick: bool) -> None:
        self.step, self.clock = step, clock
        for _ in range(1 if quick else WARM):
            last = timed(step, clock)
        self.steps = 1 if quick else max(1, min(MOST_STEPS, round(LEAST_MS / last)))

    def turn(self) -> float:
        """Returns the median milliseconds of the timed steps."""
        timed(self.step, self.clock)
        return statistics.median(timed(self.step, self.clock) for _ in range(self.steps))


def main() -> None:
    """Answers requests on the original standard output; what libraries print goes to standard
    error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])
    quick = task["quick"]

    def answer(**found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    subject = build(task["kind"], task["row"], quick, task["threads"])
    clock = clock_for(task["threads"])
    first = timed(subject.step, clock)  # the inputs exist: traces, plans, compiles and runs
    turns = Turns(subject.step, clock, quick)
    products = Turns(subject.products, clock, quick) if subject.products is not None else None
    answer(first=first, products=products is not None, **subject.facts())
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        if command == "gradients" and subject.gradients is not None:
            for i, array in enumerate(subject.gradients()):
                np.save(Path(path) / f"{i}.npy", array)
            answer()
        elif command == "products" and products is not None:
            answer(ms=products.turn())
        elif command == "step":
            answer(ms=turns.turn())
        else:
            raise SystemExit(f"worker: what is {line!r}?")


if __name__ == "__main__":
    main()
