"""Claim: in a memory-bound step, no plan is slower than saving everything: values are recomputed
inside kernels that read them anyway, whether single ops or groups were planned.

    python benchmarks/cpu/bench_groups.py [--rounds 9] [--quick] [--only 1,2 [--replace]]

Measures EvoNorm planned in groups; the memory-bound rows of `rows.py` by default, saving everything
and by a cut; and an encoder of six layers. The plans of a row run in turns; a number is the median
of the rounds, and ratios are relative to saving everything. "kernels" means that a plan runs the
kernels of saving everything: then the ratio is noise. "modelled" is the cost model's time for the
kernels that ran, on this machine's measured device, divided by the median; the device is measured
in each round, because clocks drift, and the median of each rate is used. Rows where the model is
off by more than 15 % are listed last, with the worst kernel. Exits with 1 if two plans differ in a
bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import ours
import rows
from common import interleave, save, written

import cutback as cb
from cutback import devices
from cutback.nn import functional as F

COMMAND = "python benchmarks/cpu/bench_groups.py"
ALL = "save everything"
IN_GROUPS = {
    ALL: {"preset": "autograd", "groups": True},
    "recompute everything": {"preset": "recompute_all", "groups": True},
    "aggressive": {"preset": "aggressive", "groups": True},
    "min-cut": {"preset": "shape-aware", "groups": True},
}
AS_THEY_COME = {ALL: {"preset": "autograd"}, "min-cut": {"preset": "aggressive"}}
ENCODER = {
    ALL: {"preset": "autograd"},
    "conservative": {"preset": "conservative"},
    "aggressive": {"preset": "aggressive"},
    "shape-aware": {"preset": "shape-aware"},
    "half the arena": {"budget": "0.5x"},
    "half the arena, in groups": {"budget": "0.5x", "groups": True},
}
LAYERS = 6
OFF = 0.15  # of the measured time


def encoder(params: Any, x: Any) -> Any:
    for p in params:
        mixed = ours._attention(p, x, 8, False, 0.1)
        x = ours._norm(p["norm1"], x + F.dropout(mixed, 0.1))
        y = ours._dense(p["down"], F.dropout(F.gelu(ours._dense(p["up"], x)), 0.1))
        x = ours._norm(p["norm2"], x + F.dropout(y, 0.1))
    return ours._squares(x)


def encoder_inputs(quick: bool) -> tuple[Any, list[Any]]:
    layers, sizes = (2, (2, 8, 32)) if quick else (LAYERS, (8, 256, 512))
    params = [rows._block(np.random.default_rng(k), sizes)[0] for k in range(layers)]
    first, *_ = [layer.pop("x") for layer in params]
    return params, [first]


def kernels(step: Any) -> Any:
    return json.loads(step.executable.text("kernels"))["groups"]


def modelled_ms(step: Any) -> list[float]:
    """Returns the modelled time of each kernel, in order."""
    return [group["modelled_ps"] / 1e9 for group in kernels(step)]


def same_kernels(step: Any, whole: Any) -> bool:
    """True if both run the same kernels. Values recomputed from present ones affect neither the
    bytes that a kernel moves nor its modelled time."""
    keys = ("elements", "columns", "read_bytes", "written_bytes", "scratch_bytes")
    ours, theirs = kernels(step), kernels(whole)
    return len(ours) == len(theirs) and all(
        all(a[key] == b[key] for key in keys)
        and abs(a["modelled_ps"] - b["modelled_ps"]) <= 1e-6 * a["modelled_ps"]
        for a, b in zip(ours, theirs, strict=True)
    )


def typical(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median of each rate."""

    def middle(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: middle([value[key] for value in values]) for key in values[0]}
        return values[0] if isinstance(values[0], str) else statistics.median(values)

    found: dict[str, Any] = middle(measured)
    return found


def furthest_off(step: Any, params: Any, data: list[Any]) -> str:
    """Returns the kernel whose modelled time is furthest from the measured one. For a plan in
    groups, whose kernels are not timed separately, returns the longest kernel."""
    if step.plan.in_groups:
        ours = kernels(step)
        said, kernel = max(zip(modelled_ms(step), ours, strict=True), key=lambda pair: pair[0])
        return f"{len(ours)} kernels, {kernel['ops'][0]['name']}+: {said:.2f} ms modelled"
    profiles = [step.profile(params, *data).kernels for _ in range(3)]
    took = [min(kernel.seconds for kernel in same) * 1e3 for same in zip(*profiles, strict=True)]
    said = modelled_ms(step)
    at = max(range(len(said)), key=lambda k: abs(said[k] - took[k]))
    return f"{profiles[0][at].kind}: {said[at]:.2f} ms modelled, {took[at]:.2f} ms by itself"


def prepared(loss: Callable[..., Any], params: Any, data: list[Any], options: Any) -> Any:
    """Returns (step, one call of it, the bits of its gradients)."""
    step = cb.value_and_grad(loss, **options)
    _, gradients = step(params, *data, rng_step=0)
    bits = b"".join(array.tobytes() for array in rows.leaves(gradients))
    return step, lambda: step(params, *data, rng_step=0), bits


def measure(name: str, loss: Any, params: Any, data: Any, plans: Any, rounds: int) -> Any:
    """Returns the rows of one function; exits if plans differ."""
    machine = [devices.measured(fresh=True)]

    def steps(device: Any) -> Any:
        return {
            plan: prepared(loss, params, data, {"device": device, **options})
            for plan, options in plans.items()
        }

    made = steps("measured")
    if len({bits for _, _, bits in made.values()}) > 1:
        sys.exit(f"{name}: plans differ in their gradients")
    calls = {plan: call for plan, (_, call, _) in made.items()}

    def look() -> None:
        """Measures the machine; the last plan then leaves the caches in their usual state."""
        machine.append(devices.measure())
        calls[list(plans)[-1]]()

    times = interleave({**calls, "the machine": look}, rounds)
    judged = steps(typical(machine))
    found = []
    for plan, (step, _, _) in made.items():
        said = sum(modelled_ms(judged[plan][0])) / times[plan]["median"]
        row = {
            "row": name,
            "plan": plan,
            **times[plan],
            "unit": "ms",
            "ratio": times[plan]["median"] / times[ALL]["median"],
            "saved_bytes": step.planned.saved_bytes,
            "arena_bytes": step.executable.planned.arena_bytes,
            "modelled": said,
        }
        if plan != ALL and same_kernels(step, made[ALL][0]):
            row["kernels"] = "of save everything"
        if abs(said - 1) > OFF:
            row["off_by"] = furthest_off(judged[plan][0], params, data)
        print(
            f"{name}, {plan}: {row['median']:.2f} ms ({row['ratio']:.3f}), saved "
            f"{row['saved_bytes'] / 2**20:.1f} MiB, arena {row['arena_bytes'] / 2**20:.1f} MiB, "
            f"modelled {said:.2f} of the time {row.get('kernels', '')}",
            flush=True,
        )
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small arrays, nothing is written")
    parser.add_argument("--only", type=str, help='such rows alone, "1,2" (10: the encoder)')
    parser.add_argument("--replace", action="store_true", help="writes the rows of --only, too")
    args = parser.parse_args()
    chosen = rows.chosen(args.only)
    found = []
    for number in set(rows.MEMORY_BOUND) & set(chosen):
        row = rows.ROWS[number]
        params, data = rows.inputs(number, args.quick)
        loss = ours.LOSSES[number]
        if number in (1, 2):
            name = f"{row.name}, planned in groups"
            found += measure(name, loss, params, data, IN_GROUPS, args.rounds)
        found += measure(row.name, loss, params, data, AS_THEY_COME, args.rounds)
    name = f"encoder of {LAYERS} layers (8,256,512), dropout"
    if 10 in chosen:
        found += measure(name, encoder, *encoder_inputs(args.quick), ENCODER, args.rounds)
    off = [row for row in found if "off_by" in row]
    print(f"modelled within {OFF:.0%}: {len(found) - len(off)} of {len(found)}")
    for row in off:
        print(f"  {row['row']} ({row['plan']}): {row['modelled']:.2f}; {row['off_by']}")
    if args.replace:
        known = {(row["row"], row["plan"]): row for row in written("cpu_groups")}
        found = list((known | {(row["row"], row["plan"]): row for row in found}).values())
    if not args.quick and (args.replace or not args.only):
        save("cpu_groups", COMMAND, found)


if __name__ == "__main__":
    main()
