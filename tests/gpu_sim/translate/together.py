"""Translates instructions in which threads meet: barriers, fences, warp operations, matrix
products."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .ptx import UnsupportedError, split

if TYPE_CHECKING:
    from .emit import Instruction, Writer


def _unknown(ins: Instruction) -> UnsupportedError:
    return UnsupportedError(f"unknown instruction {ins.opcode}")


def _meet(w: Writer, ins: Instruction) -> None:
    w.needs_fibers = True
    w.forms.add(ins.opcode)


def _barrier(w: Writer, ins: Instruction) -> str:
    """Translates bar and barrier, of a block or of a warp."""
    _meet(w, ins)
    parts = [part for part in ins.parts[1:] if part not in ("cta", "aligned")]
    operands = list(ins.operands)
    if parts == ["warp", "sync"]:
        mask = w.value(operands[0], "u32")
        return f"t->hooks->warp(t, {ins.site}, SIM_SYNC, {mask}, 0, 0, 0, &(bool){{0}});"
    if parts in (["sync"], ["arrive"]):
        threads = w.value(operands[1], "u32") if len(operands) > 1 else "0"
        kind = f"SIM_BARRIER_{parts[0].upper()}"
        number = w.value(operands[0], "u32")
        return f"t->hooks->barrier(t, {ins.site}, {number}, {threads}, {kind}, 0);"
    if parts in (["red", "popc", "u32"], ["red", "and", "pred"], ["red", "or", "pred"]):
        threads = w.value(operands[2], "u32") if len(operands) > 3 else "0"
        kind = f"SIM_BARRIER_{parts[1].upper()}"
        predicate = w.value(operands[-1], "pred")
        number = w.value(operands[1], "u32")
        call = f"t->hooks->barrier(t, {ins.site}, {number}, {threads}, {kind}, {predicate})"
        return w.assign(operands[0], parts[2], call)
    raise _unknown(ins)


def _warp(w: Writer, ins: Instruction, operation: str, operands: list[str], type_: str) -> str:
    """Returns a call of the warp hook. Its operands are result[|predicate], value, b, c, mask."""
    _meet(w, ins)
    target, value, b, c, mask = operands
    to, _, predicate = target.partition("|")
    arguments = ", ".join(w.value(text, "u32") for text in (mask, value, b, c))
    call = f"t->hooks->warp(t, {ins.site}, SIM_{operation}, {arguments}, &p_)"
    second = w.assign(predicate, "pred", "p_") if predicate else ""
    return f"{{ bool p_ = false; uint32_t v_ = {call}; {w.assign(to, type_, 'v_')} {second} }}"


def _shuffle(w: Writer, ins: Instruction) -> str:
    if not re.fullmatch(r"shfl\.sync\.(up|down|bfly|idx)\.b32", ins.opcode):
        raise _unknown(ins)
    return _warp(w, ins, f"SHUFFLE_{ins.parts[2].upper()}", list(ins.operands), "b32")


def _vote(w: Writer, ins: Instruction) -> str:
    if not re.fullmatch(r"vote\.sync\.((all|any|uni)\.pred|ballot\.b32)", ins.opcode):
        raise _unknown(ins)
    _meet(w, ins)
    target, predicate, mask = ins.operands
    asked = f"{w.value(mask, 'u32')}, {w.value(predicate, 'pred')}, 0, 0, &(bool){{0}}"
    call = f"t->hooks->warp(t, {ins.site}, SIM_VOTE_{ins.parts[2].upper()}, {asked})"
    return w.assign(target, ins.parts[3], call)


def _reduce(w: Writer, ins: Instruction) -> str:
    if not re.fullmatch(r"redux\.sync\.((add|min|max)\.[us]32|(and|or|xor)\.b32)", ins.opcode):
        raise _unknown(ins)
    sign = "_SIGNED" if re.search(r"(min|max)\.s32", ins.opcode) else ""
    target, value, mask = ins.operands
    operation = f"REDUCE_{ins.parts[2].upper()}{sign}"
    return _warp(w, ins, operation, [target, value, "0", "0", mask], "b32")


def _match(w: Writer, ins: Instruction) -> str:
    if not re.fullmatch(r"match\.(any|all)\.sync\.b32", ins.opcode):
        raise _unknown(ins)
    target, value, mask = ins.operands
    return _warp(w, ins, f"MATCH_{ins.parts[1].upper()}", [target, value, "0", "0", mask], "b32")


def _active(w: Writer, ins: Instruction) -> str:
    """Returns the active lanes. Any set that contains the caller is allowed; the caller on its own
    is the hardest case."""
    w.forms.add(ins.opcode)
    return w.assign(ins.operands[0], "b32", "1u << t->lane")


def _fence(w: Writer, ins: Instruction) -> str:
    if not re.fullmatch(r"membar\.(cta|gl|sys)|fence(\.sc|\.acq_rel)?\.(cta|gpu|sys)", ins.opcode):
        raise _unknown(ins)
    w.forms.add(ins.opcode)
    return ";" if ins.parts[-1] == "cta" else f"t->hooks->fence(t, {ins.site});"


_MATRIX = re.compile(
    r"mma\.sync\.aligned\.m16n8k(?P<k>\d+)\.row\.col\.f32\.(?P<type>f16|bf16|tf32)\.(?P=type)\.f32"
)
_INNER = {"f16": ("8", "16"), "bf16": ("8", "16"), "tf32": ("4", "8")}


def _matrix(w: Writer, ins: Instruction) -> str:
    """Translates mma. Each lane holds its part of A (16 x k), B (k x 8), C and D (16 x 8) in
    registers."""
    found = _MATRIX.fullmatch(ins.opcode)
    if not found or found["k"] not in _INNER[found["type"]]:
        raise _unknown(ins)
    _meet(w, ins)
    d, a, b, c = (split(text.strip("{}")) for text in ins.operands)
    held = "; ".join(
        f"uint32_t {name}_[] = {{{', '.join(w.value(register, 'b32') for register in registers)}}}"
        for name, registers in (("a", a), ("b", b), ("d", c))
    )
    shape = f"SIM_{found['type'].upper()}, {found['k']}, a_, b_, d_"
    out = " ".join(w.assign(register, "b32", f"d_[{i}]") for i, register in enumerate(d))
    return f"{{ {held}; t->hooks->multiply(t, {ins.site}, &(sim_product){{{shape}}}); {out} }}"


def _load_matrix(w: Writer, ins: Instruction) -> str:
    """Translates ldmatrix: one, two or four 8 x 8 matrices of 16-bit numbers, with a row at each
    lane's address."""
    form = r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(::cta)?\.b16"
    found = re.fullmatch(form, ins.opcode)
    if not found:
        raise _unknown(ins)
    _meet(w, ins)
    registers = split(ins.operands[0].strip("{}"))
    asked = f"{w.address(ins.operands[1], 'shared')}, {found[1]}, {int(bool(found[2]))}, m_"
    out = " ".join(w.assign(register, "b32", f"m_[{i}]") for i, register in enumerate(registers))
    return f"{{ uint32_t m_[4]; t->hooks->load_matrix(t, {ins.site}, {asked}); {out} }}"


HANDLERS: dict[str, Callable[[Writer, Instruction], str]] = {
    "bar": _barrier,
    "barrier": _barrier,
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _reduce,
    "match": _match,
    "activemask": _active,
    "membar": _fence,
    "fence": _fence,
    "mma": _matrix,
    "ldmatrix": _load_matrix,
}
