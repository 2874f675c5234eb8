"""Mutation testing of the cuda backend: do its tests find mistakes in it?

    python tests/mutate/mutate.py               all mutants of mutants.txt; fails where one survives
    python tests/mutate/mutate.py --list        writes mutants.txt: a sample of what can be mutated
    python tests/mutate/mutate.py --only 3f2a   some of them, by prefixes of their names
    python tests/mutate/mutate.py --seed x -n 40   another sample

The library is built once, in build/mutate, with all mutants behind switches (support/mutant.h).
First each test runs without a mutant and records which mutants it reaches: those in host code by a
mark at each, those in kernel text by the line numbers of compiled code. Then each mutant runs the
tests that reach it, fastest first, until one fails. Tests of Python are forked from a process that
has imported everything (server.py).

A mutant that is equivalent to the code has a line with the reason in equivalent.txt. Any other
survivor needs a test, or shows unnecessary code."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import points as mutable
from points import Point

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "mutate"
TREE = BUILD / "tree"
MUTANTS, EQUIVALENT = HERE / "mutants.txt", HERE / "equivalent.txt"
SEED, N = "1", 160
WORKERS = 2
REACH = 2  # lines: compilers attribute code to neighbouring lines
LIMIT = 90.0  # seconds of processor time for one mutant
LEAST_FOUND = 0.95

# Python tests, by file, and C tests: program, source.
PYTHON = [
    "test_alignment", "test_backend", "test_bad_input", "test_beside_the_cpu", "test_blaslt",
    "test_device_arrays", "test_device_memory", "test_indices", "test_kept_blocks",
    "test_launches", "test_ordering", "test_products", "test_sums", "test_texts",
]  # fmt: skip
# Tests that run a program hundreds of times with one failing call each are mutation tests
# themselves.
PASSED_OVER = "not each_entry and not each_call and not each_wait and not each_barrier"
C = {
    "test_gpu_offsets": "tests/c/gpu/test_gpu_offsets.c",
    "test_gpu_capture": "tests/c/gpu/test_gpu_capture.c",
    "test_gpu_errors": "tests/c/gpu/test_gpu_errors.c",
    "test_gpu_fused": "tests/c/gpu/test_gpu_fused.c",
    "test_gpu_parity": "tests/c/gpu/test_gpu_parity.c",
    "test_gpu_core_device": "tests/c/core/test_device.c",
}

TAKE_MINUTES = ("test_gpu_fused", "test_gpu_parity")


# ---- mutants ------------------------------------------------------------------------------------


def sources() -> list[Path]:
    files = [*(ROOT / "csrc/exec/cuda").rglob("*.c*"), ROOT / "python/native/device_memory.c"]
    return sorted(f for f in files if f.name != "device_types.cuh")


def compiler_arguments() -> list[str]:
    import numpy

    includes = [ROOT / "csrc", ROOT / "csrc/include", ROOT / "cuda", ROOT / "python/native",
                Path(sysconfig.get_path("include")), Path(numpy.get_include())]  # fmt: skip
    own = subprocess.run(
        ["cc", "-print-file-name=include"], capture_output=True, text=True, check=True
    )
    return ["-std=c17", "-D_GNU_SOURCE", *(f"-I{path}" for path in includes),
            "-idirafter", own.stdout.strip()]  # fmt: skip


def all_points() -> list[Point]:
    arguments = compiler_arguments()
    return [p for file in sources() for p in mutable.points_of(file, ROOT, arguments)]


def chosen(points: list[Point], seed: str, n: int) -> list[Point]:
    """Returns the mutants of each file, at least one per file."""
    lines = {p.file: 0 for p in points}
    for file in lines:
        lines[file] = (ROOT / file).read_text().count("\n")
    whole = sum(lines.values())
    share = {file: max(1, round(n * count / whole)) for file, count in lines.items()}
    return mutable.sample(points, share, seed)


def listed(points: list[Point]) -> list[Point]:
    known = {p.name: p for p in points}
    names = [row.split()[0] for row in MUTANTS.read_text().splitlines() if row[:1] not in ("", "#")]
    gone = [name for name in names if name not in known]
    if gone:
        print(
            f"{len(gone)} of {len(names)} mutants are of code that has changed: --list takes others"
        )
    return [known[name] for name in names if name in known]


def reasons() -> dict[str, str]:
    rows = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return dict(row.split(maxsplit=1) for row in rows if row[:1] not in ("", "#"))


# Where sources use the text that mutants change: headers of kernels, and templates.
TAKES_TEMPLATE = "void cb_cu_template(cb_cu_code *c, const char *text, const cb_cu_hole *hole) {"
HOOKS = [
    ("csrc/exec/cuda/parts.c", "= cb_cu_headers,", "= cb_mutant_headers(),"),
    ("csrc/exec/cuda/update.c", "= cb_cu_headers,", "= cb_mutant_headers(),"),
    ("csrc/exec/cuda/text/code.c", TAKES_TEMPLATE,
     f"{TAKES_TEMPLATE} text = cb_mutant_template(text);"),
]  # fmt: skip


# ---- the tree -----------------------------------------------------------------------------------


def write_tree(mutants: list[Point]) -> str:
    """Copies the files of the repository with mutants applied; unchanged files keep their times.
    Returns a hash of all files except the tests."""
    kept = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    wanted = {
        f: (ROOT / f).read_bytes()
        for f in kept
        if f
        and (ROOT / f).is_file()
        and not f.startswith(("benchmarks/results", "notebooks", "docs"))
        and not f.endswith((".md", "equivalent.txt"))
    }
    texts, templates = [], []
    for file in sorted({p.file for p in mutants}):
        rows = [(k, p) for k, p in enumerate(mutants) if p.file == file]
        text = wanted[file].decode()
        if file.endswith(".cuh"):
            texts += [
                f'    {{{k}, "{Path(file).name}", {len(text[: p.edit.start].encode())}, '
                f"{len(text[p.edit.start : p.edit.end].encode())}, {json.dumps(p.edit.to)}}},\n"
                for k, p in rows
            ]
        else:
            templates += [
                f"    {{{k}, {text[p.edit.start : p.edit.end]}, {p.edit.to}}},\n"
                for k, p in rows
                if p.edit.wrap == "template"
            ]
            code = [row for row in rows if row[1].edit.wrap != "template"]
            wanted[file] = f'#include "exec/cuda/mutant.h"\n{mutable.apply(text, code)}'.encode()
    for name, old, new in HOOKS:
        text = wanted[name].decode()
        assert old in text, f"{name} no longer has {old}"
        include = "" if text.startswith("#include") else '#include "exec/cuda/mutant.h"\n'
        wanted[name] = (include + text.replace(old, new)).encode()
    wanted["csrc/exec/cuda/mutant_texts.h"] = (
        f"enum {{ N_MUTANT = {len(mutants)} }};\ntypedef struct mutant_text {{\n    int number;\n"
        "    const char *header;\n    size_t begin, length;\n    const char *to;\n} mutant_text;\n"
        "static const mutant_text texts[] = {\n" + "".join(texts) + '    {-3, "", 0, 0, ""}};\n'
        "static const struct {\n    int number;\n    const char *text, *to;\n"
        "} templates[] = {\n" + "".join(templates) + '    {-3, "", ""}};\n'
    ).encode()
    for name in ("mutant.c", "mutant.h"):
        wanted[f"csrc/exec/cuda/{name}"] = (HERE / "support" / name).read_bytes()
    for folder in ("csrc", "cuda"):  # files removed since would otherwise still be compiled
        for path in (TREE / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(TREE)) not in wanted:
                path.unlink()
    whole = hashlib.sha256()
    for file, data in sorted(wanted.items()):
        if not Path(file).name.startswith("test_"):
            whole.update(file.encode() + b"\0" + data)
        to = TREE / file
        if not to.exists() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
            if (ROOT / file).exists():
                shutil.copymode(ROOT / file, to)
    return whole.hexdigest()


def run_checked(command: list[str], **more: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise SystemExit(f"{' '.join(command)}:\n{tail}")


def real_nvrtc() -> Path:
    sys.path.insert(0, str(ROOT / "tests" / "gpu_sim"))
    import nvrtc

    found = os.environ.get("CUTBACK_NVRTC") or nvrtc.library()
    if not found:
        raise SystemExit("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    return Path(found)


def build(mutants: list[Point]) -> str:
    key = write_tree(mutants)
    python = TREE / "python"
    flags = ["-DCB_TESTS=ON", "-DCB_PYTHON=ON", "-DCMAKE_C_FLAGS=-w", "-GNinja",
             f"-DPython_EXECUTABLE={sys.executable}"]  # fmt: skip
    run_checked(["cmake", "-S", str(TREE), "-B", str(BUILD / "made"), *flags])
    targets = [*C, "_native", "stand_in", "fake_blaslt"]
    run_checked(["cmake", "--build", str(BUILD / "made"), "--target", *targets])
    run_checked(
        ["cmake", "-S", str(TREE / "tests/gpu_sim"), "-B", str(TREE / "build/gpu_sim"), "-GNinja"]
    )
    run_checked(["cmake", "--build", str(TREE / "build/gpu_sim")])
    for module in (BUILD / "made").rglob("_native*.so"):
        shutil.copy2(module, python / "cutback" / module.name)
    shim = HERE / "support" / "nvrtc_lines.c"
    run_checked(["cc", "-O1", "-shared", "-fPIC", "-o", str(BUILD / "libnvrtc.so.13"), str(shim)])
    for file in real_nvrtc().parent.glob("libnvrtc-builtins*"):
        (BUILD / file.name).unlink(missing_ok=True)
        (BUILD / file.name).symlink_to(file)
    return key


# ---- tests --------------------------------------------------------------------------------------


@dataclass
class Test:
    name: str
    seconds: float = 0.0  # processor time
    reaches: set[int] = field(default_factory=set)


def environment(more: dict[str, str]) -> dict[str, str]:
    return {
        "CUTBACK_NVRTC": str(BUILD / "libnvrtc.so.13"),
        "CUTBACK_TEST_NVRTC": str(BUILD / "libnvrtc.so.13"),
        "CUTBACK_MUTANT_NVRTC": str(real_nvrtc()),
        "CUTBACK_TEST_KERNELS": str(BUILD / "kernels"),
        "CUTBACK_STAND_IN_CACHE": str(BUILD / "stand_in"),
        **more,
    }


class Server:
    """A process that forks Python tests."""

    def __init__(self) -> None:
        read, write = os.pipe()
        files = [f"tests/gpu_sim/{name}.py" for name in PYTHON]
        plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "server"]
        chosen = ["-m", "not very_slow", "-k", PASSED_OVER, *files]
        command = [sys.executable, "-m", "pytest", "-q", "-s", *plugins, *chosen]
        paths = os.pathsep.join([str(TREE / "python"), str(HERE)])
        env = {**os.environ, **environment({}), "PYTHONPATH": paths,
               "CUTBACK_MUTATE_ANSWERS": str(write), "OMP_NUM_THREADS": "1"}  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=TREE, env=env, pass_fds=[write], stdin=subprocess.PIPE, text=True,
            stdout=(BUILD / "server.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(write)
        self.answers = os.fdopen(read)
        line = self.answers.readline()
        if not line:
            raise SystemExit((BUILD / "server.log").read_text())
        self.tests: list[str] = json.loads(line)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return dict(json.loads(self.answers.readline()))

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def run_c(request: dict[str, Any]) -> dict[str, Any]:
    program, only = request["test"].split("::")
    cpu = max(1, int(request["cpu"]))
    env = {**os.environ, **request["env"], "CUTBACK_ONLY": only}
    process = subprocess.Popen(
        [str(BUILD / "made" / program)], env=env, start_new_session=True, cwd=BUILD,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1)),
    )  # fmt: skip
    timer = threading.Timer(request["wall"], lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = status
    return {"passed": status == 0, "seconds": usage.ru_utime + usage.ru_stime}


def run_test(server: Server, test: str, env: dict[str, str], limit: float) -> dict[str, Any]:
    request = {"test": test, "env": environment(env), "cpu": limit, "wall": 5 * limit + 30}
    return server.run(request) if test.startswith("tests/") else run_c(request)


def tests_of_c(fast: bool) -> Iterator[str]:
    for program, source in C.items():
        if fast and program in TAKE_MINUTES:
            continue
        for name in re.findall(r"\bRUN\((\w+)\)", (ROOT / source).read_text()):
            yield f"{program}::{name}"


def is_used_elsewhere(p: Point) -> bool:
    """True for macro bodies and constants, which compilers attribute to the place of use."""
    rows = (ROOT / p.file).read_text().splitlines()[max(p.line - 2, 0) : p.line]
    return rows[-1].startswith("enum ") or any(row.endswith("\\") for row in rows)


def cover(server: Server, name: str, mutants: list[Point]) -> Test:
    """Runs a test without a mutant, with its own kernels compiled, so that their lines are
    recorded."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        marks, lines = Path(folder) / "marks", Path(folder) / "lines"
        more = {"CUTBACK_MUTANT_REACHED": str(marks), "CUTBACK_MUTANT_LINES": str(lines),
                "CUTBACK_TEST_KERNELS": f"{folder}/kernels"}  # fmt: skip
        first = run_test(server, name, more, 1000)
        if not first["passed"]:
            return Test(name, -1.0)
        data = marks.read_bytes() if marks.exists() else b""
        reached = {k for k, mark in enumerate(data[: len(mutants)]) if mark}
        seen = set(lines.read_text().splitlines()) if lines.exists() else set()
        files = {line.split()[0] for line in seen}
        for k, p in enumerate(mutants):
            header, near = Path(p.file).name, range(p.line - REACH, p.line + REACH + 1)
            is_seen = any(f"{header} {n}" in seen for n in near)
            is_seen |= is_used_elsewhere(p) and header in files
            if p.file.endswith(".cuh") and is_seen:
                reached.add(k)
    return Test(name, first["seconds"], reached)


# ---- the run ------------------------------------------------------------------------------------


@dataclass
class Result:
    found_by: str = ""
    n_tests: int = 0
    seconds: float = 0.0
    was_cut: bool = False


def judge(server: Server, number: int, tests: list[Test]) -> Result:
    result = Result()
    for test in tests:
        limit = 10 * test.seconds + 10
        answer = run_test(server, test.name, {"CUTBACK_MUTANT": str(number)}, limit)
        result.n_tests += 1
        result.seconds += answer["seconds"]
        if not answer["passed"]:
            result.found_by = test.name
            break
        if result.seconds > LIMIT:
            result.was_cut = True
            break
    return result


def on_workers(
    servers: list[Server], work: Callable[[Server, Any], Any], items: list[Any]
) -> list[Any]:
    free: Queue[Server] = Queue()
    for server in servers:
        free.put(server)

    def one(item: Any) -> Any:
        server = free.get()
        try:
            return work(server, item)
        finally:
            free.put(server)

    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(one, items))


def take_over_kernels() -> None:
    """Takes over the kernels that tests compiled before, for the stand-in and by NVRTC."""
    folders = {
        "stand_in": ["build/gpu_sim/kernels", "build/package/tests/gpu_sim/kernels"],
        "kernels": ["build/gpu_sim/cutback_kernels", "build/package/cuda_kernels"],
    }
    for name, others in folders.items():
        (BUILD / name).mkdir(mode=0o700, exist_ok=True)
        for other in others:
            if (ROOT / other).is_dir():
                shutil.copytree(ROOT / other, BUILD / name, dirs_exist_ok=True)
        (BUILD / name).chmod(0o700)


def source_of(test: str) -> Path:
    file, _, _ = test.partition("::")
    return ROOT / C.get(file, file)


def coverage(servers: list[Server], mutants: list[Point], key: str, fast: bool) -> list[Test]:
    """Returns what each test reaches, fastest test first. Kept until the test's file or any
    non-test file changes."""
    file = BUILD / "coverage.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    known = kept["tests"] if kept.get("key") == key else {}
    names = [*servers[0].tests, *tests_of_c(fast)]
    digest = {n: hashlib.sha256(source_of(n).read_bytes()).hexdigest() for n in names}
    tests = [
        Test(n, known[n][1], set(known[n][2])) for n in names if known.get(n, "-")[0] == digest[n]
    ]
    same = {t.name for t in tests}
    changed = [n for n in names if n not in same]
    print(f"{len(changed)} tests without a mutant", flush=True)
    tests += on_workers(servers, lambda s, name: cover(s, name, mutants), changed)
    tests.sort(key=lambda test: test.seconds)
    failed = [t.name for t in tests if t.seconds < 0]
    rows = {t.name: (digest[t.name], t.seconds, sorted(t.reaches)) for t in tests if t.seconds >= 0}
    file.write_text(json.dumps({"key": key, "tests": {**known, **rows}}))
    if failed:
        raise SystemExit("without a mutant these fail: " + ", ".join(failed))
    return tests


def measure(mutants: list[Point], key: str, wanted: list[int], fast: bool) -> list[Result]:
    take_over_kernels()
    servers = [Server() for _ in range(WORKERS)]
    tests = coverage(servers, mutants, key, fast)
    print(f"{len(tests)} tests take {sum(t.seconds for t in tests):.0f} s", flush=True)

    def one(server: Server, number: int) -> Result:
        result = judge(server, number, [t for t in tests if number in t.reaches])
        how = f"found by {result.found_by}" if result.found_by else "SURVIVES"
        how += " (not all tests)" if result.was_cut else ""
        print(f"{number} {mutants[number].row()}\n    {how}; {result.n_tests} tests, "
              f"{result.seconds:.1f} s", flush=True)  # fmt: skip
        return result

    results = on_workers(servers, one, wanted)
    for server in servers:
        server.end()
    return results


def report(mutants: list[Point], results: list[Result]) -> bool:
    why = reasons()
    alive = [p for p, r in zip(mutants, results, strict=True) if not r.found_by]
    unexplained = [p for p in alive if p.name not in why]
    n_found = len(mutants) - len(alive)
    share = n_found / max(n_found + len(unexplained), 1)
    print(f"\n{len(mutants)} mutants, {n_found} found: {100 * share:.1f} % of those that are not "
          "equivalent")  # fmt: skip
    for p in alive:
        reason = why.get(p.name, "NO REASON IN equivalent.txt")
        print(f"survives: {p.row()}\n    line {p.line}; {reason}")
    return share >= LEAST_FOUND and not unexplained


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of the cuda backend.")
    parser.add_argument("--list", action="store_true", help="write mutants.txt")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of names")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("-n", type=int, default=N, help="how many, with --list or --seed")
    parser.add_argument("--argued", action="store_true", help="run those of equivalent.txt, too")
    parser.add_argument("--fast", action="store_true", help="without tests that take minutes")
    options = parser.parse_args()
    points = all_points()
    if options.list:
        rows = [p.row() for p in chosen(points, options.seed, options.n)]
        MUTANTS.write_text(HEAD + "\n".join(rows) + "\n")
        print(f"{len(rows)} of {len(points)} mutants in {MUTANTS.relative_to(ROOT)}")
        return 0
    own = options.seed != SEED or options.n != N
    mutants = chosen(points, options.seed, options.n) if own else listed(points)
    begin = time.monotonic()
    key = build(mutants)
    starts = tuple(options.only) or ("",)
    argued = {} if options.only or options.argued else reasons()
    wanted = [
        k for k, p in enumerate(mutants) if p.name.startswith(starts) and p.name not in argued
    ]
    results = measure(mutants, key, wanted, options.fast)
    is_good = report([mutants[k] for k in wanted], results)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{time.monotonic() - begin:.0f} s, of which {usage.ru_utime + usage.ru_stime:.0f} s of "
          "processors")  # fmt: skip
    return 0 if is_good else 1


HEAD = """\
# Mutants of the cuda backend, which `make mutate-gpu` runs: name, file, operator: [code -> mutant].
# Written by `python tests/mutate/mutate.py --list`; a name changes with the code of its line.
"""

if __name__ == "__main__":
    sys.exit(main())
