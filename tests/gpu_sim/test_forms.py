"""Every entry of the table of arithmetic against exact references, on corner cases and random bits;
and every form used by our kernels has such a test."""

from __future__ import annotations

import math
import random
import re

import numpy as np
import pytest

import cases
import references
from cases import CASES
from client import Driver
from translate.forms import FORMS, Form
from translate.write import translate

N = 96  # samples per form: threads
TABLE = 0xB1  # truth table of lop3, a constant of the instruction

APPROXIMATE = {name for name in FORMS if ".approx" in name or ".full" in name}
FAMILIES: dict[str, list[str]] = {}
for _name in sorted(set(FORMS) - APPROXIMATE):
    _base = _name.split(".")[0]
    _group = (
        _base if _base in ("cvt", "setp") else "float" if "f" in _name.split(".")[-1] else "int"
    )
    FAMILIES.setdefault(_group, []).append(_name)
PARTS = [
    pytest.param(names[i : i + 120], id=f"{family} {i // 120}")
    for family, names in FAMILIES.items()
    for i in range(0, len(names), 120)
]

CORNERS = {
    "f32": [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00001],
    "f64": [
        0, 1, 0xFFFFFFFFFFFFF, 1 << 52, 0x3FF0000000000000, 0x3FF0000000000001,
        0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000001, 0x380FFFFFF0000000,
    ],
    "f16": [0, 1, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7E01],
    "bf16": [0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC1],
}  # fmt: skip


def sample(type_: str, rng: random.Random) -> int:
    """Returns the bits of a number of a type: corner cases, numbers near one and near halves, small
    integers, random bits."""
    bits = references.bits_of(type_)
    if type_.endswith("x2"):
        return sample(type_[:-2], rng) << 16 | sample(type_[:-2], rng)
    if type_ == "pred":
        return rng.getrandbits(1)
    kind = rng.randrange(4)
    if type_ in CORNERS:
        sign = rng.getrandbits(1) << (bits - 1)
        if kind == 0:
            return rng.choice(CORNERS[type_]) | sign
        if kind == 1:  # halves and their neighbours
            halves = references.encode(rng.randrange(64) / 2, type_) + rng.randrange(-1, 2)
            return max(halves, 0) | sign
        if kind == 2:
            near = math.ldexp(1 + rng.random(), rng.randrange(-3, 34 if bits > 16 else 8))
            fraction = references.Fraction(near)
            return references.encode(references.rounded(fraction, type_), type_) | sign
        return rng.getrandbits(bits)
    if kind == 0:
        return rng.choice([0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1])
    if kind == 1:
        return rng.randrange(-70, 70) & (1 << bits) - 1
    return rng.getrandbits(bits)


def register(type_: str) -> str:
    """Returns the type of the register that holds a type; eight bits are held in wider ones."""
    return {8: "b32", 1: "pred"}.get(references.bits_of(type_), f"b{references.bits_of(type_)}")


def block(form: Form, at: int) -> str:
    """Writes PTX that applies a form to four slots of eight bytes per thread and writes a fifth."""
    lines, names = [], []
    for i, type_ in enumerate(form.sources):
        held, place = register(type_), f"[%at+{(at * 5 + i) * 8 * N}]"
        names.append(f"%s{i}")
        lines.append(f".reg .{held} %s{i};")
        if held == "pred":
            lines += [f".reg .b32 %w{i};", f"ld.global.b32 %w{i}, {place};"]
            lines.append(f"setp.ne.b32 %s{i}, %w{i}, 0;")
        else:
            lines.append(f"ld.global.{held} %s{i}, {place};")
    if form.opcode == "lop3.b32":
        names[3] = str(TABLE)
    held, place = register(form.result), f"[%at+{(at * 5 + 4) * 8 * N}]"
    lines.append(f".reg .{held} %d;")
    if form.opcode.split(".")[0] in ("addc", "subc", "madc"):  # these take a carry of one
        lines += [".reg .b32 %z;", "add.cc.u32 %z, 0xffffffff, 1;"]
    lines.append(f"{form.opcode} %d, {', '.join(names)};")
    if held == "pred":
        lines += [".reg .b32 %e;", "selp.b32 %e, 1, 0, %d;", f"st.global.b32 {place}, %e;"]
    else:
        lines.append(f"st.global.{held} {place}, %d;")
    return "{\n" + "\n".join(lines) + "\n}"


HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry forms(.param .u64 data) {
.reg .b64 %at, %offset;
.reg .b32 %i;
ld.param.u64 %at, [data];
mov.u32 %i, %tid.x;
mul.wide.u32 %offset, %i, 8;
add.s64 %at, %at, %offset;
"""


def apply(driver: Driver, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source samples of each form, (form, source, thread), and the results."""
    rng = random.Random(",".join(names))
    slots = np.zeros((len(names), 5, N), np.uint64)
    for f, name in enumerate(names):
        for i, type_ in enumerate(FORMS[name].sources):
            slots[f, i] = [sample(type_, rng) for _ in range(N)]
        if name == "lop3.b32":
            slots[f, 3] = TABLE
    text = HEAD + "\n".join(block(FORMS[name], f) for f, name in enumerate(names)) + "\nret;\n}\n"
    memory = driver.put(slots)
    driver.launch(text, "forms", 1, N, memory)
    out = driver.get(memory, np.uint64, slots.shape)
    driver.free(memory)
    return slots[:, :4], out[:, 4]


def extended(raw: int, form: Form) -> int:
    """Returns a result as held in a register: eight bits are extended to 32."""
    bits = references.bits_of(form.result)
    if bits == 8 and form.result[0] == "s":
        return references.signed(raw, 8) & 0xFFFFFFFF
    return raw & (1 << bits) - 1


def agrees(name: str, got: int, expected: int) -> bool:
    """True for equal bits. Any NaN is accepted if the manual does not state its bits: in double
    precision, and for sign operations."""
    type_ = FORMS[name].result
    if type_.endswith("x2"):
        single = name.removesuffix("x2")
        return all(agrees(single, got >> s & 0xFFFF, expected >> s & 0xFFFF) for s in (0, 16))
    if got == expected:
        return True
    is_free = type_ == "f64" or name.split(".")[0] in ("neg", "abs")
    is_nan = type_ in references.FORMATS and math.isnan(references.decode(expected, type_))
    return is_free and is_nan and math.isnan(references.decode(got, type_))


def is_defined(name: str, raws: list[int]) -> bool:
    """Returns False for integer division by zero, and of the minimum by -1, whose results are
    undefined."""
    parts = name.split(".")
    if parts[0] not in ("div", "rem") or parts[-1] in references.FORMATS:
        return True
    bits = references.bits_of(parts[-1])
    least = parts[-1][0] == "s" and raws[0] == 1 << bits - 1 and raws[1] == (1 << bits) - 1
    return raws[1] != 0 and not least


@pytest.mark.parametrize("names", PARTS)
def test_exact(driver: Driver, names: list[str]) -> None:
    inputs, outputs = apply(driver, names)
    for f, name in enumerate(names):
        form = FORMS[name]
        for k in range(N):
            raws = [int(inputs[f, i, k]) for i in range(len(form.sources))]
            if not is_defined(name, raws):
                continue
            expected = extended(references.reference(name, raws), form)
            got = int(outputs[f, k])
            shown = (name, [hex(raw) for raw in raws], hex(got), hex(expected))
            assert agrees(name, got, expected), shown


# The largest relative errors that the PTX manual states.
FUNCTIONS = {
    "rcp": (lambda x: 1 / x, 2**-23),
    "sqrt": (math.sqrt, 2**-23),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 2**-22.9),
    "ex2": (lambda x: 2.0**x, 2**-22.5),
    "lg2": (math.log2, 2**-22),
    "sin": (math.sin, 2**-20.5),
    "cos": (math.cos, 2**-20.5),
    "tanh": (math.tanh, 2**-11),
    "div": (lambda x, y: x / y, 2**-22),
}


def unpacked(raw: int, type_: str) -> list[float]:
    if type_.endswith("x2"):
        return [references.decode(raw >> s & 0xFFFF, type_[:-2]) for s in (0, 16)]
    return [references.decode(raw, type_)]


@pytest.mark.parametrize("seed", [0, 7])
def test_approximate(driver: Driver, seed: int) -> None:
    """The error is below the stated one, even if a test asks for the largest errors."""
    names = sorted(APPROXIMATE)
    driver.set(approximate=seed)
    inputs, outputs = apply(driver, names)
    seen = 0
    for f, name in enumerate(names):
        form, (function, bound) = FORMS[name], FUNCTIONS[name.split(".")[0]]
        single = form.result.removesuffix("x2")
        if single != "f32":
            bound = 2.0 ** (1 - (20 if single == "f64" else references.FORMATS[single].digits))
        for k in range(N):
            sources = [unpacked(int(inputs[f, i, k]), t) for i, t in enumerate(form.sources)]
            results = unpacked(int(outputs[f, k]), form.result)
            for xs, got in zip(zip(*sources, strict=True), results, strict=True):
                if not all(2.0**-20 < x < 16 for x in xs):
                    continue
                exact = function(*xs)
                seen += 1
                allowed = (bound + 2.0**-24) * abs(exact) + 2.0**-126
                assert abs(got - exact) <= allowed, (name, xs, got)
    assert seen > 500


def test_special_values_of_approximations(driver: Driver) -> None:
    """Infinities, zeros and NaN give the results of the exact functions."""
    table = {
        "rcp.approx.f32": [(0.0, math.inf), (math.inf, 0.0), (-0.0, -math.inf)],
        "rsqrt.approx.f32": [(0.0, math.inf), (math.inf, 0.0), (-1.0, math.nan)],
        "ex2.approx.f32": [(-math.inf, 0.0), (math.inf, math.inf), (0.0, 1.0)],
        "lg2.approx.f32": [(0.0, -math.inf), (math.inf, math.inf), (-1.0, math.nan)],
        "tanh.approx.f32": [(math.inf, 1.0), (-math.inf, -1.0), (0.0, 0.0)],
        "ex2.approx.ftz.f32": [(-math.inf, 0.0), (-140.0, 0.0), (math.nan, math.nan)],
    }
    for name, pairs in table.items():
        slots = np.zeros((1, 5, N), np.uint64)
        slots[0, 0, : len(pairs)] = [references.encode(x, "f32") for x, _ in pairs]
        memory = driver.put(slots)
        text = HEAD + block(FORMS[name], 0) + "\nret;\n}\n"
        driver.launch(text, "forms", 1, N, memory)
        out = driver.get(memory, np.uint64, slots.shape)[0, 4]
        got = [references.decode(int(raw), "f32") for raw in out[: len(pairs)]]
        np.testing.assert_array_equal(got, [y for _, y in pairs], err_msg=name)


# Forms that are not in the table: test_other_forms.py or cases.py (language.cu) runs them.
ELSEWHERE = re.compile(
    r"(ld|st)\.(global|shared|local|param|const|generic)(\.v[24])?\.b(8|16|32|64)"
    r"|cvta(\.to)?\.(global|shared|local)\.u64"
    r"|atom\.(global|shared)\.(add|max|min|and|or|xor|exch|inc|dec|cas)\.([usb](32|64)|f(32|64))"
    r"|bar\.(sync|arrive|warp\.sync|red\.(popc\.u32|and\.pred|or\.pred))"
    r"|barrier(\.cta)?\.(sync|red\.popc\.u32)|membar\.gl|activemask\.b32"
    r"|shfl\.sync\.(up|down|bfly|idx)\.b32|vote\.sync\.((all|any)\.pred|ballot\.b32)"
    r"|redux\.sync\.(add\.[us]32|min\.s32|max\.u32|(and|or|xor)\.b32)|match\.(any|all)\.sync\.b32"
    r"|cp\.async\.(c[ag]\.shared\.global|commit_group|wait_group|wait_all)"
    r"|mma\.sync\.aligned\.m16n8k(8|16)\.row\.col\.f32\.(f16\.f16|bf16\.bf16)\.f32"
    r"|mma\.sync\.aligned\.m16n8k[48]\.row\.col\.f32\.tf32\.tf32\.f32"
    r"|ldmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16"
)


@pytest.mark.parametrize("file", sorted({case.file for case in CASES.values()} | {"faults"}))
def test_forms_of_the_kernels(file: str) -> None:
    """A kernel may not use a form without a test."""
    _, forms = translate(cases.ptx(file))
    assert {form for form in forms if form not in FORMS and not ELSEWHERE.fullmatch(form)} == set()
