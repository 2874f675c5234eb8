"""The package's code never extracts facts from sentences, neither from error texts nor from texts
made by the core. A program gets facts from attributes or JSON fields."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import cutback

PACKAGE = Path(cutback.__file__).parent
PATTERNS = {"match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
PARTS = {
    "partition", "rpartition", "rsplit", "startswith", "endswith", "find", "rfind", "index",
    "rindex", "count", "removeprefix", "removesuffix", "replace", "translate",
}  # fmt: skip
CORE_TEXTS = {"text", "compile_text", "explain_text"}  # methods and functions of cutback._native
NOT_CORE = {"budgets", "devices"}  # modules with a function of the same name

HANDLE = (ast.ExceptHandler, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Call, ast.Compare)

# maps a file to the reason for the exception
ALLOWED = {
    "torch/compiler/backends.py": "an assertion of PyTorch that has no type of its own",
    "frontend/words.py": "Python's error for an unknown argument has its name in the text alone, "
    "and the core's for shapes have no list of them",
}


def is_error(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(node, (ast.Name, ast.Attribute))
        and getattr(node, "id", getattr(node, "attr", "")).endswith(("Error", "Exception"))
        for node in ast.walk(annotation)
    )


class Texts:
    """Finds which expressions of some files are error texts, or texts made by the core."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        trees = list(trees)
        self.functions = [
            node
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.Lambda))
        ]
        self.by_name: dict[str, list[ast.FunctionDef]] = {}
        for function in self.functions:
            if isinstance(function, ast.FunctionDef):
                self.by_name.setdefault(function.name, []).append(function)
        self.scopes: list[ast.AST] = [*trees, *self.functions]
        self.inside = {scope: list(self.nodes(scope)) for scope in self.scopes}
        self.errors: dict[ast.AST, set[str]] = {scope: set() for scope in self.scopes}
        self.texts: dict[ast.AST, set[str]] = {scope: set() for scope in self.scopes}
        for _ in range(4):  # a text that is passed on may be passed on again
            for scope in self.scopes:
                self.learn(scope)

    @staticmethod
    def nodes(scope: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes of a function that handle a text, without nested functions."""
        todo = list(ast.iter_child_nodes(scope))
        while todo:
            node = todo.pop()
            if isinstance(node, HANDLE):
                yield node
            if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                todo += ast.iter_child_nodes(node)

    def learn(self, scope: ast.AST) -> None:
        errors, texts = self.errors[scope], self.texts[scope]
        if isinstance(scope, ast.FunctionDef):
            args = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
            errors |= {a.arg for a in args if is_error(a.annotation)}
        for node in self.inside[scope]:
            if isinstance(node, ast.ExceptHandler) and node.name:
                errors.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and self.is_text(scope, node.value):
                    texts |= {t.id for t in targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.Call):
                self.pass_on(scope, node)

    def pass_on(self, scope: ast.AST, call: ast.Call) -> None:
        """Marks parameters that receive such a text. Functions are identified by name, in any
        module, except ``__init__``, which most classes have."""
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name == "__init__":
            return
        for called in self.by_name.get(name, ()):
            names = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
            for arg, value in zip(names[names[:1] == ["self"] :], call.args, strict=False):
                if self.is_text(scope, value):
                    self.texts[called].add(arg)

    def is_text(self, scope: ast.AST, x: ast.AST) -> bool:
        if isinstance(x, ast.Name):
            return x.id in self.texts[scope]
        if isinstance(x, ast.JoinedStr):
            return any(
                self.has_error(scope, v.value) or self.is_text(scope, v.value)
                for v in x.values
                if isinstance(v, ast.FormattedValue)
            )
        if (
            isinstance(x, ast.Call)
            and isinstance(x.func, ast.Name)
            and x.func.id in ("str", "repr")
        ):
            return any(self.has_error(scope, a) or self.is_text(scope, a) for a in x.args)
        if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute):
            of = x.func.value
            if x.func.attr in ("lower", "strip", "splitlines"):
                return self.is_text(scope, of)
            return x.func.attr in CORE_TEXTS and getattr(of, "id", "") not in NOT_CORE
        if isinstance(x, ast.Subscript):
            return self.is_text(scope, x.value)
        return isinstance(x, ast.Attribute) and x.attr == "args" and self.has_error(scope, x.value)

    def has_error(self, scope: ast.AST, x: ast.AST) -> bool:
        return isinstance(x, ast.Name) and x.id in self.errors[scope]

    def reads(self, scope: ast.AST) -> Iterator[int]:
        """Yields lines that look into such a text."""
        for node in self.inside[scope]:
            if isinstance(node, ast.Compare):
                looks = any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
                if looks and any(self.is_text(scope, c) for c in node.comparators):
                    yield node.lineno
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name, of = node.func.attr, node.func.value
                matches = name in PATTERNS and any(self.is_text(scope, a) for a in node.args)
                cuts = name in PARTS or (name == "split" and node.args)
                if matches or (cuts and self.is_text(scope, of)):
                    yield node.lineno


def found_in(*sources: str) -> list[tuple[int, int]]:
    """Returns the matching sources, with their lines."""
    trees = [ast.parse(source) for source in sources]
    texts = Texts(trees)
    home = {node: i for i, tree in enumerate(trees) for node in ast.walk(tree)}
    return [(home[scope], line) for scope in texts.scopes for line in texts.reads(scope)]


def test_no_code_reads_the_text_of_an_error() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    found: dict[str, list[int]] = {}
    for i, line in found_in(*(path.read_text(encoding="utf-8") for path in paths)):
        found.setdefault(str(paths[i].relative_to(PACKAGE)), []).append(line)
    assert found.keys() == ALLOWED.keys(), found


def test_the_check_finds_what_it_should() -> None:
    for body in (
        "    re.search(r'needs (\\d+)', str(error))",
        "    text = str(error)\n    PATTERN.match(text)",
        "    if 'no plan' in str(error): pass",
        "    if 'no plan' in error.args[0]: pass",
        "    f'{error}'.partition(':')",
        "    str(error).split('needs ')",
        "    helper(str(error))",
        "    re.findall('x', step.native.text('code'))",
        "    said = step.native.text('groups')\n    said.split('x')",
    ):
        code = (
            f"def helper(a):\n    re.sub('x', '', a)\ntry:\n    pass\nexcept E as error:\n{body}\n"
        )
        assert found_in(code), body
    assert found_in("def f(error: BudgetError | None):\n    return PATTERN.search(f'{error}')\n")
    inner = "def answered(text):\n    return PATTERN.match(text)\n"
    assert found_in("try:\n    pass\nexcept E as e:\n    budgets.answered(str(e))\n", inner)
    for body in (
        "    raise E(f'{error}: more')",
        "    size = error.smallest_bytes\n    if size in known: pass",
        "    ' '.join(str(error).split())",
        "    json.loads(step.native.text('kernels'))",
        "    re.search('x', budgets.text(5))",
    ):
        assert not found_in(f"try:\n    pass\nexcept E as error:\n{body}\n"), body
