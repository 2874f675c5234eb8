"""Writes a module as one C file: its functions, and the tables by which the driver finds kernels
and global variables."""

from __future__ import annotations

import re

from .emit import Layout, Writer
from .ptx import BITS, Function, Module, UnsupportedError, Variable, parse, split, variable


def _mentions(function: Function, name: str) -> bool:
    word = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    return any(word.search(statement.text) for statement in function.body)


def _declared(function: Function) -> list[Variable]:
    return [
        variable(statement.text)
        for statement in function.body
        if statement.text.startswith((".shared", ".local"))
    ]


def _layout(module: Module, function: Function, callees: list[Function]) -> Layout:
    """Places the variables of the functions that kernels call first, at the same offsets for all
    kernels, so that one C function serves every kernel. Without recursion they need no stack."""
    layout = Layout()
    shared = [v for v in module.variables.values() if v.space == "shared"]
    for callee in callees:
        for what in _declared(callee):
            layout.place(what)
    for what in shared:
        if not what.is_extern and any(_mentions(callee, what.name) for callee in callees):
            layout.place(what)
    if function.is_entry:
        for what in shared:
            is_placed = what.name in layout.shared
            if not what.is_extern and not is_placed and _mentions(function, what.name):
                layout.place(what)
        for what in _declared(function):
            layout.place(what)
        for what in shared:
            if what.is_extern and _mentions(function, what.name):
                layout.place(what)
                layout.has_dynamic = True
    return layout


def _numbers(what: Variable) -> tuple[bytes, list[tuple[int, str, int]]]:
    """Returns the bytes that a variable starts with, and the positions of addresses of other
    variables."""
    data, addresses = b"", []
    size = BITS[what.type] // 8
    for text in split((what.values or "").strip("{} ")):
        name = re.fullmatch(r"(?:generic\()?([A-Za-z_$][\w$]*)\)?(?:\s*\+\s*(\d+))?", text)
        number = 0
        if name:
            addresses.append((len(data), name[1], int(name[2] or 0)))
        elif re.match(r"0[fFdD]", text):
            number = int(text[2:], 16)
        else:
            number = int(text.rstrip("U"), 0) & (1 << 8 * size) - 1
        data += number.to_bytes(size, "little")
    return data.ljust(what.bytes, b"\0"), addresses


def _global_table(module: Module) -> list[str]:
    lines, rows = [], []
    names = list(module.variables)
    for i, what in enumerate(module.variables.values()):
        if what.space == "shared":
            rows.append(f'{{"{what.name}", 0}},')
            continue
        data, addresses = _numbers(what)
        for _, name, _ in addresses:
            if name not in module.variables:
                raise UnsupportedError(f"the address of {name} in {what.name}")
        if any(data):
            lines.append(f"static const uint8_t data_{i}[] = {{{', '.join(map(str, data))}}};")
        places = "".join(f"{{{at}, {names.index(name)}, {add}}}, " for at, name, add in addresses)
        lines.append(f"static const sim_pointer pointers_{i}[] = {{{places}{{-1}}}};")
        rows.append(
            f'{{"{what.name}", {what.bytes}, {int(what.space == "const")}, '
            f"{f'data_{i}' if any(data) else 0}, pointers_{i}}},"
        )
    return [*lines, "const sim_global sim_globals[] = {", *rows, "{0}};"]


def _prepare(writer: Writer) -> tuple[list[int], list[int], int]:
    """Places each parameter: returns offsets, sizes and the bytes of all of them."""
    offsets, sizes, end = [], [], 0
    for i, param in enumerate(writer.function.params):
        if writer.function.is_entry:
            end = -(-end // param.align) * param.align
            writer.params[param.name] = end
            offsets.append(end)
            sizes.append(param.bytes)
            end += param.bytes
        else:
            writer.buffers[param.name] = f"arguments[{i}]"
    if writer.function.result:
        writer.buffers[writer.function.result.name] = "result"
    return offsets, sizes, end


def translate(text: str) -> tuple[str, set[str]]:
    """Returns the C file, and the instruction forms in the text. UnsupportedError names unknown
    text."""
    module = parse(text)
    callees = [function for function in module.functions if not function.is_entry]
    heads, bodies, rows, tables, forms = [], [], [], [], set()
    writers = [Writer(module, f, _layout(module, f, callees)) for f in module.functions]
    places = [_prepare(writer) for writer in writers]
    for writer in writers:
        writer.write()
        forms |= writer.forms
    callees_meet = any(w.needs_fibers for w in writers if not w.function.is_entry)
    for writer, (offsets, sizes, end) in zip(writers, places, strict=True):
        name, layout = writer.function.name, writer.layout
        head = f"static void f_{name}(sim_thread *t, char **arguments, char *result)"
        if writer.function.is_entry:
            head = f"static void k_{name}(sim_thread *t)"
            for kind, numbers in (("offsets", offsets), ("sizes", sizes)):
                listed = "".join(f"{number}, " for number in numbers)
                tables.append(f"static const uint32_t {kind}_{name}[] = {{{listed}0}};")
            meets = int(writer.needs_fibers or callees_meet)
            rows.append(
                f'{{"{name}", k_{name}, {meets}, {layout.shared_bytes}, {layout.local_bytes}, '
                f"{len(offsets)}, {end}, {writer.function.max_threads}, offsets_{name}, "
                f"sizes_{name}}},"
            )
        else:
            heads.append(f"{head};")
        carry = "unsigned carry = 0; (void)carry;"
        bodies.append("\n".join([f"{head} {{", carry, *writer.lines, ";}"]))
    rows = ["const sim_kernel sim_kernels[] = {", *rows, "{0}};"]
    lines = ['#include "sim_math.h"', *heads, *bodies, *tables, *rows, *_global_table(module)]
    return "\n".join([*lines, f"const int sim_target = {module.target};", ""]), forms
