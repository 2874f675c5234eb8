"""Tests the command line, and checks that the stubs match the extension."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native, cli


@pytest.fixture
def problem(tmp_path):
    plan = cutback.plan(
        lambda w, x: cutback.tanh(cutback.exp(x @ w)).mean(), np.ones((8, 8)), np.ones((8, 8))
    )
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(plan.problem))
    return str(path)


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    isa = _native.machine()["isa"]
    assert re.fullmatch(
        rf"cutback {cutback.__version__} \((commit [0-9a-f]{{10}}, )?{isa}\)\n", out
    )


def test_doctor():
    """The doctor runs in its own process, because it would find a driver opened by another test."""
    command = [sys.executable, "-m", "cutback", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    for word in (
        "cutback",
        "python",
        "numpy",
        "supported",
        "torch",
        "threads",
        "matrix product",
        "ml_dtypes",
    ):
        assert word in out
    assert out.rstrip().endswith("ok")


def test_ops(capsys):
    assert cli.main(["ops"]) == 0
    out = capsys.readouterr().out
    assert "layer_norm" in out and "stride_h=i0" in out


def test_plan(problem, capsys, tmp_path):
    assert cli.main(["plan", problem, "--budget", "1.0x"]) == 0
    assert "more time" in capsys.readouterr().out
    assert cli.main(["plan", problem, "--budget", "1.0x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "cutback.plan"
    out, page = tmp_path / "plan.json", tmp_path / "page.html"
    assert (
        cli.main(
            ["plan", problem, "--preset", "conservative", "-o", str(out), "--report", str(page)]
        )
        == 0
    )
    assert json.loads(out.read_text())["preset"] == "conservative" and "<svg" in page.read_text()
    assert cli.main(["plan", problem, "--explain"]) == 0
    assert "test_cli.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--budget", "10"], ["--budget", "7 apples"], ["--device", "abacus"]]
)
def test_a_mistake_is_one_line(problem, arguments, capsys):
    assert cli.main(["plan", problem, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("cutback: ") and err.count("\n") == 1
    assert "budget=" not in err


def test_a_file_that_is_not_there(capsys, tmp_path):
    assert cli.main(["plan", str(tmp_path / "no.json")]) == 2
    (tmp_path / "bad.json").write_text('{"format": "cutback.pro')
    assert cli.main(["plan", str(tmp_path / "bad.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("command", [["plan"], ["cut"], ["frontier"]])
@pytest.mark.parametrize("text, where", [("{\n", "JSON, line 2,"), ('{"a": 1}', "line 1:")])
def test_an_error_in_a_file_names_it(command, text, where, capsys, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert cli.main([*command, str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"cutback: {path}: {where}")


def test_a_plan_of_a_file_with_any_name_can_be_read(problem, capsys, tmp_path):
    graph, plan = tmp_path / os.fsdecode(b"not-\xff-utf8.json"), str(tmp_path / "plan.json")
    graph.write_bytes(Path(problem).read_bytes())
    assert cli.main(["plan", str(graph), "-o", plan]) == 0
    assert cli.main(["explain", plan, str(graph)]) == 0
    assert cli.main(["explain", plan]) == 2
    assert "does not name its graph; pass it as the last argument" in capsys.readouterr().err


def test_output_that_cannot_be_written(monkeypatch, capsys):
    """Python itself would print errors of the last flush, and exit with status 120."""
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert cli.main(["ops"]) == 2
        full.flush()
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert cli.main(["ops"]) == 0
    assert capsys.readouterr().err == "cutback: No space left on device\n"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        assert cli.main(["ops"]) == 0 and cli.main(["plan", "nowhere.json"]) == 2


def test_an_error_in_a_plan_names_the_plan(problem, capsys, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("{}\n")
    assert cli.main(["evaluate", problem, str(plan)]) == 2
    assert capsys.readouterr().err.startswith(f"cutback: {plan}: line 1:")


@pytest.mark.parametrize(
    "command", [["plan"], ["cut"], ["explain"], ["place", "--capacity", "1MiB"]]
)
def test_a_model_is_no_graph(command, capsys, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x07\x12\x07pytorch")
    assert cli.main([*command, str(model)]) == 2
    assert "cutback.torch.trace(model, *inputs).save(FILE)" in capsys.readouterr().err


def test_a_graph_may_be_called_as_a_model_is(problem, capsys, tmp_path):
    graph = tmp_path / "step.pt"
    graph.write_bytes(Path(problem).read_bytes())
    assert cli.main(["plan", str(graph)]) == 0


def test_an_unknown_option_shows_the_usage_of_its_command(problem, capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", problem, "--bugdet", "0.5"])
    err = capsys.readouterr().err
    assert err.startswith("usage: cutback plan ")
    assert err.endswith("cutback plan: error: unrecognized arguments: --bugdet 0.5\n")


def test_a_budget_that_no_plan_meets_names_options(problem, capsys):
    assert cli.main(["plan", problem, "--budget", "100"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("cutback: no plan fits 100 B") and "--budget min" in err


def test_an_unknown_device_offers_those_there_are(problem, capsys):
    assert cli.main(["plan", problem, "--device", "h300"]) == 2
    err = capsys.readouterr().err
    assert '"h300"' in err and "h100, h200" in err and "JSON file" in err


def test_an_error_in_a_device_file_names_it(problem, capsys, tmp_path):
    device = tmp_path / "row.json"
    for text, what in (
        ("{}", 'line 1: the object has no "name"'),
        ('{"name": "", "flops_per_s": {}}', "device: a name must have 1 to 80 bytes, not 0"),
        (' {"name": ', "JSON, line 1, column 10:"),
    ):
        device.write_text(text)
        assert cli.main(["plan", problem, "--device", str(device)]) == 2
        assert capsys.readouterr().err.startswith(f"cutback: {device}: {what}")


def test_what_is_read_is_not_written(problem, capsys, tmp_path):
    before = Path(problem).read_bytes()
    plan, link = str(tmp_path / "plan.json"), tmp_path / "link.json"
    link.symlink_to(problem)
    assert cli.main(["plan", problem, "-o", plan]) == 0
    for command in (
        ["plan", problem, "-o", problem],
        ["plan", problem, "--report", str(link)],
        ["cut", problem, "--dump-network", problem],
        ["explain", plan, "--report", plan],
    ):
        capsys.readouterr()
        assert cli.main(command) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"{command[-1]}: cannot write to a file" in err
    assert Path(problem).read_bytes() == before


def test_an_error_of_the_system_begins_with_the_file(problem, capsys, tmp_path):
    missing, folder = str(tmp_path / "missing.json"), str(tmp_path)
    assert cli.main(["plan", missing]) == 2
    assert capsys.readouterr().err == f"cutback: {missing}: No such file or directory\n"
    assert cli.main(["plan", str(problem), "-o", folder]) == 2
    assert capsys.readouterr().err == f"cutback: {folder}: not written: Is a directory\n"


def test_errors_have_a_colour_on_a_terminal_only(monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["plan", "missing.json"]) == 2
    assert capsys.readouterr().err.startswith("\x1b[1;31mcutback:\x1b[0m missing.json: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["plan", "missing.json"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_completion(tmp_path):
    """The output is what a shell receives from a command registered with argcomplete."""
    pytest.importorskip("argcomplete")
    line, answer = "cutback plan --bud", tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_LINE": line}
    asked |= {"COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": " "}
    command = [sys.executable, "-m", "cutback"]
    subprocess.run(command, env={**os.environ, **asked}, check=True)
    assert set(answer.read_text().split()) == {"--budget", "--budgets"}


def test_an_unknown_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["dance"])
    assert end.value.code == 2


def test_every_public_name_is_there_and_documented():
    for name in cutback.__all__:
        thing = getattr(cutback, name)
        assert thing.__doc__ or name == "newaxis", name  # newaxis is None, as in NumPy
    assert set(cutback.__all__) <= set(dir(cutback))
    with pytest.raises(AttributeError, match="no attribute 'dance'"):
        cutback.dance  # noqa: B018


@pytest.mark.slow
def test_stubs_fit_the_extension(tmp_path):
    pytest.importorskip("mypy")
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "cutback._native"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dash_is_standard_output(problem, tmp_path):
    command = [sys.executable, "-m", "cutback", "cut", problem, "--dump-network", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "p max " in done.stdout and "saves" in done.stdout
    command = [sys.executable, "-m", "cutback", "plan", problem, "--budget", "min", "-o", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert '"cutback.plan"' in done.stdout
    assert not (tmp_path / "-").exists()


def test_a_number_of_budgets_is_not_one_of_bytes(problem, capsys):
    assert cli.main(["plan", problem, "--budgets", "100000"]) != 0
    assert "--budget 100000" in capsys.readouterr().err
    assert cli.main(["plan", problem, "--budgets", "3"]) == 0


def test_a_problem_is_no_profile(problem, capsys):
    assert cli.main(["plan", problem, "--profile", problem]) != 0
    assert "cutback.problem is not a profile" in capsys.readouterr().err
