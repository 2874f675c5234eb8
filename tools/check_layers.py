#!/usr/bin/env python3
"""Checks that includes and imports go one way, and that the core calls nothing it should not.

    tools/check_layers.py              report every violation as file:line, exit 1 if there is one
    tools/check_layers.py --self-test  check the checker
    tools/check_layers.py --order plan/search   the units of a folder, from the bottom up

A file may include files of its own layer and of the layers left of it. LEFT names the direct left
neighbours; whatever they may include is allowed too. A layer with folders has a row for each folder
(`plan/cut`: csrc/plan/cut and everything below it), and one for the files next to them (`plan`); a
file left of its own folder has its own row. There are no cycles within the core and the extension
module either: a unit (NAME.c with NAME.h) does not include or call a unit that leads back to it,
directly or through others. PYTHON_LEFT is the table for Python packages. It covers all imports,
including those inside functions and those for types only, and no module imports one that leads back
to it. A folder of csrc has at most FILES_MOST source files. CROWDED lists the folders that had more
when this limit was set, with the number that each may have.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from loc import statements

# layer -> its direct left neighbours
LEFT: dict[str, tuple[str, ...]] = {
    "include": (),
    "base": ("include",),
    "flow": ("base",),
    "plan/model": ("flow",),
    "plan/pack": ("plan/model",),
    "plan/schedule": ("plan/pack",),
    "plan/torch": ("plan/model",),
    "plan/cut": ("plan/schedule", "plan/torch"),
    "plan/search/tuning": (),  # one file
    "plan/search/candidates": ("plan/cut", "plan/search/tuning"),
    "plan/search/local": ("plan/search/candidates",),
    "plan/search/exact": ("plan/schedule", "plan/search/tuning"),
    "plan/search": ("plan/search/local", "plan/search/exact"),
    "plan/offload": ("plan/search",),
    "plan/late": ("plan/search",),
    "plan/explain": ("plan/search",),
    "plan": ("plan/offload", "plan/late", "plan/explain"),  # the planner
    "plan/files": ("plan",),
    "ir": ("base",),
    "ad": ("ir",),
    "fuse": ("plan/files", "ir"),
    "lower": ("fuse", "ad"),
    "micro": ("lower",),
    "exec": ("micro", "optim", "cuda"),  # what backends share
    "exec/cpu": ("exec",),
    "exec/cuda/device": ("exec",),
    "exec/cuda/text": ("exec",),
    "exec/cuda/ops": ("exec/cuda/text",),
    "exec/cuda": ("exec/cuda/device", "exec/cuda/ops"),
    "exec/debug": ("exec",),
    "exec/null": ("exec",),
    "exec/ref": ("exec",),
    "optim": ("base",),
    # csrc/*.c and csrc/*.h: the pipeline
    "core": ("exec/cpu", "exec/cuda", "exec/debug", "exec/null", "exec/ref"),
    "cuda": ("base",),  # next to csrc: NVIDIA's libraries
    "native": ("core",),
}

# The same for Python: package or module below python/ -> its direct left neighbours. A row applies
# to everything below it without a row of its own. FACES re-export from all layers.
PYTHON_LEFT: dict[str, tuple[str, ...]] = {
    "cutback": (),  # the modules next to the folders: terms shared by users and all rooms
    "cutback.report": ("cutback",),
    "cutback.planner": ("cutback.report",),
    "cutback.run": ("cutback.planner",),
    "cutback.frontend": ("cutback.run",),
    "cutback.nn": ("cutback.frontend",),
    "cutback.__init__": ("cutback.nn",),
    "cutback.doctor": ("cutback.torch.profiler",),  # it exercises everything
    "cutback.estimate_command": ("cutback.doctor",),
    "cutback.cli": ("cutback.estimate_command",),
    "cutback.__main__": ("cutback.cli",),
    # torch/*.py: hooks, flags, memory, transfers: shared by the rest of it
    "cutback.torch": ("cutback.__init__",),
    "cutback.torch.graph": ("cutback.torch",),
    "cutback.torch.native": ("cutback.torch.graph",),
    "cutback.torch.updates": ("cutback.torch.graph",),
    "cutback.torch.compiler": ("cutback.torch.native", "cutback.torch.updates"),
    "cutback.torch.eager": ("cutback.torch.graph",),
    "cutback.torch.profiler": ("cutback.torch.compiler",),
    # public names for the content of these folders
    "cutback.torch.frontends": ("cutback.torch.compiler",),
    "cutback.torch.mutwo": ("cutback.torch.profiler",),
    "cutback.torch.rerun": ("cutback.torch.graph",),
}
FACES = {"cutback.torch"}  # packages whose __init__.py re-exports modules below it

# Source files directly in one folder of csrc. When a crowded folder loses files, lower its number.
FILES_MOST = 25
CROWDED = {
    "csrc/base": 43,
    "csrc/ir": 28,
    "csrc/optim": 40,
    "csrc/optim/algorithms": 32,
    "csrc/plan/schedule": 28,
    "csrc/plan/search": 39,
}

# Functions that the core may not call, and the only files that may.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "malloc": ("csrc/base/alloc.c",),
    "calloc": (),
    "realloc": (),
    "aligned_alloc": ("csrc/base/alloc.c",),
    "free": ("csrc/base/alloc.c",),
    "strdup": (),
    "alloca": (),
    "abort": (),
    "exit": (),
    "printf": (),
    "puts": (),
    "rand": (),
    "srand": (),
    "strtok": (),
    "qsort": (),  # glibc's allocates memory, and the order of ties depends on that
}

SUFFIXES = {".c", ".h", ".def", ".cu", ".cuh"}
DEFINITION = re.compile(r"^[A-Za-z][\w *]*?\b(cb_\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
# Only tables of the extension: in the core a table passes a unit's functions to those below it, as
# a backend does, and a list names the tables that include its header.
TABLE = re.compile(r"^[A-Za-z][\w *]*?\b(cb_py_\w+) = \{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CALL = re.compile(rf"(?<![\w.>])({'|'.join(FORBIDDEN)})\s*\(")
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def allowed_of(layer: str, left: dict[str, tuple[str, ...]] = LEFT) -> set[str]:
    """Returns the layer itself and everything left of it."""
    allowed = {layer}
    for neighbour in left[layer]:
        allowed |= allowed_of(neighbour, left)
    return allowed


def layer_of(root: Path, path: Path) -> str | None:
    """Returns the layer of a file, or None if the table has none for it."""
    parts = path.relative_to(root).parts
    if parts[0] == "csrc":
        if len(parts) == 2:
            return "core"
        file, folder = "/".join((*parts[1:-1], path.stem)), "/".join(parts[1:-1])
        if file in LEFT or folder in LEFT:
            return file if file in LEFT else folder
        above = next((up.as_posix() for up in Path(folder).parents if up.as_posix() in LEFT), None)
        is_split = any(layer.startswith(f"{above}/") for layer in LEFT)
        return None if is_split else above
    if parts[0] == "cuda":
        return "cuda"
    if parts[:2] == ("python", "native"):
        return "native"
    if parts[:2] == ("tests", "c"):
        # The headers of the test framework serve every layer, so they are in the lowest one.
        if len(parts) == 3:
            return "base"
        rightmost = {"plan": "plan/files", "far": "core", "gpu": "core", "exec": "core"}.get(
            parts[2], parts[2]
        )
        return rightmost if rightmost in LEFT else None
    if parts[:2] == ("examples", "c"):
        return "include"
    return None


def sources(root: Path) -> Iterator[Path]:
    for folder in ("csrc", "cuda", "python/native", "tests/c", "examples/c"):
        yield from (p for p in sorted((root / folder).rglob("*")) if p.suffix in SUFFIXES)


def python_sources(root: Path) -> Iterator[Path]:
    yield from sorted((root / "python/cutback").rglob("*.py"))


def resolve(root: Path, path: Path, name: str) -> Path | None:
    """Returns the file that `#include "name"` refers to, by the compiler's rules."""
    for folder in (
        path.parent,
        root / "csrc",
        root / "csrc/include",
        root / "cuda",
        root / "tests/c",
    ):
        candidate = (folder / name).resolve()
        if candidate.is_file():
            return candidate
    return None


def check_include(root: Path, path: Path, layer: str, quote: str, name: str) -> str | None:
    if quote == "<":
        if re.match(r"(Python|numpy/)", name) and layer != "native":
            return f"<{name}> belongs to python/native; the core knows no Python"
        return None
    target = resolve(root, path, name)
    if target is None:
        return f'"{name}" is nowhere to be found'
    is_test = path.is_relative_to(root / "tests")
    if target.is_relative_to(root / "tests"):
        return None if is_test else f'"{name}" belongs to the tests'
    other = layer_of(root, target)
    if other is None or other not in allowed_of(layer):
        return f'{layer} may not include "{name}": {other} is not left of it'
    return None


def python_layer(module: str) -> str | None:
    """Returns the row of PYTHON_LEFT for a module; the package itself, whose face re-exports
    modules below it, has its own."""
    if module == "cutback":
        return "cutback.__init__"
    while module and module not in PYTHON_LEFT:
        module = module.rpartition(".")[0]
    return module or None


@cache
def imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Returns the imports of a module, also those inside functions."""
    tree = ast.parse(text)
    return [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(root: Path, path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Yields (line, module) of each import of one of our modules, anywhere in the file."""
    is_package = path.name == "__init__.py"
    for node in imports(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
            continue
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_package]
            base = ".".join([*parts, base] if base else parts)
        for name in node.names:  # a module, or a name in one
            inner = root / "python" / base.replace(".", "/") / name.name
            is_module = inner.is_dir() or any(
                inner.with_suffix(suffix).is_file() for suffix in (".py", ".pyi")
            )
            yield node.lineno, f"{base}.{name.name}" if is_module else base


def python_module(root: Path, path: Path) -> str:
    parts = path.relative_to(root / "python").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check_python(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    module = python_module(root, path)
    layer = python_layer(module)
    if layer is None:
        yield 1, "stands in a package that the table in tools/check_layers.py does not know"
        return
    if module in FACES:
        return
    for number, name in imported(root, path, module):
        other = python_layer(name)
        if other is not None and other not in allowed_of(layer, PYTHON_LEFT):
            yield number, f"{layer} may not import {name}: {other} is not left of it"


def circles(edges: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Edges that lead back to their start by any path, each separately."""

    def reached(start: str) -> set[str]:
        seen, left = {start}, [start]
        while left:
            new = edges[left.pop()].keys() - seen
            seen |= new
            left += new
        return seen

    for start, ends in edges.items():
        yield from ((start, end) for end in ends if start in reached(end))


def unit_of(root: Path, path: Path) -> str:
    """Returns "base/vec" for csrc/base/vec.h, "native/work" for python/native/work.c, "" for the
    rest."""
    name = path.relative_to(root).with_suffix("").as_posix()
    for folder in ("csrc/", "python/"):
        if name.startswith(folder):
            return name.removeprefix(folder)
    return ""


def unit_edges(root: Path) -> dict[str, dict[str, tuple[Path, int, str]]]:
    """Returns, for each unit, the units that it uses and the first place of each use. A use is the
    name of a function, or of a table of the extension, that another unit's source defines; what
    macros paste together is not seen."""
    paths = [path for path in sources(root) if unit_of(root, path)]
    unit = {path: unit_of(root, path) for path in paths}
    text = {path: blank_noise(path.read_text(encoding="utf-8")) for path in paths}
    home = {
        name: unit[path]
        for path in paths
        if path.suffix == ".c"
        for name in DEFINITION.findall(text[path]) + TABLE.findall(text[path])
    }
    edges: dict[str, dict[str, tuple[Path, int, str]]] = {unit[path]: {} for path in paths}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, (line, code) in enumerate(zip(lines, text[path].splitlines(), strict=True), 1):
            found = INCLUDE.match(line)
            target = resolve(root, path, found[2]) if found and found[1] == '"' else None
            ends = [(unit[target], f'"{found[2]}"')] if found and target in unit else []
            if path.suffix == ".c":
                ends += [
                    (home[name], name) for name in re.findall(r"\bcb_\w+", code) if name in home
                ]
            for end, what in ends:
                if end != unit[path]:
                    edges[unit[path]].setdefault(end, (path, number, what))
    return edges


def check_units(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yields cycles of units: each use separately."""
    edges = unit_edges(root)
    for start, end in circles(edges):
        path, number, what = edges[start][end]
        yield path, number, f"{what} is of {end}, which uses {start}: a circle"


def check_folders(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yields folders of csrc with too many source files."""
    core = root / "csrc"
    counts = Counter(path.parent for path in sources(root) if path.is_relative_to(core))
    for folder, count in sorted(counts.items()):
        most = CROWDED.get(folder.relative_to(root).as_posix(), FILES_MOST)
        if count > most:
            yield folder, 1, f"has {count} source files, at most {most} are allowed: divide it"


def print_order(root: Path, folder: str) -> None:
    """Prints the units of a folder (`plan/search`), one line for those that use only units of the
    lines above."""
    edges = unit_edges(root)
    left = {unit for unit in edges if unit.rpartition("/")[0] == folder}
    while left:
        line = {unit for unit in left if not left & edges[unit].keys()}
        print(*sorted(unit.rpartition("/")[2] for unit in line or left))
        left -= line or left


def check_circles(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yields imports that lead back to their own module, each separately. Imports for types count:
    two modules that need each other's types are one piece in two files."""
    paths = {python_module(root, path): path for path in python_sources(root)}
    edges = {
        module: {
            name: number
            for number, name in imported(root, path, module)
            if name in paths and name != module
        }
        for module, path in paths.items()
    }

    for module, name in circles(edges):
        yield (
            paths[module],
            edges[module][name],
            f"{name} imports {module}, which imports it: a circle",
        )


def blank_noise(text: str) -> str:
    """Replaces comments and literals by spaces; line numbers stay."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def check_file(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    layer = layer_of(root, path)
    if layer is None:
        yield (
            1,
            "stands in a folder that the table in tools/check_layers.py does not know",
        )
        return
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if found := INCLUDE.match(line):
            problem = check_include(root, path, layer, *found.groups())
            if problem:
                yield number, problem
    name = path.relative_to(root).as_posix()
    if not name.startswith(("csrc/", "cuda/")):
        return
    for number, line in enumerate(blank_noise(text).splitlines(), 1):
        for function in CALL.findall(line):
            if name not in FORBIDDEN[function]:
                yield number, f"the core may not call {function}()"


def check_tree(root: Path) -> list[str]:
    root = root.resolve()
    checks: list[tuple[Path, Iterable[tuple[int, str]]]]
    checks = [(path, check_file(root, path)) for path in sources(root)]
    checks += [(path, check_python(root, path)) for path in python_sources(root)]
    checks += [(path, [(number, what)]) for path, number, what in check_circles(root)]
    checks += [(path, [(number, what)]) for path, number, what in check_units(root)]
    checks += [(path, [(number, what)]) for path, number, what in check_folders(root)]
    return [
        f"{path.relative_to(root)}:{number}: {problem}"
        for path, problems in checks
        for number, problem in problems
    ]


def self_test() -> None:
    files = {
        "csrc/include/cutback.h": "",
        "csrc/base/alloc.c": '#include "../include/cutback.h"\nvoid *p = malloc(1);\n',
        "csrc/base/vec.h": '#include "ir/op.h"\n',  # to the right
        "csrc/ir/op.h": '#include "base/vec.h"\n',
        "csrc/ir/op.c": '#include "op.h"\n/* free(x) */ char *s = "abort()";\n'
        "x->free(y); cb_free(z);\n",
        "csrc/plan/cut.c": '\n#include "ir/op.h"\n',  # two unrelated layers
        "csrc/exec/run.c": '#include "plan/missing.h"\n#include <Python.h>\n'
        "void f(void) { free (0); }\n",
        "csrc/odd/x.c": "",
        "csrc/pipeline.c": '#include "ir/op.h"\n',
        "python/native/mod.c": '#include <Python.h>\n#include "ir/op.h"\nvoid *p = malloc(1);\n',
        "tests/c/check.h": '#include "base/vec.h"\n',
        "tests/c/flow/test_x.c": '#include "check.h"\n#include "ir/op.h"\n',
        "examples/c/train.c": '#include "cutback.h"\n#include "base/vec.h"\n',
        "csrc/plan/model/a.h": '#include "../cut/b.h"\n#include "../planner.h"\n',
        "csrc/plan/cut/b.h": '#include "../model/a.h"\n',
        "csrc/plan/planner.h": '#include "cut/b.h"\n',
        "csrc/plan/new/c.h": "",
        "csrc/plan/search/s.h": "",
        "csrc/plan/search/local/t.c": '#include "../s.h"\n',
        "csrc/ad/one.h": '#include "ir/op.h"\n',
        "csrc/ad/one.c": '#include "one.h"\nint cb_one(int x) {\n    return cb_three(x);\n}\n',
        "csrc/ad/two.c": '/* cb_two */\n#include "one.h"\nint cb_two(void);\n',
        "python/native/up.c": '#include "up.h"\nint cb_py_up(void) {\n    return cb_py_top.n;\n}\n',
        "python/native/up.h": "",
        "python/native/top.c": "cb_py_spec cb_py_top = {\n    cb_py_up,\n};\n",
        "csrc/ad/three.c": '#include "one.h"\nint cb_three(int x) {\n}\n',
        "python/cutback/__init__.py": "if TYPE_CHECKING:\n    from .files import read\n",
        "python/cutback/policies.py": "if TYPE_CHECKING:\n    from .frontend.tracer import A\n",
        "python/cutback/files.py": "from . import tree, __version__\n",  # the face is to its right
        "python/cutback/tree.py": "def f():\n    from .files import read\n",
        "python/cutback/run/__init__.py": "",
        "python/cutback/run/step.py": "if TYPE_CHECKING:\n    from ..frontend.tracer import A\n",
        "python/cutback/frontend/__init__.py": "",
        "python/cutback/frontend/tracer.py": "from ..run import step\nfrom ..cli import main\n"
        "if TYPE_CHECKING:\n    from .graph import G\n",
        "python/cutback/frontend/graph.py": "from .tracer import A\n",
        "python/cutback/cli.py": "from . import __version__, files\n",
        "python/cutback/torch/__init__.py": "from .eager import a\n",
        "python/cutback/torch/hooks.py": "from .graph import b\n",
        "python/cutback/torch/eager/a.py": "from ..graph.b import c\nfrom ..compiler import d\n",
        "python/cutback/torch/graph/b.py": "def f():\n    import cutback.torch.eager.a\n",
        "python/cutback/torch/compiler/d.py": "from ..graph import b\nfrom .. import hooks\n",
    }
    crowds = {  # empty headers in each folder, in addition to those above
        "csrc/micro": FILES_MOST + 1,
        "csrc/exec/cuda/text": FILES_MOST,
        "csrc/base": CROWDED["csrc/base"] - 1,
        "csrc/ir": CROWDED["csrc/ir"] - 2,
    }
    for folder, n in crowds.items():
        files |= {f"{folder}/empty{i}.h": "" for i in range(n)}
    want = [
        "csrc/micro:1",  # more than FILES_MOST
        "csrc/base:1",  # more than its own limit
        "csrc/base/vec.h:1",
        "csrc/exec/run.c:1",
        "csrc/exec/run.c:2",
        "csrc/exec/run.c:3",
        "csrc/odd/x.c:1",
        "csrc/plan/cut.c:2",
        "tests/c/flow/test_x.c:2",
        "examples/c/train.c:2",
        "csrc/plan/model/a.h:1",
        "csrc/plan/model/a.h:2",
        "csrc/plan/new/c.h:1",
        "csrc/base/vec.h:1",  # also a cycle
        "csrc/ir/op.h:1",
        "csrc/plan/search/local/t.c:1",  # to the folder that contains it
        "csrc/plan/model/a.h:1",  # a cycle: a, b and a again
        "csrc/plan/cut/b.h:1",
        "csrc/plan/planner.h:1",
        "csrc/plan/model/a.h:2",
        "csrc/ad/one.c:3",  # a cycle: one calls three, which includes one
        "csrc/ad/three.c:1",
        "python/native/up.c:3",  # a cycle of a function and a table
        "python/native/top.c:2",
        "python/cutback/files.py:1",  # the face
        "python/cutback/files.py:1",  # a cycle
        "python/cutback/__init__.py:2",  # the face loads it in the end: a cycle
        "python/cutback/files.py:1",
        "python/cutback/tree.py:2",
        "python/cutback/policies.py:2",
        "python/cutback/run/step.py:2",
        "python/cutback/run/step.py:2",  # a cycle, for types
        "python/cutback/frontend/tracer.py:1",
        "python/cutback/frontend/tracer.py:2",
        "python/cutback/frontend/tracer.py:4",  # a cycle, for types
        "python/cutback/frontend/graph.py:1",
        "python/cutback/torch/hooks.py:1",
        "python/cutback/torch/eager/a.py:2",
        "python/cutback/torch/graph/b.py:2",
        # hooks, b, a, d and hooks again: a cycle
        "python/cutback/torch/hooks.py:1",
        "python/cutback/torch/graph/b.py:2",
        "python/cutback/torch/eager/a.py:1",
        "python/cutback/torch/eager/a.py:2",
        "python/cutback/torch/compiler/d.py:1",
        "python/cutback/torch/compiler/d.py:2",
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        got = [line.split(": ")[0] for line in check_tree(root)]
    if sorted(got) != sorted(want):
        sys.exit(f"self-test: expected {sorted(want)}, got {sorted(got)}")
    print("self-test: ok")


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:2] == ["--order"]:
        for folder in sys.argv[2:]:
            print_order(root, folder)
        return 0
    problems = check_tree(root)
    count = len([*sources(root), *python_sources(root)])
    print("\n".join(problems) if problems else f"layers: {count} files in order")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
