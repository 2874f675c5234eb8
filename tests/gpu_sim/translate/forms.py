"""The table of arithmetic has one entry for each opcode form, such as "fma.rn.ftz.f32", with the
types of its operands and the C expression of its result. Instructions that touch memory, other
threads or the flow of control are in `emit`.

Rows are written with alternatives in brackets, "add[|.rn][|.ftz].f32", and expanded here. In an
expression $a, $b, $c, $d are the sources, read as the types that the row names.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

C_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{"f16": "uint16_t", "bf16": "uint16_t", "f16x2": "uint32_t", "bf16x2": "uint32_t"},
    **{"f32": "float", "f64": "double", "pred": "bool"},
}


@dataclass(frozen=True)
class Form:
    """The operands and the result of one opcode. `expression` is C over $a, $b, ..., and has the
    type of the result."""

    opcode: str
    result: str
    sources: tuple[str, ...]
    expression: str


FORMS: dict[str, Form] = {}


def _expand(pattern: str) -> list[tuple[str, list[str]]]:
    """Returns each way to choose among the alternatives, and what was chosen."""
    parts = re.split(r"\[([^\]]*)\]", pattern)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return [("".join(way), list(way[1::2])) for way in itertools.product(*choices)]


def _add(opcode: str, operands: str, expression: str) -> None:
    result, *sources = operands.split()
    FORMS[opcode] = Form(opcode, result, tuple(sources), expression)


def _wrapped(expression: str, modifiers: list[str]) -> str:
    """Returns the expression of an f32 result under .ftz and .sat. Its sources are flushed, too."""
    if ".ftz" in modifiers:
        expression = re.sub(r"\$[a-d]", lambda source: f"sim_flush({source[0]})", expression)
        expression = f"sim_flush({expression})"
    return f"sim_saturate({expression})" if ".sat" in modifiers else expression


_ROUNDING = {".rz": "FE_TOWARDZERO", ".rm": "FE_DOWNWARD", ".rp": "FE_UPWARD"}
_INTEGERS = [f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64)]
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _unsigned(type_: str) -> str:
    return f"u{type_[1:]}"


def _integers() -> None:
    for type_ in _INTEGERS:
        bits, is_signed, raw = int(type_[1:]), type_[0] == "s", _unsigned(type_)
        c_type = C_TYPES[type_]
        for name, sign in (("add", "+"), ("sub", "-")):
            _add(f"{name}.{type_}", f"{raw} {raw} {raw}", f"$a {sign} $b")
        _add(f"mul.lo.{type_}", f"{raw} {raw} {raw}", "(uint64_t)$a * $b")
        _add(f"mad.lo.{type_}", f"{raw} {raw} {raw} {raw}", "(uint64_t)$a * $b + $c")
        wide = "__int128" if is_signed else "unsigned __int128"
        high = f"({C_TYPES[raw]})(({wide})$a * $b >> {bits})"
        _add(f"mul.hi.{type_}", f"{raw} {type_} {type_}", high)
        _add(f"mad.hi.{type_}", f"{raw} {type_} {type_} {raw}", f"{high} + $c")
        if type_ in _WIDER:
            twice = _WIDER[type_]
            product = f"({C_TYPES[twice]})$a * $b"
            _add(f"mul.wide.{type_}", f"{twice} {type_} {type_}", product)
            _add(
                f"mad.wide.{type_}",
                f"{_unsigned(twice)} {type_} {type_} {_unsigned(twice)}",
                f"({C_TYPES[_unsigned(twice)]})({product}) + $c",
            )
        zero, back = "($b ? $b : 1)", f"({c_type})(0 - ({C_TYPES[raw]})$a)"
        divide = f"($b == -1 ? {back} : $a / {zero})" if is_signed else f"$a / {zero}"
        remain = f"($b == -1 ? 0 : $a % {zero})" if is_signed else f"$a % {zero}"
        _add(f"div.{type_}", f"{type_} {type_} {type_}", divide)
        _add(f"rem.{type_}", f"{type_} {type_} {type_}", remain)
        _add(f"min.{type_}", f"{type_} {type_} {type_}", "$a < $b ? $a : $b")
        _add(f"max.{type_}", f"{type_} {type_} {type_}", "$a > $b ? $a : $b")
        fill = f"({c_type})($a >> {bits - 1})" if is_signed else "0"
        _add(f"shr.{type_}", f"{type_} {type_} u32", f"$b >= {bits} ? {fill} : $a >> $b")
        if is_signed:
            minus = f"({C_TYPES[raw]})(0 - ({C_TYPES[raw]})$a)"
            _add(f"neg.{type_}", f"{raw} {type_}", minus)
            _add(f"abs.{type_}", f"{raw} {type_}", f"$a < 0 ? {minus} : ({C_TYPES[raw]})$a")
    for name, sign in (("add", "+"), ("sub", "-")):
        _add(f"{name}.sat.s32", "s32 s32 s32", f"sim_clamp32((int64_t)$a {sign} $b)")


def _carries() -> None:
    """Adds sums that leave a carry in `carry`, a variable of each function, and sums that read
    it."""
    for type_ in ("u32", "s32", "u64", "s64"):
        bits, is_signed, raw = int(type_[1:]), type_[0] == "s", _unsigned(type_)
        wide = "__int128" if is_signed else "unsigned __int128"
        high = f"({C_TYPES[raw]})(({wide})($a) * ($b) >> {bits})"
        parts = {
            "lo": (f"({C_TYPES[raw]})(($a) * ($b))", f"{raw} {raw} {raw} {raw}"),
            "hi": (high, f"{raw} {type_} {type_} {raw}"),
        }
        for taken, given in itertools.product(("", "c"), ("", ".cc")):
            if not taken and not given:
                continue
            carry = "carry" if taken else "0"
            for name, sign in (("add", "+"), ("sub", "-")):
                total = f"(unsigned __int128)$a {sign} $b {sign} {carry}"
                keep = f"carry = (w >> {bits}) != 0; " if given else ""
                two = f"({{ unsigned __int128 w = {total}; {keep}({C_TYPES[raw]})w; }})"
                _add(f"{name}{taken}{given}.{type_}", f"{raw} {raw} {raw}", two)
            for half, (product, operands) in parts.items():
                keep = f"carry = (w >> {bits}) != 0; " if given else ""
                total = f"(unsigned __int128){product} + $c + {carry}"
                three = f"({{ unsigned __int128 w = {total}; {keep}({C_TYPES[raw]})w; }})"
                _add(f"mad{taken}.{half}{given}.{type_}", operands, three)


def _bits() -> None:
    for bits in (16, 32, 64):
        type_ = f"b{bits}"
        for name, sign in (("and", "&"), ("or", "|"), ("xor", "^")):
            _add(f"{name}.{type_}", f"{type_} {type_} {type_}", f"$a {sign} $b")
        _add(f"not.{type_}", f"{type_} {type_}", "~$a")
        _add(f"shl.{type_}", f"{type_} {type_} u32", f"$b >= {bits} ? 0 : (uint64_t)$a << $b")
        _add(f"shr.{type_}", f"{type_} {type_} u32", f"$b >= {bits} ? 0 : $a >> $b")
    for name, sign in (("and", "&"), ("or", "|"), ("xor", "^")):
        _add(f"{name}.pred", "pred pred pred", f"$a {sign} $b")
    _add("not.pred", "pred pred", "!$a")
    for bits in (32, 64):
        _add(f"popc.b{bits}", f"u32 u{bits}", "(uint32_t)__builtin_popcountll($a)")
        _add(f"clz.b{bits}", f"u32 u{bits}", f"sim_count_zeros($a, {bits})")
        _add(f"brev.b{bits}", f"u{bits} u{bits}", f"sim_reverse($a, {bits})")
        insert = f"sim_insert($a, $b, $c, $d, {bits})"
        _add(f"bfi.b{bits}", f"u{bits} u{bits} u{bits} u32 u32", insert)
        for kind in "us":
            signed = int(kind == "s")
            extract = f"sim_extract($a, $b, $c, {bits}, {signed})"
            _add(f"bfe.{kind}{bits}", f"u{bits} u{bits} u32 u32", extract)
            for shift, amount in (("", 0), (".shiftamt", 1)):
                find = f"sim_find($a, {bits}, {signed}, {amount})"
                _add(f"bfind{shift}.{kind}{bits}", f"u32 u{bits}", find)
    for side, mode in itertools.product("lr", ("wrap", "clamp")):
        funnel = f"sim_funnel($a, $b, $c, {int(side == 'l')}, {int(mode == 'clamp')})"
        _add(f"shf.{side}.{mode}.b32", "u32 u32 u32 u32", funnel)
    _add("lop3.b32", "u32 u32 u32 u32 u32", "sim_lookup($a, $b, $c, $d)")
    _add("prmt.b32", "u32 u32 u32 u32", "sim_permute($a, $b, $c)")
    for first, second in itertools.product("us", "us"):
        dot = f"sim_dot($a, $b, $c, {int(first == 's')}, {int(second == 's')})"
        _add(f"dp4a.{first}32.{second}32", "u32 u32 u32 u32", dot)
        for half, at in (("lo", 0), ("hi", 16)):
            pair = f"sim_dot_pair($a, $b >> {at}, $c, {int(first == 's')}, {int(second == 's')})"
            _add(f"dp2a.{half}.{first}32.{second}32", "u32 u32 u32 u32", pair)
    for type_ in ("b16", "b32", "b64", *_INTEGERS, "f32", "f64"):
        raw = f"b{type_[1:]}"
        _add(f"selp.{type_}", f"{raw} {raw} {raw} pred", "$c ? $a : $b")


def _floats() -> None:
    for type_, suffix in (("f32", "f"), ("f64", "")):
        two, three = f"{type_} {type_} {type_}", f"{type_} {type_} {type_} {type_}"
        flush, sat = ("[|.ftz]", "[|.sat]") if type_ == "f32" else ("", "")
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
            for opcode, chosen in _expand(f"{name}[|.rn|.rz|.rm|.rp]{flush}{sat}.{type_}"):
                _add(opcode, two, _wrapped(_rounded(f"$a {sign} $b", type_, chosen), chosen))
        for opcode, chosen in _expand(f"fma[.rn|.rz|.rm|.rp]{flush}{sat}.{type_}"):
            fused = _rounded(f"__builtin_fma{suffix}($a, $b, $c)", type_, chosen)
            _add(opcode, three, _wrapped(fused, chosen))
        for name, operands, expression in (
            ("div", two, "$a / $b"),
            ("rcp", f"{type_} {type_}", "1 / $a"),
            ("sqrt", f"{type_} {type_}", f"__builtin_sqrt{suffix}($a)"),
        ):
            for opcode, chosen in _expand(f"{name}[.rn|.rz|.rm|.rp]{flush}.{type_}"):
                _add(opcode, operands, _wrapped(_rounded(expression, type_, chosen), chosen))
        for opcode, chosen in _expand(f"neg{flush}.{type_}"):
            _add(opcode, f"{type_} {type_}", _wrapped("-$a", chosen))
        for opcode, chosen in _expand(f"abs{flush}.{type_}"):
            _add(opcode, f"{type_} {type_}", _wrapped(f"__builtin_fabs{suffix}($a)", chosen))
        for name in ("min", "max"):
            nans = "[|.NaN]" if type_ == "f32" else ""
            for opcode, chosen in _expand(f"{name}{flush}{nans}.{type_}"):
                keeps = int(".NaN" in chosen)
                _add(opcode, two, _wrapped(f"sim_{name}_{type_}($a, $b, {keeps})", chosen))
        bits = f"u{type_[1:]}"
        _add(f"copysign.{type_}", f"{bits} {bits} {bits}", f"sim_copy_sign{type_[1:]}($a, $b)")


def _rounded(expression: str, type_: str, chosen: list[str], source: str = "") -> str:
    """Returns the expression under a rounding mode, if one was chosen. ``source`` is the type of
    the operands if it is not the result's."""
    mode = next((_ROUNDING[name] for name in chosen if name in _ROUNDING), None)
    if mode is None:
        return expression
    # the operands go through volatile variables; otherwise the compiler moves the operation out
    names = sorted(set(re.findall(r"\$[a-d]", expression)))
    held = "".join(f"volatile {C_TYPES[source or type_]} {name[1:]}_ = {name}; " for name in names)
    inner = re.sub(r"\$([a-d])", r"\1_", expression)
    return f"({{ {held}SIM_ROUNDED({mode}, {C_TYPES[type_]}, {inner}); }})"


# For each approximate operation, its value in double, and the largest relative error according to
# NVIDIA's table of PTX instructions. `sim_approximate` gives the rounded value or, if asked to, a
# value that is off by up to that error.
APPROXIMATIONS = {
    "rcp": ("1 / (double)$a", 2**-23),
    "sqrt": ("sqrt($a)", 2**-23),
    "rsqrt": ("1 / sqrt($a)", 2**-22.9),
    "ex2": ("exp2($a)", 2**-22.5),
    "lg2": ("log2($a)", 2**-22),
    "sin": ("sin($a)", 2**-20.5),
    "cos": ("cos($a)", 2**-20.5),
}


def _approximations() -> None:
    for name, (value, bound) in APPROXIMATIONS.items():
        for opcode, chosen in _expand(f"{name}.approx[|.ftz].f32"):
            moved = f"sim_approximate(t, {value}, {bound!r})"
            _add(opcode, "f32 f32", _wrapped(moved, chosen))
    _add("tanh.approx.f32", "f32 f32", f"sim_approximate(t, tanh($a), {2**-11!r})")
    for opcode, chosen in _expand("div[.approx|.full][|.ftz].f32"):
        quotient = f"sim_approximate(t, (double)$a / $b, {2**-22!r})"
        _add(opcode, "f32 f32 f32", _wrapped(quotient, chosen))
    for name in ("rcp", "rsqrt"):
        value = {"rcp": "1 / $a", "rsqrt": "1 / sqrt($a)"}[name]
        for opcode in (f"{name}.approx.ftz.f64", f"{name}.approx.f64"):
            if opcode != "rcp.approx.f64":
                _add(opcode, "f64 f64", f"sim_upper_half({value})")


def _halves() -> None:
    """Adds f16 and bf16, which are bits in registers. They are computed in double, which is exact
    or rounded to odd before the only rounding to the type; pairs work on each half."""
    for type_ in ("f16", "bf16"):
        wide, narrow = f"sim_from_{type_}", f"sim_to_{type_}"
        rows = {
            "neg": ("$a ^ 0x8000", 1),
            "abs": ("$a & 0x7fff", 1),
            **{
                f"{name}{rounding}": (f"{narrow}({value})", count)
                for name, value, count in (
                    ("add", f"sim_sum({wide}($a), {wide}($b))", 2),
                    ("sub", f"sim_sum({wide}($a), -{wide}($b))", 2),
                    ("mul", f"{wide}($a) * {wide}($b)", 2),
                    ("fma", f"sim_sum({wide}($a) * {wide}($b), {wide}($c))", 3),
                )
                for rounding in ("", ".rn")
                if name != "fma" or rounding
            },
            **{
                f"{name}{nan}": (
                    f"{narrow}(sim_{name}_f64({wide}($a), {wide}($b), {int(bool(nan))}))",
                    2,
                )
                for name in ("min", "max")
                for nan in ("", ".NaN")
            },
            "tanh.approx": (f"{narrow}(tanh({wide}($a)))", 1),
        }
        flush = ".ftz" if type_ == "bf16" else ""
        rows[f"ex2.approx{flush}"] = (f"{narrow}(exp2({wide}($a)))", 1)
        for name, (expression, count) in rows.items():
            _add(f"{name}.{type_}", " ".join([type_] * (count + 1)), expression)
            low, high = (
                re.sub(r"\$[a-d]", rf"((uint16_t)(\g<0> >> {shift}))", expression)
                for shift in (0, 16)
            )
            pair = f"(uint32_t)(uint16_t)({low}) | (uint32_t)(uint16_t)({high}) << 16"
            _add(f"{name}.{type_}x2", " ".join([f"{type_}x2"] * (count + 1)), pair)


_ORDERED = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_NAMES = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def _comparisons() -> None:
    joins = {"": "{}", ".and": "({}) && $c", ".or": "({}) || $c", ".xor": "({}) != $c"}
    for type_ in (*_INTEGERS, "b16", "b32", "b64", "f32", "f64", "f16", "bf16"):
        left, right = "$a", "$b"
        if type_ in ("f16", "bf16"):
            left, right = f"sim_from_{type_}($a)", f"sim_from_{type_}($b)"
        is_float = "f" in type_
        tests = {name: f"{left} {sign} {right}" for name, sign in _ORDERED.items()}
        if is_float:
            unordered = f"__builtin_isunordered({left}, {right})"
            tests |= {f"{name}u": f"{unordered} || {test}" for name, test in tests.items()}
            tests["ne"] = f"({left} < {right} || {left} > {right})"
            tests["neu"] = f"{left} != {right}"
            tests["nan"] = unordered
            tests["num"] = f"!{unordered}"
        else:
            tests["ne"] = f"{left} != {right}"
        if type_[0] == "u":
            tests |= {name: f"{left} {sign} {right}" for name, sign in _UNSIGNED_NAMES.items()}
        if type_[0] == "b" and not is_float:
            tests = {name: tests[name] for name in ("eq", "ne")}
        for (name, test), (join, pattern) in itertools.product(tests.items(), joins.items()):
            operands = f"pred {type_} {type_}" + (" pred" if join else "")
            for flush in ("", ".ftz") if type_ == "f32" else ("",):
                whole = _flushed(test, flush)
                _add(f"setp.{name}{join}{flush}.{type_}", operands, pattern.format(whole))


def _flushed(expression: str, flush: str) -> str:
    if not flush:
        return expression
    return re.sub(r"\$[ab]", lambda source: f"sim_flush({source[0]})", expression)


_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _conversions() -> None:
    every = [f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)]
    for to, source in itertools.product(every, every):
        if to != source:
            _add(f"cvt.{to}.{source}", f"{to} {source}", f"({C_TYPES[to]})$a")
            low, high = ("0", f"UINT{to[1:]}_MAX")
            if to[0] == "s":
                low, high = f"INT{to[1:]}_MIN", f"INT{to[1:]}_MAX"
            clamped = f"({C_TYPES[to]})sim_clamp($a, {low}, {high})"
            _add(f"cvt.sat.{to}.{source}", f"{to} {source}", clamped)
    for integer, real in itertools.product(every, ("f32", "f64", "f16", "bf16")):
        flush = "[|.ftz]" if real == "f32" else ""
        value = f"sim_from_{real}($a)" if real in ("f16", "bf16") else "$a"
        for opcode, chosen in _expand(f"cvt[.rni|.rzi|.rmi|.rpi]{flush}[|.sat].{integer}.{real}"):
            rounded = f"{_TO_INTEGER[chosen[0][1:]]}({value})"
            if ".ftz" in chosen:
                rounded = rounded.replace("$a", "sim_flush($a)")
            _add(opcode, f"{integer} {real}", f"sim_to_{integer}({rounded})")
        if real in ("f32", "f64"):
            for opcode, chosen in _expand(f"cvt[.rn|.rz|.rm|.rp].{real}.{integer}"):
                as_real = _rounded(f"({C_TYPES[real]})$a", real, chosen, integer)
                _add(opcode, f"{real} {integer}", as_real)
        elif integer[1:] != "64":  # in double exactly
            _add(f"cvt.rn.{real}.{integer}", f"{real} {integer}", f"sim_to_{real}($a)")
    _between_floats()


def _between_floats() -> None:
    for opcode, chosen in _expand("cvt[.rn|.rz|.rm|.rp][|.ftz][|.sat].f32.f64"):
        narrowed = _rounded("(float)$a", "f32", chosen, "f64")
        narrowed = _wrapped(narrowed, [name for name in chosen if name == ".sat"])
        _add(opcode, "f32 f64", f"sim_flush({narrowed})" if ".ftz" in chosen else narrowed)
    for opcode, chosen in _expand("cvt[|.ftz].f64.f32"):
        _add(opcode, "f64 f32", "(double)sim_flush($a)" if ".ftz" in chosen else "(double)$a")
    for type_ in ("f16", "bf16"):
        for opcode, chosen in _expand(f"cvt[.rn|.rz].{type_}.f32"):
            toward_zero = "_rz" if chosen[0] == ".rz" else ""
            _add(opcode, f"{type_} f32", f"sim_to_{type_}{toward_zero}($a)")
            high, low = (f"(uint32_t)sim_to_{type_}{toward_zero}({s})" for s in ("$a", "$b"))
            pair = opcode.replace(f"{type_}.", f"{type_}x2.")
            _add(pair, "b32 f32 f32", f"{high} << 16 | {low}")
        flush = "[|.ftz]" if type_ == "f16" else ""
        for opcode, chosen in _expand(f"cvt{flush}.f32.{type_}"):
            wide = f"(float)sim_from_{type_}($a)"
            _add(opcode, f"f32 {type_}", f"sim_flush({wide})" if ".ftz" in chosen else wide)
    _add("cvt.rn.f16.f64", "f16 f64", "sim_to_f16($a)")
    _add("cvt.f64.f16", "f64 f16", "sim_from_f16($a)")
    for type_, suffix in (("f32", "f"), ("f64", "")):
        flush = "[|.ftz]" if type_ == "f32" else ""
        for opcode, chosen in _expand(f"cvt[.rni|.rzi|.rmi|.rpi]{flush}[|.sat].{type_}.{type_}"):
            if type_ == "f64" and ".sat" in chosen:
                continue
            whole = f"{_TO_INTEGER[chosen[0][1:]]}{suffix}($a)"
            _add(opcode, f"{type_} {type_}", _wrapped(whole, chosen))
    for opcode, chosen in _expand("cvt[|.ftz].sat.f32.f32"):
        _add(opcode, "f32 f32", _wrapped("$a", [*chosen, ".sat"]))


for _part in (
    _integers,
    _carries,
    _bits,
    _floats,
    _approximations,
    _halves,
    _comparisons,
    _conversions,
):
    _part()
