#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets: documents and dictionaries.

    tests/fuzz/make_seeds.py BUILD OUT

BUILD is a build folder with the fuzz targets and the C tests of readers. OUT/<target> gets the
documents of each target: the golden texts, the small ones of the traced graphs and problems, those
that the C tests mutate, plans of the problems that `fuzz_plan` knows, graphs of `fuzz_build`, and
the kept regressions. OUT/<kind>.dict gets the words: keys of every JSON form and the names of ops,
attributes and types.
"""

from __future__ import annotations

import gzip
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("json", "graph_text", "graph_json", "problem", "plan", "run", "build")
CHOICES = bytes(4)  # the bytes before a document, see the targets

# C tests that can write their documents, and the targets that read them, in the order of the test's
# formats.
C_TESTS = {
    "test_base_fuzz_json": ("json",),
    "test_ir_fuzz_graph": ("graph_text", "graph_json"),
    "test_plan_fuzz_problem": ("problem", "json"),
    "test_plan_traced": ("problem",),
}
# Readers and writers whose string literals are words of the formats.
SPEAKERS = (
    "csrc/ir/graph_json.c",
    "csrc/ir/form.c",
    "csrc/ir/parse.c",
    "csrc/ir/print.c",
    "csrc/plan/files/problem_json.c",
    "csrc/plan/files/plan_json.c",
    "csrc/plan/model/names.c",
    "csrc/plan/torch/traced.c",
    "csrc/plan/torch/aten.c",
    "csrc/plan/model/device.c",
)
LARGEST = 32768  # size limit: longer documents only slow the fuzzer down


def put(out: Path, target: str, name: str, document: bytes) -> None:
    """Adds a document; a target that takes choices first gets it with several of them."""
    if len(document) > LARGEST:
        return
    draw = random.Random(name)
    if target in ("problem", "run"):
        for k in range(4):
            choices = bytes(draw.randrange(256) for _ in range(4)) if k else CHOICES
            (out / target / f"{name}-{k}").write_bytes(choices + document)
    else:
        (out / target / name).write_bytes(document)


def from_tests(build: Path, out: Path) -> None:
    """Writes the documents that C tests mutate, as those tests write them."""
    for test, targets in C_TESTS.items():
        folder = out / "from" / test
        folder.mkdir(parents=True)
        subprocess.run([build / test, "--seeds", folder], check=True, stdout=subprocess.DEVNULL)
        found = sorted(folder.iterdir())
        if not found:
            raise SystemExit(f"{test} has written no documents into {folder}")
        for path in found:
            target = targets[int(path.name.split("-")[0])]
            put(out, target, f"{test}-{path.name}", path.read_bytes())
    shutil.rmtree(out / "from")


def from_files(out: Path) -> None:
    """Copies the golden texts, and the small traced graphs and problems."""
    for path in sorted((ROOT / "tests/golden").rglob("*.*")):
        document, name = path.read_bytes(), f"golden-{path.parent.name}-{path.name}"
        if path.suffix == ".json":
            put(out, "graph_json", name, document)
            put(out, "json", name, document)
        elif document.startswith(b"cutback.graph"):
            put(out, "graph_text", name, document)
            put(out, "run", name, document)
    for path in sorted((ROOT / "tests/data").rglob("*.json.gz")):
        document = gzip.decompress(path.read_bytes())
        put(out, "problem", f"{path.parent.name}-{path.stem}", document)
        put(out, "json", f"{path.parent.name}-{path.stem}", document)


def from_targets(build: Path, out: Path) -> None:
    """Writes plans, graphs as text, and bytes for graphs."""
    programs = build / "tests/fuzz"
    subprocess.run([programs / "fuzz_plan", "--seeds", out / "plan"], check=True)
    folder = out / "from"
    folder.mkdir()
    subprocess.run([programs / "fuzz_build", "--seeds", folder], check=True)
    for path in sorted(folder.iterdir()):
        document, form = path.read_bytes(), path.name.split("-")[0]
        put(out, f"graph_{form}", f"built-{path.name}", document)
        if form == "text":
            put(out, "run", f"built-{path.name}", document)
    shutil.rmtree(folder)
    draw = random.Random(1)
    for k in range(64):
        (out / "build" / f"random-{k}").write_bytes(draw.randbytes(16 + 5 * k))


def from_regressions(out: Path) -> None:
    for path in sorted((Path(__file__).parent / "regressions").glob("*/*")):
        shutil.copy(path, out / path.parent.name / f"regression-{path.name}")


def write_dictionary(path: Path, words: set[str]) -> None:
    path.write_text("".join(f'"{word}"\n' for word in sorted(words)))


def dictionaries(out: Path) -> None:
    """Writes one dictionary for JSON, with quoted keys, and one for graph text."""
    rows = re.findall(r'^CB_OP\(\w+, "(\w+)".*?(?:\w+), (?:\w+), "([^"]*)", "', OPS, re.MULTILINE)
    names = {name for name, _ in rows}
    attributes = {a.split("=")[0] for _, text in rows for a in text.split()}
    types = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"}
    if len(rows) != len(re.findall(r"^CB_OP\(", OPS, re.MULTILINE)):
        raise SystemExit(f"only {len(rows)} rows of csrc/ir/ops.def were understood")
    literals = set()
    for name in SPEAKERS:
        literals |= set(re.findall(r'"([a-z][a-z0-9_.-]{1,40})"', (ROOT / name).read_text()))
    marks = {"true", "false", "null", "[]", "{}", "1e9", "0.5", "-1", "4294967295"}
    # Escaped twice: for JSON's quotes and for the dictionary's.
    keys = {f'\\"{word}\\"' for word in literals | names | attributes | types}
    write_dictionary(out / "json.dict", keys | {f"{k}:" for k in keys} | marks)
    lines = {"cutback.graph 1", "--- backward", "output ", " = ", "input", "region ", "parent=none"}
    equals = {f"{word}=" for word in literals | attributes}
    write_dictionary(out / "text.dict", names | types | literals | equals | lines)


OPS = (ROOT / "csrc/ir/ops.def").read_text()


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    build, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    shutil.rmtree(out, ignore_errors=True)
    for target in TARGETS:
        (out / target).mkdir(parents=True)
    from_tests(build, out)
    from_files(out)
    from_targets(build, out)
    from_regressions(out)
    dictionaries(out)
    for target in TARGETS:
        print(f"{target}: {sum(1 for _ in (out / target).iterdir())} seeds")


if __name__ == "__main__":
    main()
