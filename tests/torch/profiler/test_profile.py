"""Tests the profiler: times, bytes, uses; and that nothing of the caller's changes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import xml.etree.ElementTree
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiles import MODELS, make, profiled
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

import cutback.torch as ct
from cutback import policies
from cutback.cli import main
from cutback.torch.graph.records import CATEGORIES

# ---- figures --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_op_has_a_time(name: str) -> None:
    profile = profiled(name)
    document = profile.step.document
    expected = [op["name"] for op in document["ops"] if "placeholder" not in op["flags"]]
    assert [row.name for row in profile.rows] == expected
    idle = [row for row in profile.rows if row.seconds == 0]
    drawn = ("aten.native_dropout.default",)  # without the bytes of its result
    parts = {"tangent", "copy_back", "_operator.getitem", *drawn}
    assert {row.kind for row in idle} <= parts
    assert profile.seconds == pytest.approx(sum(profile.phase_seconds(p) for p in
                                                ("forward", "backward")))  # fmt: skip
    start = document["backward_starts"]
    late = {op["name"] for op in document["ops"][start:]}
    assert all((row.phase == "backward") == (row.name in late) for row in profile.rows)
    times = profile.times()
    timed = {op["name"] for op in document["ops"] if "time_ps" not in op} - {
        op["name"] for op in document["ops"] if "placeholder" in op["flags"]
    }
    assert timed <= set(times)


@pytest.mark.very_slow
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_plans_and_of_the_tracker(
    name: str, train_step: Callable[..., Any], ran: Counter[str]
) -> None:
    profile = profiled(name)
    whole = profile.step.plan()
    assert profile.timeline() == whole.timeline()
    assert profile.peak_bytes == whole.numbers["live_bytes"]
    model, inputs = make(name)
    compiled = ct.compile(model)
    assert train_step(compiled, *inputs).peak_bytes == profile.peak_bytes
    assert ran == {"forward": 1, "backward": 1}
    small = profile.step.plan("min")
    again = profile.rerun(small, runs=1, warmup=0)
    assert again.timeline() == small.timeline()
    assert again.peak_bytes < profile.peak_bytes
    runs_again = sum(row.recomputed for row in again.rows)
    assert runs_again == len(small.document["steps"]) - len(whole.document["steps"]) > 0


def walked(gm: Any, at: dict[str, int], start: int) -> dict[tuple[str, int], list[Any]]:
    """Maps (maker, bytes) to the uses of each storage that it makes, from the FX graph alone."""
    maker: dict[int, tuple[str, int]] = {}
    uses: dict[int, list[int]] = defaultdict(list)

    def storages(value: Any) -> list[Any]:
        return [t.untyped_storage() for t in tree_leaves(value) if isinstance(t, torch.Tensor)]

    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        given = {s._cdata for n in node.all_input_nodes for s in storages(n.meta["val"])}
        made = storages(node.meta["val"])
        for s in made:
            maker.setdefault(s._cdata, (node.name, s.nbytes()))
        if node.op == "call_function" and not all(s._cdata in given for s in made):
            for s in given:
                uses[s].append(at[node.name])
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for s, key in maker.items():
        early = sorted(k for k in uses[s] if k < start)
        late = sorted(k for k in uses[s] if k >= start)
        ends = [(row[0], row[-1]) if row else None for row in (early, late)]
        found[key].append(tuple(ends))
    return found


@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_uses_are_those_of_the_graph(name: str) -> None:
    model, inputs = make(name, dropout=0.0)
    profile = ct.profile(model, *inputs, runs=1, link=1e9)
    at = {row.name: k for k, row in enumerate(profile.rows)}
    start = sum(row.phase == "forward" for row in profile.rows)
    expected = walked(profile.graph, at, start)
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for value in profile.values:
        ends = [None if u is None else tuple(u) for u in (value.forward, value.backward)]
        found[value.name, value.bytes].append(tuple(ends))
    assert {k: sorted(v, key=str) for k, v in found.items()} == {
        k: sorted(v, key=str) for k, v in expected.items()
    }


def test_inactive_and_swap_times() -> None:
    profile = profiled("unet")
    start = sum(row.phase == "forward" for row in profile.rows)
    seconds = [row.seconds for row in profile.rows]
    seen = 0
    for value in profile.values:
        assert value.swap_out_seconds == value.swap_in_seconds == value.bytes / 1e9
        if value.category != "activation":
            continue
        last = value.made if value.forward is None else value.forward.last
        assert value.made < start <= value.backward.first
        idle = sum(seconds[last + 1 : value.backward.first])
        assert value.inactive_seconds == pytest.approx(idle, rel=1e-6, abs=1e-12)
        seen += 1
    assert seen > 10
    w = torch.ones(4, requires_grad=True)
    for link, rate in (("2GB/s", 2e9), ("1GiB", 2**30), (5, 5.0)):
        found = ct.profile(lambda w: w.sin().sum(), w, runs=1, link=link)
        assert found.link_bytes_per_s == rate
    measured = ct.profile(lambda w: w.sin().sum(), w, runs=1).link_bytes_per_s
    assert 1e7 < measured < 1e13


@pytest.mark.parametrize("name", MODELS)
def test_categories_add_up(name: str) -> None:
    profile = profiled(name)
    model, _ = make(name)
    given = sum(v.bytes for v in profile.values if v.made < 0)
    columns = profile.by_category()
    for k, row in enumerate(profile.rows):
        assert sum(column[k] for column in columns.values()) == row.live_bytes + given
    peak = profile.peak
    assert set(peak.by_category) == set(CATEGORIES)
    assert sum(peak.by_category.values()) == peak.total_bytes == peak.bytes + given
    assert peak.bytes == max(profile.timeline())
    own = sum(p.nbytes for p in model.parameters())
    assert peak.by_category["parameter"] == own
    assert columns["gradient"][-1] == own  # at the end
    start = sum(row.phase == "forward" for row in profile.rows)
    crosses = [v for v in profile.values if 0 <= v.made < start <= v.last]
    assert sum(v.bytes for v in crosses) == profile.step.plan().numbers["saved_bytes"]


def test_optimizer(same_bits: Callable[[Any, Any], bool]) -> None:
    model, inputs = make("gpt")
    plain = profiled("gpt")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    before = copy.deepcopy(optimizer.state_dict())
    profile = ct.profile(model, *inputs, runs=2, optimizer=optimizer, link=1e9)
    assert optimizer.state_dict() == before and not optimizer.state
    late = [row for row in profile.rows if row.phase == "optimizer"]
    assert late and all(row.seconds > 0 for row in late)
    assert profile.rows[: -len(late)] != [] and profile.timeline()[: -len(late)] == plain.timeline()
    own = sum(p.nbytes for p in model.parameters())
    count = len(list(model.parameters()))
    peak = profile.peak
    assert peak.by_category["optimizer state"] == 2 * own + 4 * count  # moments, step counts
    assert sum(peak.by_category.values()) == peak.total_bytes
    gradients = profile.by_category()["gradient"][-1]
    assert gradients == own and late[-1].live_bytes >= own
    assert set(profile.times()) == set(plain.times())  # the planner knows no optimizer
    # existing states are copied and left unchanged
    model(*inputs).backward()
    optimizer.step()
    states = copy.deepcopy(optimizer.state_dict())
    ct.profile(model, *inputs, runs=1, optimizer=optimizer, link=1e9)
    assert same_bits(states["state"], optimizer.state_dict()["state"])


# ---- what stays as it was -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_state_is_as_before(name: str, same_bits: Callable[[Any, Any], bool]) -> None:
    model, inputs = make(name)
    model(*inputs).backward()  # existing gradients
    torch.manual_seed(3)

    def state() -> Any:
        tensors = [*model.parameters(), *model.buffers(), *inputs]
        return (
            [t.detach().clone() for t in tensors],
            [t._version for t in tensors],
            [p.grad.clone() for p in model.parameters()],
            [id(p.grad) for p in model.parameters()],
            torch.get_rng_state(),
            model.training,
        )

    before = state()
    ct.profile(model, *inputs, runs=2, optimizer=torch.optim.SGD(model.parameters()), link=1e9)
    assert same_bits(before, state())


def test_inputs_that_the_step_writes_into_stay() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.calls = 0
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.seen[2:6].add_(x)
            x.mul_(2)
            return (self.w * x * self.seen[2:6].sum()).sum()

    model, x = Counts(), torch.arange(4.0)
    profile = ct.profile(model, x, runs=3, link=1e9)
    assert model.calls == 0 and model.seen.sum() == 0 and torch.equal(x, torch.arange(4.0))
    assert profile.timeline() == profile.step.plan().timeline()


def test_what_the_backward_writes_into_stays() -> None:
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, seen: Any) -> Any:
            ctx.save_for_backward(seen)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (seen,) = ctx.saved_tensors
            seen.add_(1)
            return g * 2, None

    def f(w: Any, seen: Any) -> Any:
        return Counts.apply(w.sin(), seen).sum()

    seen = torch.zeros(3)
    profile = ct.profile(f, torch.ones(3, requires_grad=True), seen, runs=2, link=1e9)
    assert profile.rows[-1].kind == "aten.copy_.default"  # by the graph, not by the caller
    assert torch.equal(seen, torch.zeros(3)) and seen._version == 0


def test_no_compiled_code_is_left() -> None:
    def f(w: Any) -> Any:
        return w.sin().sum()

    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            ct.profile(f, torch.ones(4, requires_grad=True), runs=1, link=1e9)


def test_checkpoints_of_the_model_do_not_count() -> None:
    def inner(x: Any) -> Any:
        return x.sin().cos().exp()

    def f(w: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(inner, w, use_reentrant=False).sum()

    w = torch.ones(64, requires_grad=True)
    profile = ct.profile(f, w, runs=1, link=1e9)
    assert not any(row.recomputed for row in profile.rows)
    planned = profile.step.plan()  # the planner still gets them
    assert planned.numbers["recomputed"] > 0
    assert profile.rerun(planned, runs=1).timeline() == planned.timeline()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    model, inputs = make("gpt")
    model, inputs = model.cuda(), tuple(x.cuda() for x in inputs)
    state = torch.cuda.get_rng_state()
    profile = ct.profile(model, *inputs, runs=2, optimizer=torch.optim.Adam(model.parameters()))
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert all(row.seconds > 0 for row in profile.rows if row.kind == "aten.mm.default")
    n = sum(row.phase != "optimizer" for row in profile.rows)
    assert profile.timeline()[:n] == profile.step.plan().timeline()


# ---- the planner gets it --------------------------------------------------------------------


@pytest.mark.very_slow
def test_times_go_before_the_model(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profiled("gpt")
    ops = {op["name"]: op for op in profile.step.document["ops"]}
    once = sum(
        round(seconds * 1e12)
        for name, seconds in profile.times().items()
        if "view" not in ops[name]["flags"]
    )
    plan = profile.step.plan("0.7x", profile=profile)
    assert plan.numbers["once_ps"] == once
    assert profile.step.plan("0.7x").numbers["once_ps"] != once
    profile.save(tmp_path / "profile.json")
    profile.step.save(tmp_path / "step.json")
    from_file = profile.step.plan("0.7x", profile=tmp_path / "profile.json")
    assert from_file.document == plan.document
    assert main(["plan", str(tmp_path / "step.json"), "--budget", "0.7x", "--profile",
                 str(tmp_path / "profile.json"), "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["steps"] == plan.document["steps"]


def test_compile_takes_a_profile(train_step: Callable[..., Any], ran: Counter[str]) -> None:
    profile = profiled("unet")
    model, inputs = make("unet")
    expected = train_step(model, *inputs)
    compiled = ct.compile(model, budget="0.6x", dynamic=False, profile=profile)
    found = train_step(compiled, *inputs)
    (plan,) = compiled.plans
    assert plan.document == profile.step.plan("0.6x", profile=profile).document
    assert found.peak_bytes == plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]
    assert all(torch.equal(found.gradients["_orig_mod." + n], g)
               for n, g in expected.gradients.items())  # fmt: skip
    assert ran == {"forward": 1, "backward": 1}
    # another batch is another graph
    with pytest.raises(ValueError, match="another graph"):
        ct.compile(make("unet")[0], dynamic=False, profile=profile)(torch.randn(3, 3, 16, 16))
    with pytest.raises(ValueError, match=r"no operation '?\"?nobody|there is no time"):
        ct.compile(make("unet")[0], dynamic=False, profile={"nobody": 1.0})(*inputs)
    with pytest.raises(ValueError, match="there is no time for"):
        ct.compile(make("unet")[0], dynamic=False, profile={})(*inputs)
    partitioners = [ct.Partitioner(profile=p) for p in (None, profile, {"mm": 1.0})]
    partitioners += [ct.Partitioner(policy=ct.mutwo.select(profile)) for _ in range(2)]
    partitioners += [ct.Partitioner(policy=policies.mu_two(n)) for n in (10, 20)]
    assert len({p.uuid() for p in partitioners}) == 7
    one, two = (ct.Partitioner(policy=policies.mu_two(10)) for _ in range(2))
    assert one.uuid() == two.uuid()


def test_files(tmp_path: Any) -> None:
    profile = profiled("unet")
    path = tmp_path / "profile.json"
    profile.save(path)
    loaded = ct.load_profile(path)
    assert loaded.to_dict() == profile.to_dict() and loaded.peak == profile.peak
    assert str(loaded) == str(profile) and loaded.svg() == profile.svg()
    document = json.loads(path.read_text())
    for change in ({"version": 2}, {"format": "x"}, {"rows": [{}]}, {"values": 3}):
        path.write_text(json.dumps({**document, **change}))
        with pytest.raises(ValueError, match=r"profile\.json"):
            ct.load_profile(path)


def test_tables_and_pictures(tmp_path: Any) -> None:
    profile = profiled("gpt")
    text = str(profile)
    for word in ("activation", "aten.mm.default", "idle ms", "out ms", "in ms", "peak"):
        assert word in text
    assert len(profile.table().splitlines()) == 1 + len(profile.rows)
    assert len(profile.table(5).splitlines()) == 6
    picture = xml.etree.ElementTree.fromstring(profile.svg())
    titles = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}title")]
    activations = max(profile.by_category()["activation"])
    from cutback.report import human_bytes

    assert f"activation: up to {human_bytes(activations)}" in titles
    profile.report(tmp_path / "page.html", "A <profile>")
    page = (tmp_path / "page.html").read_text()
    assert "A &lt;profile&gt;" in page and "addmm" in page and "http-equiv" not in page
    assert profile._repr_mimebundle_()["text/html"].count("<svg") == 1


# ---- mistakes -------------------------------------------------------------------------------


def test_mistakes() -> None:
    w = torch.ones(4, requires_grad=True)

    def f(w: Any) -> Any:
        return w.sin().sum()

    for wrong in ({"runs": 0}, {"runs": 2.5}, {"warmup": -1}, {"runs": True}):
        with pytest.raises(ValueError, match="must be an int of at least"):
            ct.profile(f, w, **wrong)
    for link in (0, -1.0, float("nan"), "fast", True):
        with pytest.raises(ValueError, match=r"link|size"):
            ct.profile(f, w, link=link)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        ct.profile(f, w, optimizer="adam")
    with pytest.raises(ValueError, match="SGD does not have any parameter"):
        ct.profile(f, w, optimizer=torch.optim.SGD([torch.ones(3, requires_grad=True)]), link=1e9)
    with pytest.raises(TypeError, match="closure"):
        ct.profile(f, w, optimizer=torch.optim.LBFGS([w]), link=1e9)
    with pytest.raises(ct.UnsupportedGraphError, match="needs a gradient"):
        ct.profile(f, torch.ones(4))
    with pytest.raises(ct.UnsupportedGraphError, match="no operations"):
        ct.profile(lambda x: 3, w)
    with pytest.raises(ValueError, match="real tensors"):
        ct.profile(nn.Linear(2, 2, device="meta"), torch.ones(2, 2))
    with FakeTensorMode():
        fake = torch.ones(4)
    with pytest.raises(ValueError, match="real tensors"):
        ct.profile(f, fake)
    profile = ct.profile(f, w, runs=1, link=1e9)
    other = profiled("gpt")
    for wrong in (profile.rewrite, profile.rerun):
        with pytest.raises(ValueError, match="the plan belongs to another graph"):
            wrong(other.step.plan())
    with pytest.raises(ValueError, match="the traced step belongs to another graph"):
        profile.step.plan(profile=other)
    with pytest.raises(ValueError, match="under this selection belongs to another graph"):
        profile.step.plan(policy=ct.mutwo.select(other))
    with pytest.raises(ValueError, match="rule='best' is not one of"):
        ct.mutwo.select(profile, rule="best")
    with pytest.raises(ValueError, match="use swap=False"):
        ct.mutwo.select(profile, rule="threshold", swap=True)
    for saved in (None, "min", "0x"):
        with pytest.raises(ValueError, match=r"saved=|budget="):
            ct.mutwo.select(profile, saved)
    assert ct.mutwo.select(profile).candidates == []


def test_a_step_that_fails_leaves_nothing() -> None:
    @torch.library.custom_op("cutback_test::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the kernel failed")

    fails.register_fake(torch.empty_like)
    fails.register_autograd(lambda ctx, g: g)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="the kernel failed"):
        ct.profile(lambda w: (fails(w) * torch.rand(4)).sum(), torch.ones(4, requires_grad=True))
    assert torch.equal(state, torch.get_rng_state()) and torch.is_grad_enabled()


@pytest.mark.very_slow
def test_the_example(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "cs265_pipeline.py"
    done = subprocess.run(
        [sys.executable, str(example), "--model", "resnet50", "--report", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "peaks as planned, gradients equal bit for bit" in done.stdout
    assert {p.name for p in tmp_path.iterdir()} == {"resnet50.html"}
