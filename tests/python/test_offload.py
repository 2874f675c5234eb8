"""Offload to the host: our evaluator and plans against the independent one."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from pathlib import Path

import pytest

from cutback import _native

DATA = Path(__file__).parents[1] / "data" / "graphs"
POINTWISE = {"tags": ["pointwise"]}


def load_referee():
    path = DATA.parents[1] / "reference" / "evaluate_traced.py"
    spec = importlib.util.spec_from_file_location("evaluate_traced", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


referee = load_referee()


def tensor(storage, size):
    return {"shape": [size // 4], "dtype": "float32", "bytes": size, "storage": storage}


class Maker:
    """A small traced graph, node by node."""

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
    """Forward ops of every kind the rules know, then a backward that reads them last to first."""
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
    """A schedule that moves and recomputes at random; most of them keep the rules."""
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
    """What the core says of a schedule: its numbers, or None when it breaks a rule."""
    try:
        document = json.dumps({"steps": steps, "backward_starts": starts})
        return json.loads(_native.evaluate_json(text, document, "a100"))
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
    picoseconds = theirs["runs"] + 2  # of rounding, one an op
    assert abs(own["time_ps"] - theirs["seconds"] * 1e12) <= picoseconds
    assert abs(own.get("stall_ps", 0) - theirs["stall_seconds"] * 1e12) <= picoseconds
    assert abs(own["once_ps"] - theirs["once_seconds"] * 1e12) <= picoseconds


def test_random_schedules_are_judged_alike(tmp_path):
    kept = moved = stalled = 0
    for seed in range(150):
        graph = random_graph(seed, 4 + seed % 9)
        text, parsed = json.dumps(graph), load_graph(graph, tmp_path)
        for round in range(12):
            steps, starts = random_steps(graph, 1000 * seed + round)
            own, theirs = judge(text, steps, starts), referee_says(parsed, steps, starts)
            assert_agrees(own, theirs)
            if own is not None:
                kept += 1
                moved += own.get("in_bytes", 0) > 0
                stalled += own.get("stall_ps", 0) > 0
    assert 400 < kept < 1500 and moved > 200 and stalled > 200


def spread_moves(graph, seed):
    """The given order of a real graph, where random values that have no views leave and come
    back."""
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
    """(steps, what the error says) that break one rule each."""
    first = next(s for s in steps if isinstance(s, int))
    at = steps.index(first) + 1
    yield [*steps[:at], ["burn", first], *steps[at:]], "out, wait, in"
    yield [*steps[:at], ["in", first], *steps[at:]], "never offloaded"
    yield [*steps[:at], ["wait", first], *steps[at:]], "never offloaded"
    yield [["out", first], *steps], "not live"
    yield [*steps[:at], ["out", first], ["out", first], *steps[at:]], "not live"
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
            _native.evaluate_json(text, document, "a100")
    shared = [a, v, b, ["out", a], ["in", a], g]
    assert referee_says(parsed, shared, 3) is None
    document = json.dumps({"steps": shared, "backward_starts": 3})
    with pytest.raises(ValueError, match="shares its storage"):
        _native.evaluate_json(text, document, "a100")
    fine = [a, v, b, ["out", a], ["in", a], v, g]
    assert_agrees(judge(text, fine, 3), referee_says(parsed, fine, 3))
    assert judge(text, fine, 3)["host_bytes"] == 4000
    kept = [a, v, b, g, ["out", b], ["wait", b]]  # a result stays on the device
    assert_agrees(judge(text, kept, 3), referee_says(parsed, kept, 3))
    document = json.dumps({"steps": fine, "backward_starts": 3})
    with pytest.raises(NotImplementedError, match="device cpu has none"):
        _native.evaluate_json(text, document, "cpu")
