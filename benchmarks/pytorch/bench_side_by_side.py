"""Claims: at every peak of a valid plan of PyTorch's partitioner, our plan needs no more memory and
takes at most 1.03x its step time; our lowest peak is at most 0.6x of PyTorch's; a call of the
bridge takes at most a quarter of the partitioner's time.

python benchmarks/pytorch/bench_side_by_side.py [--models BERT,Mamba] [--quick] [--out FOLDER]

Runs twelve models (`step_models.py`) with PyTorch eager, eager with each block in a checkpoint,
PyTorch's partitioner at budgets 1 to 0 on the joint graph as it is ("torch") and under Inductor's
decompositions ("torch, decomposed"), and our partitioner without a budget, at the measured peaks of
PyTorch's plans, and at the smallest peak within 40 % extra time. All plans run with the same code
generator (`joint.py`), which drops values after their last use. Peaks are those of live tensors,
without parameters and inputs. PyTorch's plans at budget 1 run as two subjects each, which shows how
far two times differ by chance. Three larger joint graphs are traced but not run, to time only the
partitioners.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import common
import picture
import step_models
from common import save, summary
from joint import Joint, Step, capture, inductor_decompositions, torch_partition

import cutback
import cutback.torch
from cutback import budgets
from cutback.planner.plan import Plan
from cutback.torch.compiler.options import Target
from cutback.torch.graph.importer import Imported
from cutback.torch.graph.moving import Schedule, schedule_of

COMMAND = "python benchmarks/pytorch/bench_side_by_side.py"
BUDGETS = {
    "torch": (1.0, 0.7, 0.5, 0.3, 0.1, 0.0),
    "torch, decomposed": (1.0, 0.5, 0.2),
}
QUICK = {"torch": (1.0, 0.5, 0.0), "torch, decomposed": (0.5,)}

SMALLEST = {f"min, {share:.0%} time": share for share in (0.1, 0.25, 0.4)}

NEAR = 1.002  # peaks of PyTorch this close get one plan of ours, for the smallest of them

MOST_TIME = 1.03  # step time relative to PyTorch's at its peak
MOST_EXTRA = 0.4  # extra time over saving everything, for a lowest peak
MOST_LOWEST = 0.6  # our lowest peak relative to PyTorch's
MOST_BRIDGE = 0.25  # a bridge call relative to PyTorch's partitioner

Row = dict[str, Any]


EAGER, CHECKPOINTS = "eager", "eager, checkpoints"
TORCH, DECOMPOSED, OURS = "torch", "torch, decomposed", "cutback"
AGAIN = "torch, again"  # a PyTorch plan against itself: how far times differ by chance


class Subject(NamedTuple):
    """One way to run a step, and the rows that share its measurements."""

    rows: list[Row]
    run: Callable[[], Any]
    model: torch.nn.Module  # its gradients are set
    step: Step | None = None  # of a plan


# ---- measurements of a subject -------------------------------------------------------------------


def one_step(subject: Subject) -> None:
    """Runs a step with the same random numbers each time and without earlier gradients."""
    subject.model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    subject.run()


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns all gradients, copied."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def peak(subject: Subject) -> int:
    """Returns the most bytes live during a step."""
    with cutback.torch.MemoryTracker() as memory:
        one_step(subject)
    return memory.peak_bytes


def distance(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """Returns the length of the difference, relative to the reference's."""
    pairs = zip(found, reference, strict=True)
    apart = sum((a.double() - b.double()).square().sum().item() for a, b in pairs)
    return math.sqrt(apart / sum(b.double().square().sum().item() for b in reference))


def eager_saved_bytes(case: step_models.Case) -> int:
    """Returns the bytes that autograd keeps for the backward and the caller does not own."""
    own = {p.untyped_storage().data_ptr() for p in case.model.parameters()}
    own |= {x.untyped_storage().data_ptr() for x in case.inputs}
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = case.model(*case.inputs)
    del loss
    return sum(size for where, size in kept.items() if where not in own)


def eager_step(model: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """Returns a function that runs forward and backward by autograd."""

    def run() -> torch.Tensor:
        loss = model(*inputs)
        loss.backward()
        return loss

    return run


class DrawInF32(TorchDispatchMode):
    """Makes uniform numbers of f64 from those of f32, so that both steps drop the same elements."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.rand.default and kwargs.get("dtype") == torch.float64:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        return func(*args, **(kwargs or {}))


def in_f64(case: step_models.Case) -> list[torch.Tensor]:
    """Returns the gradients of the same step in f64."""
    model = copy.deepcopy(case.model).double()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in case.inputs)
    with DrawInF32():
        one_step(Subject([], eager_step(model, inputs), model))
    return gradients(model)


def interleave(
    subjects: list[Subject], rounds: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Returns the milliseconds of each subject by round: one step each, in a different order every
    round."""
    times: list[list[float]] = [[] for _ in subjects]
    order = list(enumerate(subjects))
    for k in range(rounds):
        random.Random(k).shuffle(order)
        for i, subject in order:
            subject.model.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            begin = clock()
            subject.run()
            times[i].append(1e3 * (clock() - begin))
    return times


# ---- one model ----------------------------------------------------------------------------------


class Plans:
    """The subjects of one model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.case = step_models.make(name)
        self.subjects: list[Subject] = []
        self._known: dict[str, Subject] = {}

    def add(self, kind: str, run: Callable[[], Any], model: torch.nn.Module) -> Subject:
        """Adds and returns a subject without a plan."""
        self.subjects.append(Subject([{"model": self.name, "subject": kind}], run, model))
        return self.subjects[-1]

    def add_plan(self, kind: str, budget: Any, joint: Joint, function: Any) -> tuple[Subject, Row]:
        """Adds a partition of a joint graph. Equal plans are one subject with several rows."""
        graphs, seconds = joint.partition(function)
        step = Step(joint, graphs)
        row = {"model": self.name, "subject": kind, "budget": budget, "partition s": seconds}
        subject = self._known.get(step.text)
        if subject is None:
            subject = self._known[step.text] = Subject([], step, self.case.model, step)
            self.subjects.append(subject)
        subject.rows.append(row)
        return subject, row

    def add_again(self, subject: Subject, joint: Joint) -> None:
        """Adds the same graphs as another subject."""
        if subject.step is not None:
            step = Step(joint, subject.step.graphs)
            row = {"model": self.name, "subject": AGAIN, "budget": subject.rows[0]["budget"]}
            self.subjects.append(Subject([row], step, self.case.model, step))

    def add_ours(self, budget: Any, joint: Joint) -> tuple[Subject, Row]:
        """Adds our plan under a budget.

        Raises:
            BudgetError: if no plan fits.
        """
        found: list[Plan] = []
        partition = cutback.torch.Partitioner(on_plan=found.append)
        extra = SMALLEST.get(budget)
        bound = budgets.parse("min" if extra else budget, "live", extra)
        partition.options = replace(partition.options, target=Target(bound, "live"))
        subject, row = self.add_plan(OURS, budget, joint, partition)
        row["predicted peak"] = found[0].numbers["live_bytes"]
        return subject, row


def find_subjects(name: str, shares: dict[str, tuple[float, ...]]) -> Plans:
    """Returns all subjects of a model; rows of PyTorch's valid plans get our plan at their peak."""
    plans = Plans(name)
    begin = time.perf_counter()
    case, model = plans.case, plans.case.model
    plans.add(EAGER, eager_step(model, case.inputs), model)
    twin = step_models.make(name)
    plans.add(CHECKPOINTS, eager_step(step_models.checkpointed(twin), twin.inputs), twin.model)
    joint = capture(model, case.inputs)
    decomposed = capture(model, case.inputs, inductor_decompositions())
    _, row = plans.add_ours(None, joint)
    bound = row["predicted peak"]
    wanted = set()
    for kind, graph in ((TORCH, joint), (DECOMPOSED, decomposed)):
        for share in shares[kind]:
            subject, row = plans.add_plan(kind, share, graph, torch_partition(share))
            again = subject.step.redraws() if subject.step else 0
            row["valid"] = f"no: {again} draws again" if again else "yes"
            if not again:
                one_step(subject)
                row["our budget"] = min(peak(subject), bound)
                wanted.add(row["our budget"])
                if share == 1:
                    plans.add_again(subject, graph)
    for row in [r for subject in plans.subjects for r in subject.rows if "our budget" in r]:
        row["our budget"] = min(q for q in wanted if row["our budget"] <= NEAR * q)
    wanted = {r["our budget"] for s in plans.subjects for r in s.rows if "our budget" in r}
    print(f"{name}: traced and cut by PyTorch in {time.perf_counter() - begin:.0f} s", flush=True)
    for budget in [*sorted(wanted - {bound}, reverse=True), *SMALLEST]:
        try:
            plans.add_ours(budget, joint)
        except cutback.BudgetError as error:
            print(f"{name}, {budget}: {error}")
    return plans


def measure(plans: Plans, rounds: int, clock: Callable[[], float]) -> list[Row]:
    """Returns the rows of a model."""
    exact = in_f64(plans.case)
    bits: list[torch.Tensor] = []  # those of the first plan: saving everything
    for subject in plans.subjects:
        one_step(subject)
        own = gradients(subject.model)
        if subject.step is not None and not bits:
            bits = own
        row: Row = {"peak bytes": peak(subject)}
        decomposed = subject.rows[0]["subject"] == DECOMPOSED
        if not (decomposed and subject.step and subject.step.draws()):
            row["gradient error"] = distance(own, exact)  # decomposed dropout draws other masks
        if subject.step is not None:
            row["saved bytes"] = subject.step.saved_bytes()
        elif subject.rows[0]["subject"] == EAGER:
            row["saved bytes"] = eager_saved_bytes(plans.case)
        if bits and not decomposed:
            row["bits"] = "same" if all(map(torch.equal, own, bits)) else "differ"
        for known in subject.rows:
            known.update(row)
    gc.collect()
    gc.disable()
    times = interleave(plans.subjects, rounds, clock)
    gc.enable()
    base = next(t for s, t in zip(plans.subjects, times, strict=True) if s.step is not None)
    for subject, ms in zip(plans.subjects, times, strict=True):
        extra = statistics.median(a / b for a, b in zip(ms, base, strict=True)) - 1
        for known in subject.rows:
            known.update({"extra": extra, **summary(ms)}, unit="ms")
    compare(plans, times)
    return [row for subject in plans.subjects for row in subject.rows]


def compare(plans: Plans, times: list[list[float]]) -> None:
    """Adds our time at the same peak, relative to PyTorch's, to the rows of its plans."""
    ours = {
        row.get("budget") or row["predicted peak"]: (ms, row["peak bytes"])
        for subject, ms in zip(plans.subjects, times, strict=True)
        for row in subject.rows
        if row["subject"] == OURS
    }
    of_graphs: dict[int, list[float]] = {}
    for subject, ms in zip(plans.subjects, times, strict=True):
        graphs = None if subject.step is None else id(subject.step.graphs)
        if graphs in of_graphs:
            pairs = zip(ms, of_graphs[graphs], strict=True)
            subject.rows[0]["its time / its"] = statistics.median(a / b for a, b in pairs)
        elif graphs is not None:
            of_graphs[graphs] = ms
        for row in subject.rows:
            own, size = ours.get(row.get("our budget"), (ms, math.inf))
            if size <= row["peak bytes"]:  # without a plan the row is a miss
                pairs = zip(own, ms, strict=True)
                row["our time / its"] = statistics.median(a / b for a, b in pairs)


# ---- limits -------------------------------------------------------------------------------------


def judge(rows: list[Row]) -> list[Row]:
    """Returns the results for the limits on peaks and times."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        for kind in (TORCH, DECOMPOSED):
            own = [r for r in rows if r["model"] == name and r["subject"] == kind]
            valid = [r for r in own if "our budget" in r]
            ratios = [r.get("our time / its", math.inf) for r in valid]
            met = sum(ratio <= MOST_TIME for ratio in ratios)
            found.append(
                {
                    "what": f"{name}: step time at the peaks of {kind}, worst",
                    "value": max(ratios, default=None),
                    "limit": MOST_TIME,
                    "met": f"{met} of {len(valid)}",
                    "invalid": len(own) - len(valid),
                }
            )
    chance = [r["its time / its"] for r in rows if "its time / its" in r]
    for what, value in (("least", min(chance)), ("most", max(chance))):
        found.append({"what": f"step time of PyTorch's plan beside itself, {what}", "value": value})
    ours = [r for r in rows if r["subject"] == OURS]
    wrong = [r for r in ours if r["bits"] != "same" or r["peak bytes"] != r["predicted peak"]]
    found.append(
        {
            "what": "our plans with other bits than without a budget, or another peak than planned",
            "value": len(wrong),
            "limit": 0,
            "met": "no" if wrong else "yes",
        }
    )
    for kinds, most in (((TORCH, DECOMPOSED), math.inf), ((TORCH, DECOMPOSED), MOST_EXTRA)):
        ratios = []
        for name in dict.fromkeys(row["model"] for row in rows):
            theirs = lowest(rows, name, kinds, most)
            own = lowest(rows, name, (OURS,), MOST_EXTRA)
            if theirs and own:
                ratios.append(own / theirs)
        value = statistics.geometric_mean(ratios)
        time = "any time" if most == math.inf else "extra time below 40 % for both"
        found.append(
            {
                "what": f"lowest peak beside PyTorch's, geometric mean ({time})",
                "value": value,
                "limit": MOST_LOWEST,
                "met": "yes" if value <= MOST_LOWEST else "no",
            }
        )
    return found


def lowest(rows: list[Row], name: str, kinds: tuple[str, ...], most: float) -> int | None:
    """Returns the smallest peak of a model's valid plans within a share of extra time."""
    peaks = [
        row["peak bytes"]
        for row in rows
        if row["model"] == name
        and row["subject"] in kinds
        and row.get("valid", "yes") == "yes"
        and row["extra"] < most
    ]
    return min(peaks, default=None)


# ---- the bridge alone ---------------------------------------------------------------------------


class Timed(cutback.torch.Partitioner):
    """Our partitioner, with a preset if there is no budget; records the planner's seconds."""

    seconds = 0.0
    preset = 0

    def _choose(self, graph: Imported) -> Schedule:
        begin = time.perf_counter()
        answer = graph.problem.check().plan(
            preset=self.preset, budget=self.options.target.budget, device=self.at_hand.row
        )
        plan = Plan.of(answer)
        self.plans.append(plan)
        schedule = schedule_of(plan.core)
        self.seconds = time.perf_counter() - begin
        return schedule


def bridge(name: str, rounds: int) -> list[Row]:
    """Returns the seconds of PyTorch's partitioner and of ours on a joint graph. They alternate,
    and the best run of each counts."""
    with FakeTensorMode():
        model, inputs = step_models.LARGE[name]()
        joint = capture(model, inputs, inductor_decompositions(), run=False)
    plan = Timed()
    joint.partition(plan)
    half = plan.plans[0].numbers["live_bytes"] // 2
    preset = budgets.parse_preset("torch-compat")
    rows = []
    for share, budget in ((1.0, None), (0.5, half)):
        theirs, ours, planning = [], [], []
        for _ in range(rounds):
            theirs.append(joint.partition(torch_partition(share))[1])
            call = Timed(budget)
            call.preset = preset if budget is None else 0
            ours.append(joint.partition(call)[1])
            planning.append(call.seconds)
        k = ours.index(min(ours))
        row: Row = {
            "graph": name,
            "nodes": len(joint.gm.graph.nodes) - 1,
            "PyTorch's budget": share,
        }
        row |= {"ours": "preset torch-compat" if budget is None else f"{budget} bytes"}
        row |= {"PyTorch s": min(theirs), "cutback s": ours[k], "of it planning": planning[k]}
        ratio = ours[k] / min(theirs)
        row |= {
            "ratio": ratio,
            "limit": MOST_BRIDGE,
            "met": "yes" if ratio <= MOST_BRIDGE else "no",
        }
        print(
            {k: v if not isinstance(v, float) else round(v, 3) for k, v in row.items()}, flush=True
        )
        rows.append(row)
    return rows


# ---- command line -------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    """Prints one line per row."""
    for r in rows:
        budget = r.get("budget", "")
        saved = r.get("saved bytes", 0) / 1e6
        error = f"{r['gradient error']:.1e}" if "gradient error" in r else ""
        missed = r["peak bytes"] - r.get("predicted peak", r["peak bytes"])
        print(
            f"{r['model']:18} {r['subject']:18} {budget!s:>13} "
            f"{r.get('partition s', 0):6.2f} s {saved:7.2f} {r['peak bytes'] / 1e6:7.2f} MB "
            f"{missed:+d} {r['median']:7.1f} ms {r['extra']:+7.1%} "
            f"{error:7} {r.get('bits', ''):6} {r.get('valid', '')} "
            f"{r.get('our time / its', 0):.3f}",
            flush=True,
        )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", help="some of them, by comma; nothing is written without --out")
    parser.add_argument("--quick", action="store_true", help="less of all; the same")
    parser.add_argument("--out", type=Path, help="folder for rows and picture, not results/")
    parser.add_argument("--only", choices=("steps", "bridge"), help="one half")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21, help="steps of each subject")
    parser.add_argument(
        "--cpu-time", action="store_true", help="step times by the processor, for a busy machine"
    )
    options = parser.parse_args()
    names = list(step_models.MODELS) if options.models is None else options.models.split(",")
    for name in names:
        if name not in step_models.MODELS:
            parser.error(f"--models: no {name!r} among {', '.join(step_models.MODELS)}")
    torch.set_num_threads(options.threads)
    complete = options.out is not None or (options.models is None and not options.quick)
    common.RESULTS = options.out or common.RESULTS
    begin = time.perf_counter()
    if options.only != "bridge":
        steps(names, options, complete)
    if options.only != "steps":
        rows = [r for name in step_models.LARGE for r in bridge(name, 1 if options.quick else 2)]
        if complete:
            save("pytorch_bridge", COMMAND, rows, "torch", "transformers")
    print(f"{time.perf_counter() - begin:.0f} s")


def steps(names: list[str], options: argparse.Namespace, complete: bool) -> None:
    """Measures the models and writes their rows, the results for the limits, and the picture."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    rounds = 3 if options.quick else options.rounds
    rows: list[Row] = []
    for name in names:
        begin = time.perf_counter()
        new = measure(find_subjects(name, QUICK if options.quick else BUDGETS), rounds, clock)
        show(new)
        rows += new
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    limits = judge(rows)
    for row in limits:
        print(row)
    if not complete:
        return
    command = f"{COMMAND}{' --cpu-time' if options.cpu_time else ''}"
    command += f" --rounds {rounds} --threads {options.threads}"
    save("pytorch_side_by_side", command, rows, "torch", "transformers")
    save("pytorch_limits", command, limits, "torch", "transformers")
    picture.draw(common.RESULTS)


if __name__ == "__main__":
    main()
