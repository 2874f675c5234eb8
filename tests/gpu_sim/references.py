"""Computes the result of each arithmetic instruction of PTX with integers and fractions: slow,
exact, and independent of the translator. Registers are raw bits, as integers."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

BITS = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16}


def bits_of(type_: str) -> int:
    return BITS.get(type_) or int(type_[1:])


# Floating point: every number of the four formats is a Python float.


@dataclass(frozen=True)
class Format:
    """Binary digits and the least exponent of a normal number."""

    digits: int
    least: int
    most: int
    nan: int


FORMATS = {
    "f16": Format(11, -14, 15, 0x7FFF),
    "bf16": Format(8, -126, 127, 0x7FFF),
    "f32": Format(24, -126, 127, 0x7FFFFFFF),
    "f64": Format(53, -1022, 1023, 0x7FF8000000000000),
}


def decode(raw: int, type_: str) -> float:
    if type_ == "bf16":
        raw, type_ = raw << 16, "f32"
    code, width = {"f16": ("e", 2), "f32": ("f", 4), "f64": ("d", 8)}[type_]
    return float(struct.unpack(f"<{code}", raw.to_bytes(width, "little"))[0])


def encode(x: float, type_: str) -> int:
    """Returns the bits of a number that the format can represent."""
    if math.isnan(x):
        return FORMATS[type_].nan
    if type_ == "bf16":
        return encode(x, "f32") >> 16
    code = {"f16": "e", "f32": "f", "f64": "d"}[type_]
    return int.from_bytes(struct.pack(f"<{code}", x), "little")


def whole(x: Fraction, mode: str) -> int:
    """Rounds a non-negative fraction to an integer: n to nearest even, d down, u up."""
    n, rest = divmod(x.numerator, x.denominator)
    if mode == "n":
        twice = 2 * rest - x.denominator
        return n + (twice > 0 or (twice == 0 and n % 2 == 1))
    return n + (mode == "u" and rest > 0)


def direction(mode: str, is_negative: bool) -> str:
    """Returns the rounding direction for the magnitude under a rounding mode of PTX."""
    return {"rn": "n", "rz": "d", "rm": "u" if is_negative else "d"}.get(
        mode, "d" if is_negative else "u"
    )


def rounded(x: Fraction, type_: str, mode: str = "rn") -> float:
    """Rounds a nonzero fraction to a format."""
    form, sign, magnitude = FORMATS[type_], -1 if x < 0 else 1, abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, form.least) - form.digits + 1)
    toward = direction(mode, x < 0)
    value = whole(magnitude / unit, toward) * unit
    if value >= Fraction(2) ** (form.most + 1):
        largest = (2 - Fraction(2) ** (1 - form.digits)) * Fraction(2) ** form.most
        return sign * (float(largest) if toward == "d" else math.inf)
    return math.copysign(float(value), sign)


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def saturated(x: float) -> float:
    return 0.0 if math.isnan(x) else min(max(x, 0.0), 1.0) + 0.0


def sum_of(x: float, y: float, type_: str, mode: str) -> float:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x + y
    return sum_of_exact(Fraction(x), Fraction(y), x, y, type_, mode)


def sum_of_exact(p: Fraction, q: Fraction, x: float, y: float, type_: str, mode: str) -> float:
    """Returns p + q. x and y give the signs, which matter if the sum is zero."""
    if p + q:
        return rounded(p + q, type_, mode)
    signs = {math.copysign(1, x), math.copysign(1, y)}
    if p == 0 and len(signs) == 1:
        return math.copysign(0.0, x)
    return -0.0 if mode == "rm" else 0.0


def product_of(x: float, y: float, type_: str, mode: str) -> float:
    if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        return x * y
    return rounded(Fraction(x) * Fraction(y), type_, mode)


def fused(x: float, y: float, z: float, type_: str, mode: str) -> float:
    if not all(map(math.isfinite, (x, y, z))):
        return (0.0 if math.isfinite(x) and math.isfinite(y) else x * y) + z
    sign = math.copysign(1, x) * math.copysign(1, y)
    return sum_of_exact(Fraction(x) * Fraction(y), Fraction(z), sign, z, type_, mode)


def quotient(x: float, y: float, type_: str, mode: str) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan
    sign = math.copysign(1, x) * math.copysign(1, y)
    if (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return math.nan
    if y == 0 or math.isinf(x):
        return sign * math.inf
    if x == 0 or math.isinf(y):
        return math.copysign(0.0, sign)
    return rounded(Fraction(x) / Fraction(y), type_, mode)


def root(x: float, type_: str, mode: str) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    if x == 0 or math.isinf(x):
        return x
    p = Fraction(x)
    scale = 1 << 1200
    square = p.numerator * scale * scale // p.denominator
    n = math.isqrt(square)
    is_exact = n * n * p.denominator == p.numerator * scale * scale
    return rounded(Fraction(2 * n + (not is_exact), 2 * scale), type_, mode)


def extreme(name: str, x: float, y: float, keeps_nan: bool) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan if keeps_nan or (math.isnan(x) and math.isnan(y)) else (y if x != x else x)
    key = lambda v: (v, math.copysign(1, v))  # noqa: E731
    return min(x, y, key=key) if name == "min" else max(x, y, key=key)


def float_op(base: str, xs: Sequence[float], type_: str, mode: str, parts: Sequence[str]) -> float:
    """Computes one operation on numbers of a format."""
    match base:
        case "add":
            return sum_of(xs[0], xs[1], type_, mode)
        case "sub":
            return sum_of(xs[0], -xs[1], type_, mode)
        case "mul":
            return product_of(xs[0], xs[1], type_, mode)
        case "fma":
            return fused(xs[0], xs[1], xs[2], type_, mode)
        case "div":
            return quotient(xs[0], xs[1], type_, mode)
        case "rcp":
            return quotient(1.0, xs[0], type_, mode)
        case "sqrt":
            return root(xs[0], type_, mode)
        case "neg":
            return -xs[0]
        case "abs":
            return abs(xs[0])
        case "min" | "max":
            return extreme(base, xs[0], xs[1], "NaN" in parts)
    raise KeyError(base)


def mode_of(parts: Sequence[str]) -> str:
    return next((part for part in parts if part in ("rn", "rz", "rm", "rp")), "rn")


def floats(parts: Sequence[str], raws: Sequence[int]) -> int:
    type_ = parts[-1]
    xs = [decode(raw, type_) for raw in raws]
    if "ftz" in parts:
        xs = [flushed(x) for x in xs]
    result = float_op(parts[0], xs, type_, mode_of(parts), parts)
    if "ftz" in parts:
        result = flushed(result)
    return encode(saturated(result) if "sat" in parts else result, type_)


# Integers


def signed(raw: int, bits: int) -> int:
    raw &= (1 << bits) - 1
    return raw - (1 << bits) if raw >> (bits - 1) else raw


def number(raw: int, type_: str) -> int:
    bits = bits_of(type_)
    return signed(raw, bits) if type_[0] == "s" else raw & (1 << bits) - 1


def quotient_toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamped(x: int, type_: str) -> int:
    bits = bits_of(type_)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)
    return min(max(x, low), high)


def bit_string(raw: int, bits: int) -> str:
    return format(raw & (1 << bits) - 1, f"0{bits}b")[::-1]


def extracted(raw: int, at: int, count: int, bits: int, is_signed: bool) -> int:
    at, count = at & 255, count & 255
    field = bit_string(raw, bits)[at : at + count]
    if not is_signed or count == 0:
        return int(field[::-1] or "0", 2)
    sign = bit_string(raw, bits)[min(at + count - 1, bits - 1)]
    return int((field + sign * bits)[:bits][::-1], 2)


def inserted(a: int, b: int, at: int, count: int, bits: int) -> int:
    at, count = at & 255, count & 255
    target, source = list(bit_string(b, bits)), bit_string(a, bits)
    for i in range(min(count, bits)):
        if at + i < bits:
            target[at + i] = source[i]
    return int("".join(target)[::-1], 2)


def highest(raw: int, type_: str, shifts: bool) -> int:
    bits = bits_of(type_)
    x = number(raw, type_)
    x = ~x if x < 0 else x
    if x == 0:
        return 0xFFFFFFFF
    return bits - x.bit_length() if shifts else x.bit_length() - 1


def permuted(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    out = []
    for i in range(4):
        choice = selector >> 4 * i & 15
        byte = source[choice & 7]
        out.append((255 if byte & 128 else 0) if choice & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def looked_up(a: int, b: int, c: int, table: int) -> int:
    columns = zip(*(bit_string(x, 32) for x in (a, b, c)), strict=True)
    bits = [str(table >> int("".join(column), 2) & 1) for column in columns]
    return int("".join(bits)[::-1], 2)


def funnel(low: int, high: int, n: int, side: str, mode: str) -> int:
    n = min(n, 32) if mode == "clamp" else n % 32
    both = high << 32 | low
    return both << n >> 32 if side == "l" else both >> n


def dot(a: int, b: int, c: int, types: Sequence[str]) -> int:
    parts = (
        [signed(x >> 8 * i, 8) if t[0] == "s" else x >> 8 * i & 255 for i in range(4)]
        for x, t in zip((a, b), types, strict=True)
    )
    return c + sum(x * y for x, y in zip(*parts, strict=True))


def dot_pair(a: int, b: int, c: int, parts: Sequence[str]) -> int:
    low = 0 if parts[0] == "lo" else 16
    pairs = [
        (
            signed(a >> 16 * i, 16) if parts[1][0] == "s" else a >> 16 * i & 0xFFFF,
            signed(b >> low + 8 * i, 8) if parts[2][0] == "s" else b >> low + 8 * i & 0xFF,
        )
        for i in range(2)
    ]
    return c + sum(x * y for x, y in pairs)


def integers(parts: Sequence[str], raws: Sequence[int]) -> int:
    base, type_ = parts[0], parts[-1]
    bits = bits_of(type_)
    x = [number(raw, type_) for raw in raws]
    table: dict[str, Callable[[], int]] = {
        "add": lambda: clamped(x[0] + x[1], type_) if "sat" in parts else x[0] + x[1],
        "sub": lambda: clamped(x[0] - x[1], type_) if "sat" in parts else x[0] - x[1],
        "mul": lambda: x[0] * x[1] >> (bits if "hi" in parts else 0),
        "mad": lambda: (x[0] * x[1] >> (bits if "hi" in parts else 0)) + raws[2],
        "div": lambda: quotient_toward_zero(x[0], x[1]),
        "rem": lambda: x[0] - x[1] * quotient_toward_zero(x[0], x[1]),
        "min": lambda: min(x[0], x[1]),
        "max": lambda: max(x[0], x[1]),
        "neg": lambda: -x[0],
        "abs": lambda: abs(x[0]),
        "and": lambda: x[0] & x[1],
        "or": lambda: x[0] | x[1],
        "xor": lambda: x[0] ^ x[1],
        "not": lambda: ~x[0],
        "shl": lambda: x[0] << min(raws[1], bits),
        "shr": lambda: x[0] >> min(raws[1], bits),
        "popc": lambda: bit_string(x[0], bits).count("1"),
        "clz": lambda: bits - x[0].bit_length(),
        "brev": lambda: int(bit_string(x[0], bits), 2),
        "bfe": lambda: extracted(raws[0], raws[1], raws[2], bits, type_[0] == "s"),
        "bfi": lambda: inserted(raws[0], raws[1], raws[2], raws[3], bits),
        "bfind": lambda: highest(raws[0], type_, "shiftamt" in parts),
        "prmt": lambda: permuted(raws[0], raws[1], raws[2]),
        "lop3": lambda: looked_up(raws[0], raws[1], raws[2], raws[3]),
        "shf": lambda: funnel(raws[0], raws[1], raws[2], parts[1], parts[2]),
        "dp4a": lambda: dot(raws[0], raws[1], raws[2], parts[1:]),
        "dp2a": lambda: dot_pair(raws[0], raws[1], raws[2], parts[1:]),
        # with a carry of one
        "addc": lambda: x[0] + x[1] + 1,
        "subc": lambda: x[0] - x[1] - 1,
        "madc": lambda: (x[0] * x[1] >> (bits if "hi" in parts else 0)) + raws[2] + 1,
    }
    return table[base]()


# Comparisons, selections, conversions


def compared(parts: Sequence[str], raws: Sequence[int]) -> int:
    type_, test = parts[-1], parts[1]
    x: float
    y: float
    if type_ in FORMATS:
        x, y = (decode(raw, type_) for raw in raws[:2])
        if "ftz" in parts:
            x, y = flushed(x), flushed(y)
    else:
        x, y = (number(raw, type_) for raw in raws[:2])
    unordered = x != x or y != y
    name = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(test, test)
    if name in ("num", "nan"):
        result = unordered == (name == "nan")
    else:
        order = {
            "eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y,
        }[name[:2]]  # fmt: skip
        result = (order and not unordered) or (unordered and len(name) == 3)
    join = next((part for part in parts if part in ("and", "or", "xor")), None)
    if join:
        other = bool(raws[2])
        result = {
            "and": result and other, "or": result or other, "xor": result != other,
        }[join]  # fmt: skip
    return int(result)


def to_integer(x: float, mode: str, type_: str) -> int:
    if math.isnan(x):
        return 1 << 63 if type_[1:] == "64" else 0
    if math.isinf(x):
        return clamped(1 << 100 if x > 0 else -(1 << 100), type_)
    fraction = Fraction(x)
    magnitude = whole(abs(fraction), direction(mode.removesuffix("i"), fraction < 0))
    return clamped(-magnitude if fraction < 0 else magnitude, type_)


def converted(parts: Sequence[str], raws: Sequence[int]) -> int:
    to, source = parts[-2], parts[-1]
    if to.endswith("x2"):
        high, low = (converted([*parts[:-2], to[:-2], source], [raw]) for raw in raws)
        return high << 16 | low
    integral = next((part for part in parts if part in ("rni", "rzi", "rmi", "rpi")), None)
    if source not in FORMATS:
        x = number(raws[0], source)
        if to not in FORMATS:
            return clamped(x, to) if "sat" in parts else number(x, to)
        return encode(rounded(Fraction(x), to, mode_of(parts)) if x else 0.0, to)
    value = decode(raws[0], source)
    if "ftz" in parts and source == "f32":
        value = flushed(value)
    if to not in FORMATS:
        assert integral
        return to_integer(value, integral, to)
    if integral and math.isfinite(value):
        sign = math.copysign(1, value)
        n = whole(abs(Fraction(value)), direction(integral.removesuffix("i"), value < 0))
        value = math.copysign(float(n), sign)
    if math.isfinite(value) and value != 0:
        value = rounded(Fraction(value), to, mode_of(parts))
    if "ftz" in parts and to == "f32":
        value = flushed(value)
    return encode(saturated(value) if "sat" in parts else value, to)


def reference(opcode: str, raws: Sequence[int]) -> int:
    """Returns the bits that an instruction gives for the bits of its sources; only exact
    instructions."""
    parts = opcode.split(".")
    base, type_ = parts[0], parts[-1]
    if base == "setp":
        return compared(parts, raws)
    if base == "selp":
        return raws[0] if raws[2] else raws[1]
    if base == "cvt":
        return converted(parts, raws)
    if base == "copysign":
        top = 1 << bits_of(type_) - 1
        return (raws[0] & top) | (raws[1] & ~top)
    if type_.endswith("x2"):
        single = re.sub("x2$", "", opcode)
        low, high = (reference(single, [raw >> s & 0xFFFF for raw in raws]) for s in (0, 16))
        return high << 16 | low
    if type_ == "pred":
        x, y = bool(raws[0]), bool(raws[-1])
        return int({"and": x and y, "or": x or y, "xor": x != y, "not": not x}[base])
    return floats(parts, raws) if type_ in FORMATS else integers(parts, raws)
