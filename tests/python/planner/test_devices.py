"""Tests devices with custom rates, which are read, written, and evaluated the same in both
evaluators, and the measurement of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native, cli, devices
from cutback.kernel_cache import cache_folder
from cutback.nn import functional as F

TESTS = Path(__file__).parents[2]
PROBLEMS = sorted((TESTS / "data" / "problems").glob("*.json*"))
ROW = {
    "name": "mine",
    "flops_per_s": {"f32": 2e12, "bf16": 4e12},
    "bytes_per_s": 5e10,
    "launch_s": 3e-6,
}


def load_evaluate():
    spec = importlib.util.spec_from_file_location("evaluate", TESTS / "reference" / "evaluate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["evaluate"] = module
    spec.loader.exec_module(module)
    return module


def test_a_row_is_carried_by_the_plan():
    plan = cutback.plan(PROBLEMS[0], device=ROW, budget="0.9x")
    row = plan.document["device"]
    assert row["name"] == "mine" and row["bytes_per_s"] == 5e10 and row["launch_s"] == 3e-6
    assert row["flops_per_s"] == {"f32": 2e12, "f64": 2e12, "f16": 2e12, "bf16": 4e12, "int": 2e12}
    load_evaluate().check_plan(plan.problem, plan.document, row)
    problem = json.dumps(plan.problem)
    again = json.loads(
        _native.Problem.read(problem).evaluate_json(plan.to_json())
    )  # the device stored in the plan
    assert again["time_ps"] == plan.numbers["time_ps"] and again["device"] == row
    other = json.loads(_native.Problem.read(problem).evaluate_json(plan.to_json(), "cpu"))
    assert other["time_ps"] != plan.numbers["time_ps"]
    assert plan.explain()
    frontier = cutback.frontier(PROBLEMS[0], device=ROW)
    assert devices.name(frontier.device) == "mine" and "mine" in str(frontier)
    assert frontier.plan(0).document["device"] == row


def test_rows_of_the_table_stay_names(tmp_path, capsys):
    cpu = {
        "name": "cpu",
        "flops_per_s": {"f32": 1e11, "f64": 5e10, "f16": 1e11, "bf16": 1e11, "int": 5e10},
        "bytes_per_s": 2e10,
        "launch_s": 1e-6,
        "link_bytes_per_s": 1e10,
    }
    plan = cutback.plan(PROBLEMS[0], device=cpu)
    assert plan.document == cutback.plan(PROBLEMS[0], device="cpu").document
    file = tmp_path / "row.json"
    file.write_text(json.dumps(ROW))
    assert cli.main(["plan", str(PROBLEMS[0]), "--device", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["name"] == "mine"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bytes_per_s": 0}, "bytes_per_s is 0"),
        ({"bytes_per_s": -1.0}, "bytes_per_s is -1"),
        ({"bytes_per_s": "fast"}, "bytes_per_s"),
        ({"launch_s": 2}, "launch_s is 2"),
        ({"launch_s": -1e-9}, "launch_s"),
        ({"flops_per_s": {}}, "f32"),
        ({"flops_per_s": {"f32": 1e12, "f8": 1e12}}, "f8"),
        ({"flops_per_s": {"f32": 1e99}}, "f32 is 1e\\+99"),
        ({"name": ""}, "1 to 80 bytes"),
        ({"name": "x" * 81}, "1 to 80 bytes"),
        ({"name": "a100"}, "row of the table with other numbers"),
        ({"speed": 1}, "speed"),
    ],
)
def test_bad_rows(change, text):
    with pytest.raises(ValueError, match=text):
        cutback.plan(PROBLEMS[0], device={**ROW, **change})


def test_bad_devices(tmp_path):
    with pytest.raises(TypeError, match="int"):
        cutback.plan(PROBLEMS[0], device=7)
    with pytest.raises(ValueError, match="bytes_per_s"):
        cutback.plan(PROBLEMS[0], device={"name": "x", "flops_per_s": {"f32": 1}, "launch_s": 0})
    with pytest.raises(ValueError):
        cutback.plan(PROBLEMS[0], device='{"name": ')
    with pytest.raises(OSError):
        cutback.plan(PROBLEMS[0], device=str(tmp_path / "none.json"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_this_machine_is_measured_once(cache, monkeypatch):
    row = devices.measured()
    assert min(*row["flops_per_s"].values(), row["bytes_per_s"], row["launch_s"]) > 0
    points = row["point_per_s"]
    assert min(points.values()) > 0 and points["f32"] < row["flops_per_s"]["f32"]
    file = devices.cache_file()
    assert file.parent.parent == cache
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]

    monkeypatch.setattr(devices, "measure", lambda: pytest.fail("measured again"))
    assert devices.measured() == row
    plan = cutback.plan(PROBLEMS[0], device="measured")
    assert plan.document["device"]["bytes_per_s"] == row["bytes_per_s"]
    step = cutback.compile(lambda a: (a * a).sum(), device="measured")
    step(np.ones(4, np.float32))
    assert step.plan.document["device"]["name"] == row["name"]


@pytest.mark.parametrize(
    "damage", ["text", "list", "key", "open", "link", "deep", "negative", "nan", "word", "unknown"]
)
def test_a_damaged_cache_is_not_used(cache, monkeypatch, damage):
    good = {**ROW, "name": "from the cache"}
    monkeypatch.setattr(devices, "measure", lambda: good)
    assert devices.measured() == good
    file = devices.cache_file()
    document = json.loads(file.read_text())
    monkeypatch.setattr(devices, "measure", lambda: ROW)
    assert devices.measured() == good
    if damage == "text":
        file.write_text("{")
    elif damage == "list":
        file.write_text("[]")
    elif damage == "key":
        file.write_text(json.dumps({**document, "key": {**document["key"], "cutback": "0.0"}}))
    elif damage == "open":
        os.chmod(file, 0o666)
    elif damage == "deep":
        file.write_text("[" * 200_000)
    elif damage in ("negative", "nan", "word"):
        wrong = {"negative": -1, "nan": float("nan"), "word": "fast"}[damage]
        file.write_text(json.dumps({**document, "row": {**document["row"], "bytes_per_s": wrong}}))
    elif damage == "unknown":
        file.write_text(json.dumps({**document, "row": {**document["row"], "colour": 1}}))
    else:
        file.rename(cache / "elsewhere")
        file.symlink_to(cache / "elsewhere")
    assert devices.measured() == ROW
    assert devices.measured() == ROW
    assert devices.measured(fresh=True) == ROW


def test_no_place_for_a_cache(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(devices, "measure", lambda: ROW)
    assert devices.measured() == ROW
    monkeypatch.setattr(devices, "measure", lambda: pytest.fail("measured again"))
    assert devices.measured() == ROW  # kept by the process


def test_a_user_without_a_home(monkeypatch, tmp_path):
    """A container may run as a user that its system does not know."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "measure", lambda: ROW)
    assert devices.measured() == ROW and not devices.is_kept()
    assert cache_folder({}).parts[:2] == devices.cache_file().parts[:2] == ("/", "dev")
    assert not os.listdir(tmp_path)


def test_threads_measure_once(cache, monkeypatch):
    rows = iter([{**ROW, "name": str(n)} for n in range(8)])

    def measure():
        time.sleep(0.05)
        return next(rows)

    monkeypatch.setattr(devices, "measure", measure)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: devices.measured()["name"], range(8)))
    assert set(found) == {"0"}


EXPENSIVE = {"gelu": F.gelu, "softmax": F.softmax, "dropout": lambda y: F.dropout(y, 0.1)}
# no real machine: fusible ops are memory-bound unless they have their own arithmetic rate
ROUGH = {
    "name": "rough",
    "flops_per_s": {"f32": 2e11},
    "bytes_per_s": 2e10,
    "launch_s": 0.0,
}


def run_again(kind, device):
    """Names the array that a plan recomputes if it can save only one of two. One is made by a
    costly operation that moves two arrays, the other by two products that move five."""

    def loss(params, x, mask):
        a = EXPENSIVE[kind](F.relu(x @ params[0]))
        y = F.relu(a @ params[1])
        return ((y * y * mask) @ params[2]).sum()

    x = np.ones((256, 512), np.float32)
    args = ([np.ones((512, 512), np.float32)] * 3, x, x)
    whole = cutback.plan(loss, *args, device=device).numbers["save_all_saved_bytes"]
    budget = whole - x.nbytes // 2
    plan = cutback.plan(loss, *args, device=device, budget=budget, measure="saved")
    load_evaluate().check_plan(plan.problem, plan.document, device)
    steps = plan.document["steps"]
    return {plan.problem["ops"][i]["kind"] for i in steps if steps.count(i) > 1}


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_arithmetic_of_what_fuses_is_not_free(kind):
    """By bytes alone the costly operation is recomputed; by time the products are."""
    assert kind in run_again(kind, ROUGH)
    assert "mul" not in run_again(kind, ROUGH)
    counted = {**ROUGH, "name": "counted", "point_per_s": {"f32": 5e9}}
    assert kind not in run_again(kind, counted)
    assert "mul" in run_again(kind, counted)


def test_kernels_say_what_they_are_modelled_to_take():
    """A GELU and its gradient share one error function if they are in one kernel."""
    n = 1 << 16
    device = {**ROUGH, "point_per_s": {"f32": 1e9}}
    step = cutback.value_and_grad(lambda x: F.gelu(x).sum(), device=device)
    step(np.ones(n, np.float32))
    (kernel,) = json.loads(step.executable.text("kernels"))["groups"]
    flops = {op["kind"]: op.get("flops", 0.0) for op in step.plan.problem["ops"]}
    assert {"gelu", "gelu_bwd"} <= {op["kind"] for op in kernel["ops"]}
    largest = max(flops["gelu"], flops["gelu_bwd"])
    assert largest * 1e3 <= kernel["modelled_ps"] < 1.5 * largest * 1e3
