"""Counts vague annotations: ``python tools/count_any.py [--list] [--most N] [FOLDER]``.

An annotation counts if it contains ``Any`` or ``object`` once the aliases in it are replaced by
what they stand for, and a call of ``cast`` counts as one. ``--list`` prints each place; ``--most``
fails if there are more. FOLDER is ``python/cutback/torch`` unless given.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python"
VAGUE = {"Any", "object"}
DEPTH = 8  # nesting of aliases


def module_name(path: Path) -> str:
    """Returns ``cutback.torch.eager.plan``."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Module:
    """The aliases of a module, and where its other names come from."""

    def __init__(self, path: Path) -> None:
        self.name = module_name(path)
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        package = self.name if path.stem == "__init__" else self.name.rpartition(".")[0]
        self.aliases: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}  # name -> module, name there
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                source = ".".join(filter(None, (base, node.module)))
                for name in node.names:
                    self.imported[name.asname or name.name] = source, name.name
        for node in self.tree.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            if isinstance(node.value, (ast.BinOp, ast.Subscript, ast.Name, ast.Attribute)):
                self.aliases[node.targets[0].id] = node.value

    def annotations(self) -> Iterator[ast.expr]:
        """Yields all annotations, and the casts."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args
                every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                every += [arg for arg in (given.vararg, given.kwarg) if arg is not None]
                yield from (arg.annotation for arg in every if arg.annotation is not None)
                if node.returns is not None:
                    yield node.returns
            elif isinstance(node, ast.AnnAssign):
                yield node.annotation
            elif isinstance(node, ast.Call) and _ends(node.func) == "cast":
                yield node


def _ends(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class Package:
    """All modules by name."""

    def __init__(self) -> None:
        paths = sorted((PACKAGE / "cutback").rglob("*.py"))
        self.modules = {module_name(path): Module(path) for path in paths}

    def is_vague(self, module: Module, node: ast.expr, depth: int = DEPTH) -> bool:
        """True if an annotation contains ``Any`` or ``object``, or an alias of a type that does."""
        if isinstance(node, ast.Call):
            return True  # a cast
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    inner = ast.parse(part.value, mode="eval").body
                except SyntaxError:
                    continue
                if self.is_vague(module, inner, depth):
                    return True
            elif isinstance(part, ast.Name):
                if part.id in VAGUE or (depth and self._alias_is_vague(module, part.id, depth - 1)):
                    return True
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                if part.attr in VAGUE and part.value.id in ("typing", "t"):
                    return True
                source = module.imported.get(part.value.id)
                other = self.modules.get(".".join(source)) if source else None
                if other and depth and self._alias_is_vague(other, part.attr, depth - 1):
                    return True
        return False

    def _alias_is_vague(self, module: Module, name: str, depth: int) -> bool:
        if name in module.aliases:
            return self.is_vague(module, module.aliases[name], depth)
        source, there = module.imported.get(name, ("", ""))
        other = self.modules.get(source)
        return other is not None and depth > 0 and self._alias_is_vague(other, there, depth - 1)

    def vague(self, folder: Path) -> list[tuple[str, int, str]]:
        """Returns (file, line, annotation) of each in a folder."""
        rows = []
        for path in sorted(folder.rglob("*.py")):
            module = self.modules[module_name(path)]
            for node in module.annotations():
                if self.is_vague(module, node):
                    name = str(path.relative_to(ROOT))
                    rows.append((name, node.lineno, ast.unparse(node)))
        return rows


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE / "cutback/torch")
    parser.add_argument("--list", action="store_true", help="name each place")
    parser.add_argument("--most", type=int, help="fail where there are more")
    options = parser.parse_args()
    rows = Package().vague(options.folder.resolve())
    if options.list:
        for name, line, text in rows:
            print(f"{name}:{line}: {text}")
    for name, n in Counter(name for name, _, _ in rows).most_common():
        print(f"{n:5} {name}")
    print(f"{len(rows):5} in all")
    return int(options.most is not None and len(rows) > options.most)


if __name__ == "__main__":
    raise SystemExit(main())
