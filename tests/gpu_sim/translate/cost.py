"""Estimates how many machine instructions of sm_90 an instruction of PTX becomes, in halves. An
instruction that only names a register again costs nothing, two exclusive ors are one instruction,
64-bit integers cost two or more, and divisions cost their usual path."""

from __future__ import annotations

JUMPS = {"bra", "brx", "ret", "exit", "call"}
_FREE = ("mov.", "ld.param", "st.param", "cvta.", "cvt.u64.u32", "cvt.u32.u64", "cvt.s64.s32")
_SLOW = {
    "div.rn.f32": 11, "sqrt.rn.f32": 9, "rcp.rn.f32": 8, "div.full.f32": 3,
    "mul.lo.s64": 4, "mul.lo.u64": 4, "mad.lo.s64": 4, "mul.hi.u64": 8,
    "div.u64": 70, "div.s64": 75, "rem.u64": 75, "rem.s64": 80,
    "div.u32": 16, "div.s32": 18, "rem.u32": 18, "rem.s32": 20,
    "div.rn.f64": 20, "sqrt.rn.f64": 20,
}  # fmt: skip


def cost_of(opcode: str) -> int:
    """Returns the half instructions that a thread issues for an opcode."""
    if opcode.startswith(_FREE):
        return 0
    if opcode in _SLOW:
        return 2 * _SLOW[opcode]
    kind, _, types = opcode.partition(".")
    if opcode == "xor.b32":
        return 1
    is_long = types.endswith(("s64", "u64", "b64"))
    is_two = is_long and kind in ("add", "sub", "and", "or", "xor", "shl", "shr", "neg", "setp")
    return 4 if is_two else 2
