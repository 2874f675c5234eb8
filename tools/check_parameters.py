#!/usr/bin/env python3
"""Checks that internal functions of python/cutback take at most six parameters.

    tools/check_parameters.py              report functions with more as file:line; exit 1 if any
    tools/check_parameters.py --self-test  check the checker

`self` and `cls` do not count; `*args` and `**kwargs` count as one each. PUBLIC lists the functions
that users call, or that PyTorch calls: their keyword options stay as documented. An unnecessary
line of PUBLIC is an error, too.

Parameters that travel together belong in a frozen dataclass or a NamedTuple.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from loc import statements_in

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "cutback"
MOST = 6

PUBLIC = {
    "frontend/estimating.py": {"estimate"},
    "frontend/planning.py": {"plan"},
    "frontend/step.py": {"Step.__call__"},
    "frontend/training.py": {"compile"},
    "nn/attention.py": {"scaled_dot_product_attention"},
    "nn/cross_entropy.py": {"cross_entropy"},
    "nn/functional.py": {
        "avg_pool2d", "batch_norm", "conv1d", "conv2d", "embedding", "max_pool1d", "max_pool2d",
    },
    "nn/losses.py": {
        "binary_cross_entropy_with_logits", "cosine_embedding_loss", "margin_ranking_loss",
        "multi_margin_loss", "nll_loss", "poisson_nll_loss", "triplet_margin_loss",
    },
    "nn/resampling.py": {
        "conv_transpose1d", "conv_transpose2d", "embedding_bag", "instance_norm", "interpolate",
    },
    "optim/base.py": {"Optimizer.step"},
    "optim/layerwise.py": {"LAMB"},
    "planner/search.py": {"plans"},
    "run/executable.py": {"Executable.__init__"},
    "torch/compiler/compiling.py": {"compile"},
    "torch/compiler/partition.py": {"Partitioner.__init__"},
    "torch/eager/regions.py": {"checkpoint", "checkpoint_sequential"},
    "torch/one_pass.py": {"OnePass.step"},
    "torch/profiler/batches.py": {"max_batch"},
    "torch/profiler/estimating.py": {"estimate"},
    "torch/profiler/mutwo.py": {"mu_two"},
    "torch/profiler/profiling.py": {"profile"},
    "torch/profiler/tracing.py": {"trace"},
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


def count(function: Function) -> int:
    """Returns the number of parameters of a function, without self or cls."""
    given = function.args
    named = [*given.posonlyargs, *given.args]
    own = bool(named) and named[0].arg in ("self", "cls")
    return len(named) + len(given.kwonlyargs) + bool(given.vararg) + bool(given.kwarg) - own


def functions(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, Function]]:
    """Yields functions of a module, by qualified name."""
    for node in statements_in(tree):
        if isinstance(node, Function):
            yield ".".join((*inside, node.name)), node
            yield from functions(node, (*inside, node.name))
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, (*inside, node.name))
        else:
            yield from functions(node, inside)


def violations(sources: dict[str, str], public: dict[str, set[str]]) -> list[str]:
    """Returns violations in files of the package, by their path below it."""
    found, needed = [], set()
    for path, text in sorted(sources.items()):
        for name, function in functions(ast.parse(text)):
            n = count(function)
            if n <= MOST:
                continue
            if name in public.get(path, ()):
                needed.add((path, name))
            else:
                found.append(
                    f"python/cutback/{path}:{function.lineno}: {name} takes {n} parameters, more "
                    f"than {MOST}"
                )
    listed = {(path, name) for path, names in public.items() for name in names}
    found += [f"PUBLIC: {path}: {name} is not needed" for path, name in sorted(listed - needed)]
    return found


def self_test() -> None:
    """Checks the checker."""
    six, seven = "a, b, c, d, e, f", "a, b, c, d, e, f, *g"
    sources = {
        "a.py": f"def f({six}): ...\nclass C:\n def m(self, {six}): ...\n"
        f" def n(self, {seven}): ...",
        "b.py": f"if True:\n async def f({seven}): ...\ndef g():\n def h({seven}): ...",
    }
    bad = violations(sources, {"a.py": {"C.n", "C.m"}, "b.py": {"f"}})
    assert bad == [
        "python/cutback/b.py:4: g.h takes 7 parameters, more than 6",
        "PUBLIC: a.py: C.m is not needed",
    ], bad


def main() -> int:
    """Returns the exit status."""
    if "--self-test" in sys.argv[1:]:
        self_test()
        return 0
    self_test()
    files = {str(p.relative_to(PACKAGE)): p.read_text() for p in PACKAGE.rglob("*.py")}
    found = violations(files, PUBLIC)
    print("\n".join(found) or f"parameters: {len(files)} files, at most {MOST} in each function")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
