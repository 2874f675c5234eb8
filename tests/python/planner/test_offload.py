"""Compares our evaluator and plans with the independent evaluator, for offload to the host."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native, cli
from cutback.policies import CheckpointPolicy

WITHOUT_A_LINK = {
    "name": "alone", "flops_per_s": {"f32": 1e11}, "bytes_per_s": 2e10, "launch_s": 1e-6,
}  # fmt: skip
DATA = Path(__file__).parents[2] / "data" / "graphs"
POINTWISE = {"tags": ["pointwise"]}


def load_reference(name):
    path = DATA.parents[1] / "reference" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


referee, by_problem = load_reference("evaluate_traced"), load_reference("evaluate")


def tensor(storage, size):
    return {"shape": [size // 4], "dtype": "float32", "bytes": size, "storage": storage}


class Maker:
    """Builds a small traced graph, node by node."""

    def __init__(self):
        self.nodes, self.sizes = [], []

    def add(self, op, inputs, outs, kind="call_function", **more):
        node = {"name": f"n{len(self.nodes)}", "kind": kind, "op": op, "inputs": inputs}
        self.nodes.append({**node, "out": outs, **more})
        return len(self.nodes) - 1

    def storage(self, size):
        self.sizes.append(size)
        return tensor(len(self.sizes) - 1, size)


def random_graph(seed, n_forward=8):
    """Returns forward ops of every kind in the rules, then a backward that reads them last to
    first."""
    r, m = random.Random(seed), Maker()
    size = lambda: 4 * r.choice([0, 1000, 20_000, 100_000, 400_000, 1_000_000])  # noqa: E731
    primal = m.add("x", [], [m.storage(4000)], "placeholder", role="primal")
    values = []
    for _ in range(n_forward):
        inputs = sorted({r.choice(values[-4:] or [primal]) for _ in range(r.randint(1, 2))})
        kind, work = r.random(), {"flops": r.choice([0.0, 1e9, 1e10])}
        if kind < 0.15 and values:
            values.append(m.add("aten.view.default", inputs[:1], m.nodes[inputs[0]]["out"][:1]))
        elif kind < 0.3:
            both = m.add("aten.var_mean.correction", inputs, [m.storage(size()), m.storage(size())])
            for out in m.nodes[both]["out"]:
                values.append(m.add("_operator.getitem", [both], [out]))
        elif kind < 0.4:
            values.append(m.add("aten.rand.default", [], [m.storage(size())]))
        else:
            values.append(m.add("aten.mm.default", inputs, [m.storage(size())], **work))
    result = m.add("aten.neg.default", values[-1:], [m.storage(4000)], **POINTWISE)
    gradient = m.add("t", [], [m.storage(4000)], "placeholder", role="tangent")
    ends = []
    for value in reversed(values):
        if r.random() < 0.2:
            continue
        inputs = sorted({gradient, value, r.choice(values)})
        gradient = m.add("aten.mul.Tensor", inputs, [m.storage(size())], flops=1e9)
        ends += [gradient] if r.random() < 0.2 else []
    ends = [*ends, gradient]
    return {
        "name": "random", "nodes": m.nodes, "storage_bytes": m.sizes,
        "forward_outputs": [result], "backward_outputs": ends, "static_inputs": [],
    }  # fmt: skip


def random_steps(graph, seed):
    """Returns a random schedule of transfers and reruns; most are valid."""
    r = random.Random(seed)
    nodes = graph["nodes"]
    first = next(i for i, v in enumerate(nodes) if v.get("role") == "tangent")
    live, sent, steps, starts = set(), set(), [], None
    careless = r.choice([0, 0, 0.02])
    forward_only = [i for i, v in enumerate(nodes[:first]) if "rand" not in v["op"]]

    def bring(i, depth=0):
        if i in live or nodes[i]["kind"] == "placeholder" or r.random() < careless:
            return
        if i in sent and (r.random() < 0.7 or depth > 6 or i not in forward_only):
            steps.append(["in", i])
        else:
            for j in nodes[i]["inputs"]:
                bring(j, depth + 1)
            steps.append(i)
        live.add(i)

    for i, v in enumerate(nodes):
        if i == first:
            bring(first - 1)
            starts = len(steps)
        if v["kind"] == "placeholder":
            continue
        for j in v["inputs"]:
            bring(j)
        steps.append(i)
        live.add(i)
        for _ in range(r.randint(0, 2)):
            j = (
                r.choice(sorted(live))
                if live and r.random() > careless
                else r.randrange(len(nodes))
            )
            kind = r.random()
            if kind < 0.35:
                steps.append(["out", j])
                sent.add(j)
                live.discard(j)
            elif kind < 0.5 and sent:
                steps.append(["wait", r.choice(sorted(sent))])
            elif kind < 0.6 and sent:
                j = r.choice(sorted(sent))
                steps.append(["in", j])
                live.add(j)
    for i in graph["backward_outputs"]:
        bring(i)
    return steps, starts


def load_graph(graph, tmp_path):
    path = tmp_path / "graph.json.gz"
    path.write_bytes(gzip.compress(json.dumps(graph).encode()))
    return referee.load(path)


def judge(text, steps, starts):
    """Returns the core's numbers for a schedule, or None if it breaks a rule."""
    try:
        document = json.dumps({"steps": steps, "backward_starts": starts})
        return json.loads(_native.Problem.read(text).evaluate_json(document, "a100"))
    except ValueError:
        return None


def referee_says(graph, steps, starts):
    try:
        return referee.evaluate(graph, steps, starts)
    except (ValueError, TypeError):
        return None


def assert_agrees(own, theirs):
    assert (own is None) == (theirs is None), (own, theirs)
    if own is None:
        return
    assert own["peak_bytes"] == theirs["peak_bytes"]
    assert own["saved_bytes"] == theirs["saved_bytes"]
    assert (own["runs"], own["recomputed"]) == (theirs["runs"], theirs["recomputed"])
    assert (own["time_ps"], own["once_ps"]) == (theirs["time_ps"], theirs["once_ps"])
    assert own.get("stall_ps", 0) == theirs["stall_ps"]


def assert_same_by_problem(problem, steps, starts, own):
    """Compares with the evaluator of problems, which has values instead of nodes."""
    result = by_problem.evaluate(problem, steps, starts, "a100")
    assert (own["peak_bytes"], own["saved_bytes"]) == (result.peak_bytes, result.saved_bytes)
    assert own.get("out_bytes", 0) == result.out_bytes
    assert own.get("in_bytes", 0) == result.in_bytes
    assert (own["time_ps"], own.get("stall_ps", 0)) == (result.time_ps, result.stall_ps)


def test_random_schedules_are_judged_alike(tmp_path):
    kept = moved = stalled = 0
    for seed in range(150):
        graph = random_graph(seed, 4 + seed % 9)
        text, parsed = json.dumps(graph), load_graph(graph, tmp_path)
        problem = json.loads(_native.Problem.read(text).to_json())
        for round in range(12):
            steps, starts = random_steps(graph, 1000 * seed + round)
            own, theirs = judge(text, steps, starts), referee_says(parsed, steps, starts)
            assert_agrees(own, theirs)
            if own is not None:
                assert_same_by_problem(problem, steps, starts, own)
                kept += 1
                moved += own.get("in_bytes", 0) > 0
                stalled += own.get("stall_ps", 0) > 0
    assert 400 < kept < 1500 and moved > 200 and stalled > 200


def spread_moves(graph, seed):
    """Returns the given order of a real graph, in which random values without views are offloaded
    and fetched."""
    r = random.Random(seed)
    nodes, tangent = graph["nodes"], graph["tangent"]
    order = [i for i, v in enumerate(nodes) if v["kind"] != "placeholder"]
    order.sort(key=lambda i: i in tangent)
    starts = sum(i not in tangent for i in order)
    storages = [{out["storage"] for out in v["out"]} for v in nodes]
    uses = {}
    for k, i in enumerate(order):
        for j in nodes[i]["inputs"]:
            uses.setdefault(j, []).append(k)
    before, after = {}, {}
    for i in r.sample(order[:starts], starts // 2):
        early = max((k for k in uses.get(i, []) if k < starts), default=None)
        late = min((k for k in uses.get(i, []) if k >= starts), default=None)
        if early is None or late is None or i in graph["hold_forward"]:
            continue
        makers = {i, *nodes[i]["inputs"], *(order[k] for k in uses[i])}
        if any(storages[i] & storages[k] for k in makers - {i}):
            continue
        after.setdefault(early, []).append(["out", i])
        back = r.randint(max(early + 1, late - 40), late)
        if r.random() < 0.3:
            before.setdefault(r.randint(early + 1, back), []).append(["wait", i])
        before.setdefault(back, []).append(["in", i])
    steps, first = [], None
    for k, i in enumerate(order):
        if k == starts:
            first = len(steps)
        steps += [*sorted(before.get(k, []), reverse=True), i, *after.get(k, [])]
    return steps, first


@pytest.mark.parametrize("name", ["bert_base", "resnet50_bn", "transformer_encoder", "unet"])
def test_real_graphs_are_judged_alike(name):
    path = DATA / f"{name}.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    graph = referee.load(path)
    for seed in range(4):
        steps, starts = spread_moves(graph, seed)
        own = judge(text, steps, starts)
        assert_agrees(own, referee_says(graph, steps, starts))
        assert own is not None and own["out_bytes"] == own["in_bytes"] > 0


def hostile_steps(steps, starts):
    """Yields (steps, error text) that break one rule each."""
    first = next(s for s in steps if isinstance(s, int))
    at = steps.index(first) + 1
    yield [*steps[:at], ["burn", first], *steps[at:]], "out, wait, in"
    yield [*steps[:at], ["in", first], *steps[at:]], "never offloaded"
    yield [*steps[:at], ["wait", first], *steps[at:]], "never offloaded"
    yield [["out", first], *steps], "not alive"
    yield [*steps[:at], ["out", first], ["out", first], *steps[at:]], "not alive"
    yield [*steps[:at], ["out"], *steps[at:]], "a list of an action and an id"
    yield [*steps[:at], ["out", first, first], *steps[at:]], "a list of an action and an id"
    yield [*steps[:at], [], *steps[at:]], "a list of an action and an id"
    yield [*steps[:at], ["out", 10**6], *steps[at:]], "step"
    yield [*steps[:at], ["out", "x"], *steps[at:]], "step"
    yield [*steps[:at], ["out", -1], *steps[at:]], "step"
    yield [*steps[:at], {"out": first}, *steps[at:]], "step"
    yield [["out", 0], *steps], "placeholder"


def test_hostile_plans(tmp_path):
    m = Maker()
    x = m.add("x", [], [m.storage(4000)], "placeholder", role="primal")
    a = m.add("aten.mm.default", [x], [m.storage(4000)])
    v = m.add("aten.view.default", [a], m.nodes[a]["out"])
    b = m.add("aten.mm.default", [v], [m.storage(4000)])
    t = m.add("t", [], [m.storage(4000)], "placeholder", role="tangent")
    g = m.add("aten.mul.Tensor", [t, a, v], [m.storage(4000)])
    graph = {
        "name": "g", "nodes": m.nodes, "storage_bytes": m.sizes, "forward_outputs": [b],
        "backward_outputs": [g], "static_inputs": [],
    }  # fmt: skip
    text, parsed = json.dumps(graph), load_graph(graph, tmp_path)
    steps, starts = [a, v, b, g], 3
    assert_agrees(judge(text, steps, starts), referee_says(parsed, steps, starts))
    for broken, said in hostile_steps(steps, starts):
        later = starts + len(broken) - len(steps)
        assert referee_says(parsed, broken, later) is None
        document = json.dumps({"steps": broken, "backward_starts": later})
        with pytest.raises(ValueError, match=said):
            _native.Problem.read(text).evaluate_json(document, "a100")
    shared = [a, v, b, ["out", a], ["in", a], g]
    assert referee_says(parsed, shared, 3) is None
    document = json.dumps({"steps": shared, "backward_starts": 3})
    with pytest.raises(ValueError, match="shares its storage"):
        _native.Problem.read(text).evaluate_json(document, "a100")
    fine = [a, v, b, ["out", a], ["in", a], v, g]
    assert_agrees(judge(text, fine, 3), referee_says(parsed, fine, 3))
    assert judge(text, fine, 3)["host_bytes"] == 4000
    kept = [a, v, b, g, ["out", b], ["wait", b]]  # a result stays on the device
    assert_agrees(judge(text, kept, 3), referee_says(parsed, kept, 3))
    document = json.dumps({"steps": fine, "backward_starts": 3})
    with pytest.raises(NotImplementedError, match="device alone has none"):
        _native.Problem.read(text).evaluate_json(document, json.dumps(WITHOUT_A_LINK))


def refereed(name, plan):
    """Compares the plan's numbers with the independent evaluator."""
    graph = referee.load(DATA / f"{name}.json.gz")
    theirs = referee.evaluate(graph, plan.document["steps"], plan.document["backward_starts"])
    numbers = plan.numbers
    assert theirs["peak_bytes"] == numbers["live_bytes"] <= numbers["budget_bytes"]
    assert theirs["saved_bytes"] == numbers["saved_bytes"]
    assert theirs["time_ps"] == numbers["time_ps"]
    assert theirs["stall_ps"] == numbers.get("stall_ps", 0)
    assert theirs["redrawn"] == 0
    return numbers


def check_places(plan):
    """Checks that lives which overlap in time do not overlap in the arena."""
    alive = []
    for _, made, last, size, offset in sorted(plan.document["lives"], key=lambda row: row[1]):
        assert offset + size <= plan.numbers["arena_bytes"]
        alive = [row for row in alive if row[0] >= made]
        assert all(offset + size <= o or o + s <= offset or not size for _, s, o in alive)
        alive.append((last, size, offset))


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["transformer_encoder", "unet"])
def test_budgets_with_offload(name):
    path, before, size = DATA / f"{name}.json.gz", 0, None
    for share in (0.5, 0.4):
        joint = cutback.plan(path, budget=f"{share}x", device="a100", offload=True)
        numbers = refereed(name, joint)
        check_places(joint)
        runs = cutback.plan(path, budget=f"{share}x", device="a100").numbers
        only = refereed(name, cutback.plan(path, budget=f"{share}x", device="a100", offload="only"))
        assert numbers["time_ps"] < min(runs["time_ps"], only["time_ps"])
        assert numbers["once_ps"] <= numbers["lower_bound_ps"] <= numbers["time_ps"]
        assert numbers["time_ps"] >= before
        assert size is None or numbers["live_bytes"] <= size
        before, size = numbers["time_ps"], numbers["live_bytes"]
    assert joint.offloaded and numbers["out_bytes"] <= numbers["in_bytes"]
    again = cutback.plan(path, budget=f"{share}x", device="a100", offload=True)
    assert again.to_json() == joint.to_json()
    assert "offload" in joint.explain() and "on the host" in joint.explain()


def test_pinned_bytes_are_kept():
    path, most = DATA / "transformer_encoder.json.gz", 200 * 2**20
    plan = cutback.plan(path, budget="0.5x", device="a100", offload=True, pinned=most)
    numbers = refereed("transformer_encoder", plan)
    assert 0 < numbers["host_bytes"] <= most


@pytest.mark.very_slow
def test_offload_on_the_command_line(tmp_path, capsys):
    graph, plan = str(DATA / "transformer_encoder.json.gz"), tmp_path / "plan.json"
    report = tmp_path / "out.html"
    command = ["plan", graph, "--budget", "0.5x", "--offload", "--pinned", "8GiB", "-o", str(plan)]
    assert cli.main([*command, "--report", str(report)]) == 0
    assert "offloaded" in capsys.readouterr().out and "offloaded" in report.read_text()
    written = json.loads(plan.read_text())
    assert any(isinstance(step, list) and step[0] == "in" for step in written["steps"])
    assert cli.main(["evaluate", graph, str(plan), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    for key in ("stall_ps", "out_bytes", "in_bytes", "host_bytes", "time_ps"):
        assert judged[key] == written["numbers"][key]
    assert cli.main(["explain", str(plan)]) == 0
    assert "offload" in capsys.readouterr().out
    row = tmp_path / "alone.json"
    row.write_text(json.dumps(WITHOUT_A_LINK))
    for wrong in (
        ["--offload"],
        ["--budget", "0.5x", "--offload", "--device", str(row)],
        ["--budget", "0.5x", "--offload", "--pinned", "much"],
        ["--budget", "0.5x", "--offload", "--pinned", "0"],
        ["--budget", "0.5x", "--offload", "--measure", "saved"],
        ["--budget", "10", "--offload"],
    ):
        assert cli.main(["plan", graph, *wrong]) == 2, wrong
        assert capsys.readouterr().err.count("\n") == 1


def test_devices_without_a_link_refuse_offload():
    @cutback.checkpoint(policy=lambda *_, **__: CheckpointPolicy.MUST_OFFLOAD)
    def inner(a):
        return cutback.sin(a) * a

    step = cutback.compile(lambda a: cutback.cos(inner(a)).sum(), argnums=0, device=WITHOUT_A_LINK)
    with pytest.raises(NotImplementedError, match="device alone has no link to a host"):
        step(np.ones((4, 4), np.float32))


def test_with_room_for_everything_offload_alone_moves_nothing():
    problem = cutback.plan(str(DATA / "unet.json.gz")).problem
    everything = cutback.plan(problem, device="a100").numbers["save_all_live_bytes"]
    for budget in (everything, "1.0x"):
        plan = cutback.plan(problem, budget=budget, offload="only", device="a100")
        assert plan.numbers["time_ps"] == plan.numbers["once_ps"]
        assert plan.numbers["live_bytes"] <= everything
    slow = {**problem, "link_bytes_per_s": 1e3}  # on a slow link no copy pays off
    plan = cutback.plan(slow, budget="min", offload="only", device="a100")
    assert plan.numbers["live_bytes"] == everything and not plan.offloaded


def test_what_lies_under_a_view_that_is_made_once_stays():
    """The view would have to be made again when its memory comes back."""

    def problem(once):
        ops, storages = [], [{"bytes": 4, "flags": ["static"]}]

        def op(name, flags, reads, size=1 << 20):
            storage = ops[reads[0]]["out"][0]["storage"] if "view" in flags else len(storages)
            if "view" not in flags:
                storages.append({"bytes": size})
            ops.append({"name": name, "flags": flags, "in": reads, "time_ps": 10**9,
                        "out": [{"storage": storage}]})  # fmt: skip
            return len(ops) - 1

        ops.append({"name": "x", "flags": ["placeholder"], "in": [], "out": [{"storage": 0}]})
        kept = []
        last = 0
        for k in range(4):
            last = op(f"f{k}", ["compute"], [last])
            kept.append(op(f"v{k}", ["view", "effect"] if once else ["view"], [last]))
        starts = len(ops)
        for k in reversed(range(4)):
            last = op(f"b{k}", ["backward"], [kept[k], last], 4)
        storages[-1]["flags"] = ["hold_end"]
        return {
            "format": "cutback.problem", "version": 1, "backward_starts": starts,
            "forward_outputs": [], "backward_outputs": [last], "storages": storages, "ops": ops,
            "link_bytes_per_s": 1e12,
        }  # fmt: skip

    plan = cutback.plan(problem(False), budget="0.8x", offload="only", device="cpu")
    assert plan.numbers["out_bytes"] > 0
    by_problem.check_plan(plan.problem, plan.document, "cpu")
    with pytest.raises(cutback.BudgetError) as told:
        cutback.plan(problem(True), budget="0.8x", offload="only", device="cpu")
    assert told.value.reason == "budget" and told.value.smallest_bytes > told.value.budget_bytes
