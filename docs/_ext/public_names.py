"""The directive ``public``: reference entries for the public names of a module.

    .. public:: cutback.optim
       :only: AdamW SGD
       :without: foreach
       :kind: classes

lists the names in the module's ``__all__`` (of a module without one, what it defines under names
without an underscore), first as a table with one sentence each, then with their full docstrings. A
name that is added to a module therefore appears on its page. The options narrow the list; a kind is
classes, exceptions, functions, data or operations (names in ``cutback.names.OPERATIONS``).

References to the place where an object is defined, as annotations have them
(``cutback.planner.plan.Plan``), lead to the entry of its public name (``cutback.Plan``). Names of
other libraries, and those in INTERNAL, are not linked.
"""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from cutback.names import OPERATIONS

OURS = "cutback"
HIDE_BUILTINS = {OURS: {*OPERATIONS, "compile"}, "cutback.torch": {"compile"}}
"""Public names that are not in ``__all__``, because a star import would hide builtins."""

INTERNAL = re.compile(
    r"cutback\.("
    r"_native\.\w+|cuda\.Memory|cuda_libraries\.Place|explanation\.Kernels|report\.model\.Plan"
    r"|frontend\.step\.(Options|OnlyGradients|Result|StepOptions|WithGradients)"
    r"|frontend\.(regions\.F|tracer\.Builder|tracer\.DLPack|tracing\.Call)"
    r"|optim\.(recorded\.Recorded|recording\.Recording|state\.State)"
    r"|planner\.(problems\.Timed|search\.Best)"
    r"|run\.compiling\.CompileOptions|run\.executable\.(Draws|Update)|run\.measures\.Planned"
    r"|torch\.(alone|compiler|graph|native|one_pass|profiler)\.[\w.]+)"
)
"""Types in signatures that users neither make nor look into."""

EXTERNAL = re.compile(r"(abc|collections|contextlib|enum|np|numpy|os|pathlib|torch|types|typing)\.")

DIRECTIVES = {
    "classes": "autoclass",
    "exceptions": "autoexception",
    "functions": "autofunction",
    "operations": "autofunction",
    "data": "autodata",
}


def public(module: ModuleType) -> list[str]:
    """The public names of a module, except names of modules."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    names = {*names, *HIDE_BUILTINS.get(module.__name__, ())}
    shown = {n for n in names if not n.startswith("__")}
    return sorted(
        (n for n in shown if not inspect.ismodule(getattr(module, n))),
        key=lambda name: (name.lower(), name),
    )


def kind(module: ModuleType, name: str) -> str:
    """A key of DIRECTIVES."""
    value = getattr(module, name)
    if module.__name__ == OURS and name in OPERATIONS:
        return "operations"
    if inspect.isclass(value):
        return "exceptions" if issubclass(value, BaseException) else "classes"
    return "functions" if inspect.isroutine(value) else "data"


def words(argument: str) -> list[str]:
    """Words with blanks between them."""
    return directives.unchanged_required(argument).split()


class Public(SphinxDirective):
    """See the module."""

    required_arguments = 1
    option_spec: ClassVar = {"only": words, "without": words, "kind": words}

    def names(self, module: ModuleType) -> Iterator[str]:
        """The names that the options leave."""
        known = public(module)
        without = self.options.get("without", [])
        only = self.options.get("only", known)
        if unknown := {*only, *without} - {*known}:
            raise self.error(f"{module.__name__} has no public {', '.join(sorted(unknown))}")
        kinds = self.options.get("kind", DIRECTIVES)
        return (n for n in only if n not in without and kind(module, n) in kinds)

    def run(self) -> list[nodes.Node]:
        """The table and the entries."""
        home = self.arguments[0]
        module = import_module(home)
        found = list(self.names(module))
        homes: dict[str, str] = self.env.domaindata.setdefault("public_names", {})
        for name in found:
            value = getattr(module, name)
            defined = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            homes.setdefault(defined, f"{home}.{name}")
        lines = [f".. currentmodule:: {home}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in found]
        for name in found:
            lines += ["", f".. {DIRECTIVES[kind(module, name)]}:: {name}"]
            if kind(module, name) == "exceptions":
                lines += ["   :no-members:", "   :show-inheritance:"]
        return self.parse_text_to_nodes("\n".join(lines))


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: nodes.TextElement
) -> nodes.Node | None:
    """The entry of a name that is referred to by the place where it is defined."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if target.startswith(("compiler.", "graph.")):  # modules of cutback.torch, for its developers
        return contents
    if target.partition(".")[0] != OURS:
        return contents if EXTERNAL.match(target) or node.get("reftype") == "class" else None
    objects = env.domains.python_domain.objects
    homes = env.domaindata.get("public_names", {})
    module, _, last = target.rpartition(".")
    for defined, rest in ((target, ""), (module, f".{last}")):
        full = homes.get(defined, "") + rest
        if defined in homes and full in objects:
            entry = objects[full]
            page, label = node["refdoc"], entry.node_id
            return make_refnode(app.builder, page, entry.docname, label, contents, full)
    return contents if INTERNAL.fullmatch(target) else None


def leave_builtins(app: Sphinx, document: nodes.document) -> None:
    """``bytes`` in a signature is the type, not some attribute of that name."""
    for node in list(document.findall(pending_xref)):
        if node.get("reftype") in ("class", "obj") and hasattr(builtins, node["reftarget"]):
            node.replace_self(nodes.Text(node["reftarget"]))


def mark_code(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """An indented block between paragraphs of a docstring is code or a formula."""
    at = 1
    while at < len(lines):
        before = next((line for line in reversed(lines[:at]) if line.strip()), "")
        begins = lines[at].startswith("    ") and not lines[at - 1].strip()
        if begins and before[:1].strip() and not before.startswith(("- ", "..", ">>>")):
            lines[at:at] = ["::", ""]
            at += 2
        at += 1


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("public", Public)
    app.connect("missing-reference", resolve)
    app.connect("doctree-read", leave_builtins)
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    return {"parallel_read_safe": False}
