"""Plans traced graphs of real networks: compares our evaluator with the independent one and
PyTorch's saved sets with ours, and tests the command line on files."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evaluate import check_plan

import cutback
from cutback import _native, cli
from cutback.budgets import PRESETS

DATA = Path(__file__).parents[2] / "data" / "graphs"
SLOW = {"gpt_96layers_plain", "llama_32layers", "resnet152_bn"}
NAMES = sorted(path.name.removesuffix(".json.gz") for path in DATA.glob("*.json.gz"))
FEW = {"evonorm_s0", "gpt2_small_plain", "unet"}
MARKED = [pytest.param(n, marks=pytest.mark.very_slow) if n in SLOW else n for n in NAMES]


def load_referee():
    path = DATA.parents[1] / "reference" / "evaluate_traced.py"
    spec = importlib.util.spec_from_file_location("evaluate_traced", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


referee = load_referee()


def path_of(name):
    return DATA / f"{name}.json.gz"


def text_of(name):
    with gzip.open(path_of(name), "rt", encoding="utf-8") as file:
        return file.read()


def sweep_of(graph):
    rows = [graph["reference"]["autograd"], *graph["reference"]["sweep"]]
    return [row for row in rows if "error" not in row]


def assert_same(own, theirs):
    assert own["peak_bytes"] == theirs["peak_bytes"]
    assert own["saved_bytes"] == theirs["saved_bytes"]
    assert own["runs"] == theirs["runs"] and own["recomputed"] == theirs["recomputed"]
    assert own["time_ps"] == theirs["time_ps"] and own["once_ps"] == theirs["once_ps"]


@pytest.mark.very_slow
@pytest.mark.parametrize("name", MARKED)
def test_every_plan_is_judged_alike(name):
    text, graph = text_of(name), referee.load(path_of(name))
    plans = [(row["forward"] + row["backward"], len(row["forward"])) for row in sweep_of(graph)]
    for number in range(len(PRESETS)):
        plan = json.loads(_native.Problem.read(text).plan(preset=number, device="a100").to_json())
        plans.append((plan["steps"], plan["backward_starts"]))
    judged = 0
    for steps, starts in plans:
        document = json.dumps({"steps": steps, "backward_starts": starts})
        try:
            theirs = referee.evaluate(graph, steps, starts)
        except ValueError as error:
            assert "runs twice" in str(error)
            with pytest.raises(ValueError, match="may run only once"):
                _native.Problem.read(text).evaluate_json(document, "a100")
            continue
        assert_same(json.loads(_native.Problem.read(text).evaluate_json(document, "a100")), theirs)
        judged += 1
    assert judged > len(PRESETS)


@pytest.mark.parametrize("share", [0.7, 0.5, 0.3])
@pytest.mark.parametrize("name", ["transformer_encoder", "unet"])
def test_budgets_are_kept_and_judged_alike(name, share):
    plan = cutback.plan(path_of(name), budget=f"{share}x", device="a100")
    document, numbers = plan.document, plan.numbers
    theirs = referee.evaluate(
        referee.load(path_of(name)), document["steps"], document["backward_starts"]
    )
    assert theirs["peak_bytes"] == numbers["live_bytes"] <= share * numbers["save_all_live_bytes"]
    assert theirs["redrawn"] == 0
    assert theirs["time_ps"] == numbers["time_ps"]


@pytest.mark.parametrize("name", MARKED)
def test_torch_compat_saves_what_torch_saves(name):
    text = text_of(name)
    cut = json.loads(_native.Problem.read(text).cut_json(PRESETS.index("torch-compat"), False)[0])
    theirs = json.loads(text)["reference"]["sweep"][0]["saved"]
    assert cut["saved"] == sorted(theirs)
    assert cut["solve_ms"] >= 0


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.very_slow) for n in NAMES]
)
def test_torch_compat_takes_what_torch_takes(name):
    """Ops that no tangent reaches run where PyTorch runs them, including those that the given order
    places in the backward."""
    graph = referee.load(path_of(name))
    plan = cutback.plan(path_of(name), preset="torch-compat", device="a100")
    theirs = referee.reference(graph, graph["reference"]["sweep"][0])
    own = referee.evaluate(graph, plan.document["steps"], plan.document["backward_starts"])
    for key in ("saved_bytes", "peak_bytes", "seconds"):
        assert math.isclose(own[key], theirs[key], rel_tol=1e-9), key
    assert plan.explain()  # reading the plan checks that its decisions follow from its steps


@pytest.mark.very_slow
@pytest.mark.slow
def test_presets_save_little():
    ratios = {"conservative": [], "aggressive": []}
    for name in NAMES:
        text, graph = text_of(name), referee.load(path_of(name))
        whole = referee.reference(graph, graph["reference"]["autograd"])["saved_bytes"]
        for preset, list_of in ratios.items():
            plan = json.loads(
                _native.Problem.read(text)
                .plan(preset=PRESETS.index(preset), device="a100")
                .to_json()
            )
            # evonorm_s0 saves only its inputs
            ratio = plan["numbers"]["saved_bytes"] / whole if name != "evonorm_s0" else 0.0
            list_of.append(ratio)
            if name == "transformer_encoder":
                assert ratio <= (0.89 if preset == "conservative" else 0.36)
    assert sum(ratios["conservative"]) / len(NAMES) <= 0.79
    assert sum(ratios["aggressive"]) / len(NAMES) <= 0.34


def read_dimacs(path):
    networkx = pytest.importorskip("networkx")
    network = networkx.DiGraph()
    for line in path.read_text().splitlines():
        if not line.startswith("a "):
            continue
        tail, head, capacity = map(int, line.split()[1:])
        before = network.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        network.add_edge(tail, head, capacity=before + capacity)
    return networkx.minimum_cut_value(network, 1, 2)


@pytest.mark.parametrize("preset", ["torch-compat", "conservative", "aggressive"])
@pytest.mark.parametrize("name", ["evonorm_s0", "transformer_encoder", "unet"])
def test_the_cut_is_minimal(name, preset, tmp_path, capsys):
    file = tmp_path / "network.txt"
    arguments = ["cut", str(path_of(name)), "--preset", preset, "--json"]
    assert cli.main([*arguments, "--dump-network", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] == read_dimacs(file)


def test_plan_explain_evaluate(tmp_path, capsys):
    graph, plan = str(path_of("transformer_encoder")), str(tmp_path / "plan.json")
    report = tmp_path / "out.html"
    command = ["plan", graph, "--budget", "0.5x", "-o", plan, "--report", str(report)]
    assert cli.main(command) == 0
    assert "more time" in capsys.readouterr().out and "<svg" in report.read_text()
    written = json.loads(Path(plan).read_text())
    assert written["device"] == "a100" and written["measure"] == "live"
    assert cli.main(["evaluate", graph, plan, "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["peak_bytes"] == written["numbers"]["live_bytes"]
    assert judged["time_ps"] == written["numbers"]["time_ps"]
    theirs = referee.evaluate(referee.load(graph), written["steps"], written["backward_starts"])
    assert theirs["peak_bytes"] == judged["peak_bytes"]
    assert cli.main(["explain", plan, "--json"]) == 0  # the text has a part that a clock ends
    alone = capsys.readouterr().out
    assert cli.main(["explain", plan, graph, "--json"]) == 0
    assert capsys.readouterr().out == alone and "recompute" in alone


def test_time_limit_and_an_early_end():
    path = path_of("unet")
    whole = cutback.plan(path, budget="0.4x", device="a100")
    asked = []

    def end_soon(seconds):
        asked.append(seconds)
        return len(asked) > 1

    for options in ({"time_limit": 0.05}, {"progress": end_soon}):
        try:
            plan = cutback.plan(path, budget="0.4x", device="a100", **options)
        except (cutback.BudgetError, RuntimeError, KeyboardInterrupt):
            continue
        assert plan.numbers["live_bytes"] <= whole.numbers["budget_bytes"]
    assert asked == sorted(asked)


@pytest.mark.slow
def test_min_takes_a_share_of_time():
    path = path_of("transformer_encoder")
    small = cutback.plan(path, budget="min", max_extra=0.4, device="a100").numbers
    smallest = cutback.plan(path, budget="min", max_extra=0.1, device="a100").numbers
    assert small["live_bytes"] <= smallest["live_bytes"]
    for numbers, share in ((small, 0.4), (smallest, 0.1)):
        assert numbers["time_ps"] <= math.ceil((1 + share) * numbers["once_ps"])


@pytest.mark.parametrize(
    ("policy", "saved"),
    [("dots_saveable", {"mm", "bmm", "addmm"}), ("save:aten.bmm", {"bmm"})],
)
def test_policies_by_name(policy, saved):
    plan = cutback.plan(path_of("transformer_encoder"), policy=policy, device="a100")
    ops = plan.problem["ops"]
    makers = {}  # by storage; views of them come later
    for op in ops:
        for out in op["out"]:
            makers.setdefault(out["storage"], op["kind"].split(".")[1:2])
    storages = [out["storage"] for op in ops for out in op["out"]]
    chosen = [storages[entry.value] for entry in plan.saved if entry.reason == "policy"]
    assert chosen and {makers[storage][0] for storage in chosen} <= saved


def test_policy_tables(tmp_path):
    table = tmp_path / "policy.json"
    table.write_text('{"aten.mm": "must_save", "*": "prefer_recompute", "bmm": "free"}')
    plan = cutback.plan(path_of("transformer_encoder"), policy=str(table), device="a100")
    assert any(entry.reason == "policy" for entry in plan.saved)
    table.write_text('{"aten.mm": "perhaps"}')
    with pytest.raises(ValueError, match="perhaps"):
        cutback.plan(path_of("transformer_encoder"), policy=str(table))
    with pytest.raises(ValueError, match=r"aten\.mmm"):
        cutback.plan(path_of("transformer_encoder"), policy="save:aten.mmm")
    with pytest.raises(ValueError, match="policy 'wisely'"):
        cutback.plan(path_of("transformer_encoder"), policy="wisely")


def mistakes(tmp_path):
    graph = path_of("transformer_encoder").read_bytes()
    text = gzip.decompress(graph)
    files = {
        "truncated.json.gz": graph[: len(graph) // 2],
        "truncated.json": text[: len(text) // 2],
        "empty.json": b"",
        "list.json": b"[1, 2]",
        "deep.json": b"[" * 100_000,
        "binary.json": b"\xff\xfe\x00",
        "cycle.json": b'{"nodes":[{"kind":"call_function","op":"aten.neg.default","inputs":[0],'
        b'"out":[]}],"storage_bytes":[],"forward_outputs":[],"backward_outputs":[]}',
        "negative.json": text.replace(b'"bytes":', b'"bytes":-', 1),
        "bomb.json.gz": gzip.compress(b" " * (80 << 20)),
        "order.json": b"\xef\xbb\xbf[]",
        "huge.json": text.replace(b'"bytes":', b'"bytes":1e300,"b":', 1),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        yield ["plan", str(tmp_path / name)]
    good = str(path_of("transformer_encoder"))
    yield ["plan", str(tmp_path / "missing.json")]
    yield ["plan", str(tmp_path)]
    yield ["plan", good, "--device", "abacus"]
    yield ["plan", good, "--budget", "1B"]
    yield ["plan", good, "--budget=-5"]
    for budget in ("nanx", "infx", "", "9" * 400 + "GiB", "9" * 5000, "1e3", "min "):
        yield ["plan", good, "--budget", budget]
    yield ["plan", good, "--policy", good]
    yield ["plan", good, "--policy", "save:aten.bmm+recompute:aten.bmm"]
    yield ["plan", "/dev/null"]
    yield ["plan", good, "--budget", "0.5x", "--max-extra", "0.1"]
    yield ["plan", good, "--budget", "min", "--max-extra", "nan"]
    plan = tmp_path / "plan.json"
    assert cli.main(["plan", good, "-o", str(plan)]) == 0
    yield ["explain", str(plan), str(path_of("unet"))]
    yield ["explain", str(plan), str(plan)]
    yield ["explain", str(tmp_path / "deep.json")]
    yield ["diff", str(plan), good]
    yield ["diff", str(plan), str(tmp_path / "list.json")]
    yield ["diff", str(tmp_path / "deep.json"), str(plan)]
    yield ["evaluate", str(path_of("unet")), str(plan)]
    for number, change in enumerate(
        ({"steps": [0]}, {"steps": [10**9]}, {"steps": "none"}, {"backward_starts": -1})
    ):
        broken = tmp_path / f"broken{number}.json"
        broken.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
        yield ["evaluate", good, str(broken)]
        yield ["explain", str(broken), good]
    (tmp_path / "nameless.json").write_text("{}")
    yield ["explain", str(tmp_path / "nameless.json")]


@pytest.mark.parametrize("limit", ["nan", "-1", "inf", "soon"])
def test_a_time_limit_is_a_time(limit):
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", str(path_of("evonorm_s0")), f"--time-limit={limit}"])
    assert end.value.code == 2


def test_mistakes_are_one_line(tmp_path, capsys):
    for arguments in mistakes(tmp_path):
        capsys.readouterr()
        assert cli.main(arguments) == 2, arguments
        # a local, so that a failure report does not print the whole plan
        said = capsys.readouterr().err
        assert said.startswith("cutback: ") and said.count("\n") == 1, (arguments, said)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_interrupt_keeps_the_best(tmp_path):
    plan = tmp_path / "plan.json"
    graph = str(path_of("gpt_96layers_plain"))
    start = "import sys; from cutback import cli; print(flush=True); sys.exit(cli.main())"
    command = [sys.executable, "-c", start, "plan", graph, "--budget", "0.2x", "-o", str(plan)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()  # the imports are done
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 2, 130, -signal.SIGINT), said
    # without a plan, the signal must have ended the process
    assert plan.exists() or process.returncode != 0
    if plan.exists():  # complete, even if the signal came after it was written
        numbers = json.loads(plan.read_text())["numbers"]
        assert numbers["live_bytes"] <= 0.2 * numbers["save_all_live_bytes"]


@pytest.mark.very_slow
def test_many_budgets_are_single_budgets():
    """Each of several budgets gets the same plan, bound and error text as alone."""
    graph = path_of("unet")
    shares = ["0.97x", "0.5x", "0.28x", "0.62x", "0.01x", None, "min", "0.36x"]
    answers = cutback.plans(graph, shares, device="a100")
    for share, answer in zip(shares, answers, strict=True):
        try:
            alone = cutback.plan(graph, budget=share, measure="live", device="a100")
        except cutback.BudgetError as error:
            assert str(error) == str(answer) and error.__dict__ == answer.__dict__
            continue
        assert isinstance(answer, cutback.Plan)
        assert answer.to_json() == alone.to_json(), share


@pytest.mark.parametrize("name", ["gpt2_small_plain", "unet"])
def test_a_preset_changes_nothing_for_the_budgets_after_it(name):
    """A cut's choice of ops to run in the forward applies only to its own plan."""
    asks = {"preset": "torch-compat", "measure": "saved", "device": "a100"}
    after = cutback.plans(path_of(name), [None, "0.8x"], **asks)[1]
    assert after.to_json() == cutback.plan(path_of(name), budget="0.8x", **asks).to_json()


def test_budgets_at_the_command_line(tmp_path, capsys):
    graph = str(path_of("evonorm_s0"))
    folder = tmp_path / "plans"
    assert cli.main(["plan", graph, "--budgets", "1.0x,0.81x,0.1x,min", "-o", str(folder)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 5 and "out of reach: the smallest plan found takes " in table[3]
    assert sorted(p.name for p in folder.iterdir()) == ["0.81x.json", "1.0x.json", "min.json"]
    assert cli.main(["explain", str(folder / "min.json")]) == 0
    assert cli.main(["plan", graph, "--budgets", "3", "--budget", "min"]) == 2
    capsys.readouterr()
    assert cli.main(["plan", graph, "--budgets", "3"]) == 0
    assert "0.9800x" in capsys.readouterr().out


def test_progress_is_told_the_best_plan():
    told = []
    path = path_of("resnet50_bn")
    plan = cutback.plan(
        path, budget="0.3x", device="a100", progress=lambda seconds, best: told.append(best)
    )
    best = [b for b in told if b is not None]
    assert told[0] is None or told[0].bytes > 0
    assert best and all(b.bytes <= plan.numbers["budget_bytes"] for b in best)
    extras = [b.extra for b in best]
    assert extras == sorted(extras, reverse=True) and best[-1].gap >= 0
    n = plan.numbers
    assert extras[-1] >= (n["time_ps"] - n["once_ps"]) / n["once_ps"] - 1e-9


def test_progress_is_told_which_budget_a_plan_is_for():
    told = []
    cutback.plans(
        path_of("resnet50_bn"),
        ["0.5x", "0.3x"],
        device="a100",
        progress=lambda seconds, best: told.append(best),
    )
    budgets = [best.budget for best in told if best is not None]
    assert budgets == sorted(budgets) and budgets[-1] == 1


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", ["live", "arena"])
def test_exact_budgets(measure):
    """The plan of a search for only this budget is never slower than the ladder's, and respects the
    bound."""
    path = path_of("unet")
    ladder = cutback.plan(path, budget="0.443x", measure=measure, device="a100").numbers
    exact = cutback.plan(path, budget="0.443x", measure=measure, device="a100", exact=True)
    n = exact.numbers
    assert n["time_ps"] <= ladder["time_ps"] and n[f"{measure}_bytes"] <= n["budget_bytes"]
    judged = referee.evaluate(
        referee.load(path), exact.document["steps"], exact.document["backward_starts"]
    )
    assert judged["peak_bytes"] == n["live_bytes"]


def check_memory_taken_over(name, plans):
    """Checks that both evaluators agree on plans that reuse memory, and that these need no more
    than plans without reuse. Returns the number that need less."""
    graph, smaller = referee.load(path_of(name)), 0
    problem = _native.Problem.read(json.dumps({**json.loads(text_of(name)), "over": True}))
    for steps, starts in plans:
        text = json.dumps({"steps": steps, "backward_starts": starts})
        theirs = referee.evaluate({**graph, "over": True}, steps, starts)
        assert_same(json.loads(problem.evaluate_json(text, "a100")), theirs)
        without = referee.evaluate(graph, steps, starts)["peak_bytes"]
        assert theirs["peak_bytes"] <= without
        smaller += theirs["peak_bytes"] < without
    return smaller


@pytest.mark.parametrize(
    "name",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.very_slow) for n in NAMES],
)
def test_memory_taken_over_is_judged_alike(name):
    text, plans = text_of(name), []
    for preset in ("autograd", "aggressive"):
        plan = _native.Problem.read(text).plan(preset=PRESETS.index(preset), device="a100")
        document = json.loads(plan.to_json())
        plans.append((document["steps"], document["backward_starts"]))
    check_memory_taken_over(name, plans)


@pytest.mark.parametrize(
    "name",
    [
        "evonorm_s0",
        *(pytest.param(n, marks=pytest.mark.very_slow) for n in NAMES if n != "evonorm_s0"),
    ],
)
def test_the_smallest_plan_takes_memory_over(name):
    """The smallest plan is planned with reuse of memory. It has the referee's size, and the lives
    placed in the arena do not overlap."""
    document = {**json.loads(text_of(name)), "over": True}
    plan = cutback.plan(document, budget="min", device="a100")
    steps, starts = plan.document["steps"], plan.document["backward_starts"]
    assert check_memory_taken_over(name, [(steps, starts)]) == 1
    own = referee.evaluate({**referee.load(path_of(name)), "over": True}, steps, starts)
    assert own["peak_bytes"] == plan.numbers["live_bytes"]
    problem = json.loads(_native.Problem.read(json.dumps(document)).to_json())
    check_plan(problem, json.loads(plan.to_json()), "a100")
