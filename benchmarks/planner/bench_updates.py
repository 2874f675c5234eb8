"""Claim: updates inside the plan lower the smallest peak of a training step.

python benchmarks/planner/bench_updates.py

Trains the demo's GPT and ConvNet with AdamW. Peaks are measured in a run of the step and count
activations, gradients and scratch, without parameters and optimizer states. Traced graphs are only
planned, and the referee checks their plans. "time, inside / separate" is the ratio of processor
times with one thread, a median over alternating steps that save everything, so that both make the
same decisions.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent.parent / "tests" / "reference"))
sys.path.insert(0, str(HERE.parent.parent / "examples" / "demo"))

import convnet  # noqa: E402
import evaluate  # noqa: E402
import gpt  # noqa: E402
from common import GRAPHS, GRAPHS_DEVICE, save  # noqa: E402

import cutback as cb  # noqa: E402
from cutback import _native  # noqa: E402

COMMAND = "python benchmarks/planner/bench_updates.py"
TRACED = (
    "llama_32layers",
    "gpt2_small_plain",
    "vit_base",
    "bert_base",
    "transformer_encoder",
    "resnet50_bn",
)


def gpt_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the loss of the demo's GPT, and its arguments."""
    config = gpt.GPTConfig(vocab=100)
    random = np.random.default_rng(1)
    tokens = random.integers(0, config.vocab, (16, config.context))
    arguments = (gpt.init(config, random), tokens, np.roll(tokens, -1, 1))
    return (lambda p, x, y: gpt.loss(p, x, y, config)), arguments


def conv_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the loss of the demo's ConvNet, and its arguments."""
    config = convnet.ConvConfig()
    random = np.random.default_rng(3)
    params, states = convnet.init(config, random)
    images = random.standard_normal((128, 1, 8, 8)).astype(np.float32)
    labels = random.integers(0, config.classes, 128)
    return (lambda p, s, x, y: convnet.loss(p, s, x, y, config)), (params, states, images, labels)


def peak(loss: Callable[..., Any], args: tuple[Any, ...], budget: str, **options: Any) -> int:
    """Returns the measured bytes of a step under a budget."""
    step = cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), budget=budget, **options)
    step(*args)
    return int(step.stats.peak_bytes)


def time_ratio(loss: Callable[..., Any], args: tuple[Any, ...], rounds: int = 41) -> float:
    """Returns the time of a step with updates inside the plan, divided by that with separate
    updates."""
    cb.set_num_threads(1)
    steps = [
        cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3), updates=updates)
        for updates in ("after", "inside")
    ]
    ratios = []
    for _ in range(rounds):
        seconds = []
        for step in steps:
            began = time.process_time()
            step(*args)
            seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])  # the first compiles


def with_updates(graph: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    """Returns the problem of a traced graph with updates of its parameters. Gradients shared by
    several parameters, or with the forward, stay in memory to the end."""
    problem = json.loads(json.dumps({k: v for k, v in problem.items() if k != "fingerprint"}))
    nodes, ops, storages = graph["nodes"], problem["ops"], problem["storages"]
    inputs = [
        i
        for i, node in enumerate(nodes)
        if node["kind"] == "placeholder" and node.get("role") != "tangent"
    ]
    storage_of = [out["storage"] for op in ops for out in op["out"]]
    returned = [storage_of[v] for v in problem["forward_outputs"] + problem["backward_outputs"]]
    for k in graph["static_inputs"]:
        made_by = graph["backward_outputs"][k] if k < len(graph["backward_outputs"]) else None
        if made_by is None:
            continue
        gradient = ops[made_by]["out"][0]["storage"]
        if returned.count(gradient) != 1 or "static" in storages[gradient].get("flags", []):
            continue
        storages[gradient] = {
            "bytes": storages[gradient]["bytes"],
            "updates": ops[inputs[k]]["out"][0]["storage"],
        }
        ends = problem["backward_outputs"]
        problem["backward_outputs"] = [v for v in ends if storage_of[v] != gradient]
    return problem


def traced_row(name: str) -> dict[str, Any]:
    """Returns the smallest peaks of a traced graph, in percent of saving everything."""
    path = GRAPHS / f"{name}.json.gz"
    graph = {**json.loads(gzip.decompress(path.read_bytes())), "over": True}
    problem = json.loads(_native.Problem.read(json.dumps(graph)).to_json())
    inside = with_updates(graph, problem)
    row: dict[str, Any] = {"model": name, "budget": "min"}
    whole = cb.plan(problem, device=GRAPHS_DEVICE).numbers["save_all_live_bytes"]
    for label, fields in (("separate step", problem), ("inside", inside)):
        plan = cb.plan(fields, budget="min", device=GRAPHS_DEVICE)
        steps, starts = plan.document["steps"], plan.document["backward_starts"]
        judged = evaluate.evaluate(fields, steps, starts).peak_bytes
        if judged != plan.numbers["live_bytes"]:
            raise AssertionError(f"{name}: the referee measures {judged} bytes")
        numbers = plan.numbers
        row[f"{label} %"] = round(100 * numbers["live_bytes"] / whole, 2)
        row[f"{label}, extra %"] = round(100 * (numbers["time_ps"] / numbers["once_ps"] - 1), 1)
    return row


def main() -> None:
    """Runs the command line."""
    rows = []
    for name, case in (("GPT", gpt_case), ("ConvNet", conv_case)):
        loss, args = case()
        for budget in ("min", "smallest"):
            separate = peak(loss, args, budget)
            inside = peak(loss, args, budget, updates="inside")
            rows.append(
                {
                    "model": name,
                    "budget": budget,
                    "separate step, bytes": separate,
                    "inside, bytes": inside,
                    "inside / separate": round(inside / separate, 3),
                }
            )
        ratio = round(time_ratio(loss, args), 3)
        rows.append({"model": name, "budget": "none", "time, inside / separate": ratio})
    rows += [traced_row(name) for name in TRACED]
    save("planner_updates", COMMAND, rows)


if __name__ == "__main__":
    main()
