"""Files are written completely or not at all. Only plain files are read, and errors do not show
foreign content."""

from __future__ import annotations

import ast
import gzip
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import cli, files

PACKAGE = Path(cutback.__file__).parent
PLAN = cutback.plan(
    lambda w, x: cutback.tanh(cutback.exp(x @ w)).mean(), np.ones((8, 8)), np.ones((8, 8))
)


def program(code, *arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip


# ---- writing ---------------------------------------------------------------------------------


def writes(tree):
    """Returns the calls in a program's text that write a file, except through cutback.files."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        modes = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
        modes += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        mode = any(isinstance(m, str) and m[:1] in tuple("wax") and len(m) < 4 for m in modes)
        owner = getattr(getattr(node.func, "value", None), "id", "")
        if (
            (called in ("open", "fdopen") and mode)
            or called in ("mkstemp", "NamedTemporaryFile", "write_bytes", "dump", "save")
            or (
                called == "write_text" and isinstance(node.func, ast.Attribute) and owner != "files"
            )
        ):
            yield ast.unparse(node)


def test_there_is_one_writer():
    found = {
        f"{path.relative_to(PACKAGE)}: {call}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "files.py"
        for call in writes(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found
    assert list(writes(ast.parse("open(p, 'w'); Path(p).write_text('x'); json.dump(1, f)")))


@pytest.mark.parametrize("name", ["text.json", "text.json.gz"])
def test_a_killed_process_leaves_a_whole_file(tmp_path, name):
    """The file is one of the versions written, whenever the process ends."""
    path = tmp_path / name
    writer = """
        import sys
        from cutback import files
        for i in range(10**6):
            files.write_text(sys.argv[1], (str(i % 10) * 1000 + "\\n") * 200)
            print(flush=True)
    """
    for n in range(4):
        running = program(writer, path)
        for _ in range(3 + n):
            running.stdout.readline()
        time.sleep(0.003 * n)
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
        lines = files.read_text(path).split("\n")
        assert len(lines) == 201 and lines[-1] == "" and len(set(lines[:-1])) == 1
        assert len(lines[0]) == 1000


def each_writer(path):
    """Calls every public function that writes a file."""
    step = cutback.value_and_grad(lambda w, x: cutback.tanh(x @ w).mean())
    arrays = np.ones((8, 8)), np.ones((8, 8))
    step(*arrays)
    problem = path.with_name("problem.json")
    problem.write_text(json.dumps(PLAN.problem))
    frontier = cutback.frontier(PLAN.problem)

    def main(*arguments):
        code = cli.main([str(a) for a in arguments])
        if code:
            raise OSError("the command line failed")

    return {
        "plan.report": lambda: PLAN.report(path),
        "frontier.report": lambda: frontier.report(path),
        "diff.report": lambda: PLAN.diff(PLAN).report(path),
        "profile.save": lambda: step.profile(*arrays).save(path),
        "plan -o": lambda: main("plan", problem, "-o", path),
        "plan --report": lambda: main("plan", problem, "--report", path),
        "cut --dump-network": lambda: main("cut", problem, "--dump-network", path),
        "frontier --report": lambda: main("frontier", problem, "--report", path),
        "write_text": lambda: files.write_text(path, "x" * 2000),
    }


WRITERS = [
    "cut --dump-network", "diff.report", "frontier --report", "frontier.report", "plan --report",
    "plan -o", "plan.report", "profile.save", "write_text",
]  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(tmp_path, name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut it off
    path = tmp_path / "file"
    path.write_text("before")
    write = each_writer(path)
    assert sorted(write) == WRITERS
    names = sorted(os.listdir(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError):
            write[name]()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before" and sorted(os.listdir(tmp_path)) == names
    write[name]()
    assert path.read_text() != "before" and sorted(os.listdir(tmp_path)) == names


def test_errors_name_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError, match=r"No space left.*'/dev/full'"):
        files.write_text("/dev/full", "x" * 100)
    with pytest.raises(FileNotFoundError, match=r"not written.*nowhere/file"):
        files.write_text(tmp_path / "nowhere" / "file", "x")
    with pytest.raises(IsADirectoryError):
        files.write_text(tmp_path, "x")
    with pytest.raises(ValueError, match=r"'a\\x00b' is not a file name"):
        files.write_text("a\0b", "x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):  # nobody reads the pipe; there is no wait
        files.write_text(tmp_path / "pipe", "x")


def test_links_and_permissions_stay(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to("file")
    files.write_text(link, "after")
    assert link.is_symlink() and path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "new", "x")
        files.write_text(tmp_path / "private", "x", private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to("made")
    files.write_text(dangling, "x")
    assert dangling.is_symlink() and (tmp_path / "made").read_text() == "x"


def test_what_is_no_plain_file_is_written_into(tmp_path):
    files.write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    code = "import sys; from cutback import cli; sys.exit(cli.main(sys.argv[1:]))"
    arguments = ["cut", problem_file(tmp_path), "--dump-network", "/dev/stdout"]
    with program(code, *arguments) as running:  # a pipe
        out = running.stdout.read()
    assert "p max" in out and "conservative: saves" in out
    path = tmp_path / "out"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with path.open("a") as file:  # as by >>
        subprocess.run([sys.executable, "-c", code, *arguments], stdout=file, env=env, check=True)
    assert "p max" in path.read_text() and "conservative: saves" in path.read_text()


def test_the_same_text_gives_the_same_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        files.write_text(tmp_path / name, "text")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text"


# ---- reading ---------------------------------------------------------------------------------


def problem_file(folder):
    path = folder / "problem.json"
    path.write_text(json.dumps(PLAN.problem))
    return str(path)


def commands(file, bad):
    """Returns command lines, each with ``bad`` in place of one file argument."""
    return [
        ["plan", bad],
        ["plan", file, "--profile", bad],
        ["plan", file, "--policy", bad],
        ["plan", file, "--device", bad],
        ["plan", bad, "--budgets", "0.5x"],
        ["cut", bad],
        ["frontier", bad],
        ["explain", bad],
        ["explain", bad, file],
        ["diff", bad, bad],
        ["evaluate", bad, bad],
        ["evaluate", file, bad],
    ]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing", "loop"])
def test_what_is_no_plain_file_is_not_read(tmp_path, kind, capsys):
    """The read does not wait for a writer of a pipe or read an endless device."""
    bad = tmp_path / "bad.json"
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "device":
        bad.symlink_to("/dev/zero")
    elif kind == "folder":
        bad.mkdir()
    elif kind == "loop":
        bad.symlink_to("bad.json")
    for arguments in commands(problem_file(tmp_path), str(bad)):
        assert cli.main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "bad.json" in err, arguments


@pytest.mark.parametrize(
    "secret", ["hunter2:$6$rounds", "\nhunter2", '"hunter2"', "[hunter2", "7hunter2", "hunter2\x00"]
)
def test_a_foreign_file_is_not_quoted(tmp_path, secret, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text(secret)
    for arguments in commands(problem_file(tmp_path), str(bad)):
        assert cli.main(arguments) == 2, arguments
        out, err = capsys.readouterr()
        assert "hunter" not in out + err and err.count("\n") == 1, arguments


def test_deep_and_huge_documents(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"a": ' + "1" * 10_000 + "}"):
        bad.write_text(text)
        for arguments in commands(problem_file(tmp_path), str(bad)):
            assert cli.main(arguments) == 2, arguments
            assert capsys.readouterr().err.count("\n") == 1, arguments


# ---- what is shown ---------------------------------------------------------------------------

EVIL = "\x1b[31mred\x07\r\x9b2J\u202eesrever\u2066\u200b\u2028\nforged\t\x00\x7f"
STEERS = [c for c in EVIL if files.SHOWN.match(c)]


@pytest.fixture
def evil(tmp_path):
    """Makes a problem with hostile names, in a file with a hostile name."""
    problem = json.loads(json.dumps(PLAN.problem))
    del problem["fingerprint"]
    for i, op in enumerate(problem["ops"]):
        op["name"] = f"{op['name']}{EVIL.replace(chr(0), '')}{i}"
        op["at"] = EVIL.replace("\x00", "")
    path = tmp_path / "evil\x1b[2J\u202e.json"
    path.write_text(json.dumps(problem, ensure_ascii=False))
    return str(path)


def test_names_do_nothing_to_a_terminal(evil, tmp_path, capsys):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    pages = [str(tmp_path / f"{i}.html") for i in range(3)]
    for arguments in (
        ["plan", evil, "--preset", "recompute_all", "-o", one, "--report", pages[0]],
        ["plan", evil, "-o", other],
        ["plan", evil, "--explain"],
        ["plan", evil, "--json"],
        ["explain", one],
        ["explain", one, "--json"],
        ["diff", one, other, "--report", pages[1]],
        ["diff", one, other, "--json"],
        ["frontier", evil, "--report", pages[2]],
        ["cut", evil],
        ["evaluate", evil, one],
    ):
        assert cli.main(arguments) == 0, arguments
        out = capsys.readouterr().out
        assert not [c for c in out if c in STEERS], arguments
        assert "\nforged" not in out, arguments
        if arguments[-1] == "--json":
            json.loads(out)
    for page in pages:
        text = Path(page).read_text()
        assert not [c for c in text if c in STEERS and c != "\n"]
    for arguments in (
        ["plan", evil, "--budget", "1B"],
        ["plan", evil, "--policy", f"save:{EVIL.replace(chr(0), '')}"],
        ["plan", evil + "\x1b"],
        ["explain", evil],
        ["diff", evil, one],
    ):
        assert cli.main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and not [c for c in err[:-1] if c in STEERS], arguments


def test_names_do_nothing_in_texts_and_errors(evil):
    problem = json.loads(Path(evil).read_text())
    plans = [cutback.plan(problem, preset=preset) for preset in ("autograd", "recompute_all")]
    for text in (plans[1].explain(), str(plans[1]), str(plans[0].diff(plans[1]))):
        assert not [c for c in text if c in STEERS] and "\nforged" not in text
    assert plans[0].entries[0].name.endswith(tuple("0123456789"))  # data keeps them unchanged
    problem["ops"][2]["in"] = [99]
    with pytest.raises(ValueError) as caught:
        cutback.plan(problem)
    assert not [c for c in str(caught.value) if c in STEERS]
    graph = cutback.Graph()
    with pytest.raises((ValueError, TypeError)) as caught:
        graph.op(EVIL.replace("\x00", ""), graph.input("x", (2,)))
    assert not [c for c in str(caught.value) if c in STEERS]


def test_an_error_cut_within_a_character():
    """The core cuts long texts at a byte."""
    for n in range(4):
        with pytest.raises(ValueError):
            cutback.plan(PLAN.problem, device="x" * n + "\u20ac" * 2000)


def test_a_locale_with_a_decimal_comma(tmp_path):
    """Numbers have a decimal point in every locale."""
    folder = tmp_path / "de_DE.UTF-8"
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no localedef here")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LOCPATH": str(tmp_path),
        "LC_ALL": "de_DE.UTF-8",
    }
    code = """
        import locale, sys
        locale.setlocale(locale.LC_ALL, "")
        assert locale.localeconv()["decimal_point"] == ","
        from cutback import cli
        for arguments in (["plan", "--explain"], ["plan", "--json"], ["cut"], ["frontier"]):
            assert cli.main([arguments[0], sys.argv[1], *arguments[1:]]) == 0
    """
    out = []
    for setting in (env, {**env, "LC_ALL": "C"}):
        text = textwrap.dedent(code)
        if setting["LC_ALL"] == "C":
            text = text.replace('assert locale.localeconv()["decimal_point"] == ","', "")
        done = subprocess.run(
            [sys.executable, "-c", text, problem_file(tmp_path)],
            capture_output=True, text=True, env=setting, check=True,
        )  # fmt: skip
        out.append([line for line in done.stdout.splitlines() if " ms" not in line])
    assert out[0] == out[1]
