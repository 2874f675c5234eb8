"""Instructions that touch memory: loads, stores, atomics, copies into shared memory, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .forms import C_TYPES
from .ptx import BITS, UnsupportedError, split

if TYPE_CHECKING:
    from .emit import Instruction, Writer

_SPACES = ("global", "shared", "local", "param", "const")
_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel"}
_SCOPES = {"cta", "cluster", "gpu", "sys"}
_HINTS = {"weak", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}


def _space(ins: Instruction) -> str:
    """Returns the space that an opcode names, or "generic" if it names no space."""
    names = (part.split("::")[0] for part in ins.parts)
    return next((name for name in names if name in _SPACES), "generic")


def _check_modifiers(ins: Instruction, known: set[str]) -> None:
    for part in ins.parts[1:-1]:
        if part.split("::")[0] not in (*_SPACES, "L1", "L2") and part not in known:
            raise UnsupportedError(f"unknown instruction {ins.opcode}")
        if part == "L2::cache_hint":
            raise UnsupportedError(f"unknown instruction {ins.opcode}")


def _access(w: Writer, ins: Instruction) -> str:
    """Translates ld, ldu and st of one to eight registers."""
    _check_modifiers(ins, _STRONG | _SCOPES | _HINTS | {"v2", "v4", "v8"})
    is_store, space, type_ = ins.parts[0] == "st", _space(ins), ins.parts[-1]
    place, listed = ins.operands if is_store else ins.operands[::-1]
    registers = split(listed.strip("{}"))
    bits = BITS[type_]
    width = bits // 8 * len(registers)
    vector = f".v{len(registers)}" if len(registers) > 1 else ""
    w.forms.add(f"{ins.parts[0]}.{space}{vector}.b{bits}")
    is_strong = any(part in _STRONG for part in ins.parts)
    flags = ("SIM_WRITE" if is_store else "SIM_READ") + (" | SIM_STRONG" if is_strong else "")
    direct = w.buffer(place) if space == "param" else None
    if direct:
        begin = f"char *m_ = {direct};"
    else:
        check = f"sim_check(t, {ins.site}, a_, {width}, {flags});"
        begin = f"uint64_t a_ = {w.address(place, space)}; {check} char *m_ = sim_host(a_);"
    plain = type_ if type_[0] in "us" else f"b{bits}"  # loads of s8 extend the sign
    if is_store:
        fence = f"t->hooks->fence(t, {ins.site}); " if "release" in ins.parts else ""
        moves = (
            f"sim_store{bits}(m_ + {i * bits // 8}, {w.value(register, plain)});"
            for i, register in enumerate(registers)
        )
        return f"{{ {fence}{begin} {' '.join(moves)} }}"
    burn = f" sim_burn(t, {ins.site});" if is_strong else ""
    loaded = (
        w.assign(register, plain, f"sim_load{bits}(m_ + {i * bits // 8})")
        for i, register in enumerate(registers)
    )
    return f"{{ {begin} {' '.join(loaded)}{burn} }}"


_UPDATES = {
    "add": "o_ + $b",
    "and": "o_ & $b",
    "or": "o_ | $b",
    "xor": "o_ ^ $b",
    "exch": "$b",
    "min": "o_ < $b ? o_ : $b",
    "max": "o_ > $b ? o_ : $b",
    "inc": "o_ >= $b ? 0 : o_ + 1",
    "dec": "o_ == 0 || o_ > $b ? $b : o_ - 1",
    "cas": "o_ == $b ? $c : o_",
}


def _half_sum(type_: str) -> str:
    one = "sim_to_{0}(sim_sum(sim_from_{0}({1}), sim_from_{0}({2})))"
    if not type_.endswith("x2"):
        return one.format(type_, "o_", "$b")
    low = one.format(type_[:-2], "(uint16_t)o_", "(uint16_t)$b")
    high = one.format(type_[:-2], "(uint16_t)(o_ >> 16)", "(uint16_t)($b >> 16)")
    return f"(uint32_t){low} | (uint32_t){high} << 16"


def _atomic(w: Writer, ins: Instruction) -> str:
    """Translates atom and red: a read and a write that other threads see as one."""
    _check_modifiers(ins, _STRONG | _SCOPES | {"noftz"} | _UPDATES.keys())
    update = next((part for part in ins.parts if part in _UPDATES), None)
    type_, space = ins.parts[-1], _space(ins)
    if update is None or type_ not in BITS:
        raise UnsupportedError(f"unknown instruction {ins.opcode}")
    w.forms.add(f"atom.{space}.{update}.{type_}")
    operands = list(ins.operands) if ins.parts[0] == "atom" else ["_", *ins.operands]
    bits, c_type = BITS[type_], C_TYPES[type_]
    is_half = type_ in ("f16", "bf16", "f16x2", "bf16x2")
    result = _half_sum(type_) if is_half else _UPDATES[update]
    result = result.replace("$b", "b_").replace("$c", "c_")
    sources = "".join(
        f"{c_type} {letter}_ = {w.value(text, type_)}; "
        for letter, text in zip("bc", operands[2:], strict=False)
    )
    old, new = f"({c_type})sim_load{bits}(m_)", "n_"
    if type_ in ("f32", "f64"):
        old, new = f"sim_{type_}(sim_load{bits}(m_))", f"sim_bits{bits}(n_)"
    fence = f"t->hooks->fence(t, {ins.site}); " if {"release", "acq_rel"} & set(ins.parts) else ""
    flags = "SIM_READ | SIM_WRITE | SIM_STRONG"
    return (
        f"{{ {sources}{fence}uint64_t a_ = {w.address(operands[1], space)}; "
        f"sim_check(t, {ins.site}, a_, {bits // 8}, {flags}); char *m_ = sim_host(a_); "
        f"{c_type} o_ = {old}; {c_type} n_ = ({c_type})({result}); sim_store{bits}(m_, {new}); "
        f"{w.assign(operands[0], type_, 'o_')} sim_burn(t, {ins.site}); }}"
    )


def _convert_address(w: Writer, ins: Instruction) -> str:
    """Translates cvta, between a space's own addresses and generic ones; only shared memory's
    differ."""
    value = w.value(ins.operands[1], ins.parts[-1])
    if _space(ins) == "shared":
        value = f"{value} {'-' if 'to' in ins.parts else '+'} SIM_SHARED"
    w.forms.add(ins.opcode)
    return w.assign(ins.operands[0], ins.parts[-1], value)


def _copy(w: Writer, ins: Instruction) -> str:
    """Translates cp.async: bytes arrive in shared memory when they are waited for."""
    w.forms.add(re.sub(r"\.L2::\d+B", "", ins.opcode))
    if ins.opcode == "cp.async.commit_group":
        return "t->copy_group++;"
    if ins.opcode in ("cp.async.wait_group", "cp.async.wait_all"):
        keep = f"(int)({w.raw(ins.operands[0])})" if ins.operands else "-1"
        return f"t->hooks->copy_wait(t, {ins.site}, {keep});"
    if not re.fullmatch(r"cp\.async\.c[ag]\.shared(::cta)?\.global(\.L2::\d+B)?", ins.opcode):
        raise UnsupportedError(f"unknown instruction {ins.opcode}")
    to, source = w.address(ins.operands[0], "shared"), w.address(ins.operands[1], "global")
    size = ins.operands[2]
    given = w.value(ins.operands[3], "u32") if len(ins.operands) > 3 else size
    return f"t->hooks->copy(t, {ins.site}, {to}, {source}, {size}, {given});"


HANDLERS: dict[str, Callable[[Writer, Instruction], str]] = {
    "ld": _access,
    "ldu": _access,
    "st": _access,
    "atom": _atomic,
    "red": _atomic,
    "cvta": _convert_address,
    "cp": _copy,
}
