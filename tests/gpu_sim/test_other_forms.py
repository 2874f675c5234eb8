"""Forms that touch memory or other threads, each compared with NumPy: loads and stores, atomics,
counting barriers, matrix products and loads. kernels/language.cu has the other warp operations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import references
from client import CudaError, Driver

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 data, .param .u64 out) {
.shared .align 16 .b8 tile[2048];
.local .align 16 .b8 own[64];
.reg .b64 %d, %o, %x<4>, %w<8>; .reg .b32 %i, %t, %r<16>, %c<4>; .reg .b16 %h<8>;
.reg .pred %p, %q;
ld.param.u64 %d, [data]; ld.param.u64 %o, [out];
mov.u32 %i, %tid.x; mov.u32 %t, tile;
"""


def run(driver: Driver, body: str, data: np.ndarray, size: int, threads: int = 32) -> np.ndarray:
    """Runs a block on data; returns `size` bytes of its output, which is initially zero."""
    memory, out = driver.put(data), driver.put(np.zeros(size, np.uint8))
    driver.launch(HEAD + body + "\nret;\n}\n", "k", 1, threads, memory, out)
    result = driver.get(out, np.uint8, size)
    driver.free(memory, out)
    return result


REGISTERS = {8: "%h", 16: "%h", 32: "%r", 64: "%w"}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_loads_and_stores(driver: Driver, bits: int, vector: int) -> None:
    """Values survive a store and a load in each space: global, shared, local, and their generic
    addresses."""
    listed = ", ".join(f"{REGISTERS[bits]}{i}" for i in range(vector))
    held, v = (f"{{{listed}}}", f".v{vector}") if vector > 1 else (listed, "")
    width = bits // 8 * vector
    body = f"ld.global.nc{v}.b{bits} {held}, [%d];"
    for space in ("shared", "local"):
        name = {"shared": "tile", "local": "own"}[space]
        body += f"""
        st.{space}{v}.b{bits} [{name}+32], {held};
        mov.u64 %x0, {name}; cvta.{space}.u64 %x1, %x0;
        ld{v}.b{bits} {held}, [%x1+32];
        st{v}.b{bits} [%x1], {held};
        cvta.to.{space}.u64 %x2, %x1;
        ld.{space}{v}.b{bits} {held}, [%x2];"""
    body += f"st.volatile.global{v}.b{bits} [%o], {held};"
    data = np.arange(1, 65, dtype=np.uint8)
    assert (run(driver, body, data, 64, 1)[:width] == data[:width]).all()


@pytest.mark.parametrize(("type_", "want"), [("s8", -2), ("u8", 254), ("s16", -2), ("u16", 65534)])
def test_loads_extend(driver: Driver, type_: str, want: int) -> None:
    body = f"ld.global.{type_} %r1, [%d]; st.global.b32 [%o], %r1;"
    data = np.array([-2], np.int8 if "8" in type_ else np.int16)
    assert run(driver, body, data, 4, 1).view(np.int32)[0] == want


INTEGER_UPDATES = {
    "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "exch": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1, "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}  # fmt: skip
ATOMICS = [
    *itertools.product(("add", "min", "max"), ("u32", "s32", "u64", "s64")),
    *itertools.product(("and", "or", "xor", "exch"), ("b32", "b64")),
    ("inc", "u32"),
    ("dec", "u32"),
]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("update", "type_"), ATOMICS)
def test_atomics_on_integers(driver: Driver, space: str, update: str, type_: str) -> None:
    """Old and new values are right over pairs of numbers, one after another at one address."""
    bits = int(type_[1:])
    rng = np.random.default_rng(bits)
    data = rng.integers(0, 1 << bits, 24, np.uint64).astype(f"u{bits // 8}")
    data[:6] = [0, 1, 5, 5, (1 << bits) - 1, 1 << bits - 1]
    size, r = bits // 8, REGISTERS[bits]
    place = {"global": "[%o]", "shared": "[%t]"}[space]
    body = f"ld.global.b{bits} {r}0, [%d]; st.{space}.b{bits} {place}, {r}0;"
    for k in range(1, 24):
        body += f"ld.global.b{bits} {r}1, [%d+{k * size}];"
        body += f"atom.{space}.{update}.{type_} {r}2, {place}, {r}1;"
        body += f"st.global.b{bits} [%o+{k * size}], {r}2;"
    body += f"ld.{space}.b{bits} {r}3, {place}; st.global.b{bits} [%o+{24 * size}], {r}3;"
    got = run(driver, body, data, 25 * size, 1).view(data.dtype)
    value = int(data[0])
    for k in range(1, 24):
        assert got[k] == value
        pair = references.number(value, type_), references.number(int(data[k]), type_)
        value = INTEGER_UPDATES[update](*pair) & (1 << bits) - 1
    assert got[24] == value


def test_compare_and_swap(driver: Driver) -> None:
    body = """mov.u32 %r0, 5; atom.global.cas.b32 %r1, [%o], 0, %r0;
    atom.global.cas.b32 %r2, [%o], 0, 9; st.global.v2.b32 [%o+8], {%r1, %r2};
    mov.u64 %w0, 7; atom.global.cas.b64 %w1, [%o+16], 0, %w0;"""
    got = run(driver, body, np.zeros(1), 24, 1)
    assert got.view(np.uint32).tolist() == [5, 0, 0, 5, 7, 0]


@pytest.mark.parametrize("type_", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"])
def test_atomic_sums(driver: Driver, type_: str) -> None:
    """red and atom round once each time."""
    bits = references.bits_of(type_)
    single, r = type_.removesuffix("x2"), REGISTERS[bits]
    step = references.bits_of(single)
    numbers = np.random.default_rng(1).standard_normal(16)
    raws = [
        references.encode(references.rounded(references.Fraction(x), single), single)
        for x in numbers
    ]
    data = np.array(raws, np.uint64).astype(f"u{step // 8}")
    zeros = ".noftz" if step == 16 else ""
    body, count = "", 16 * step // bits
    for k in range(count):
        body += f"ld.global.b{bits} {r}1, [%d+{k * bits // 8}];"
        body += f"red.global.add{zeros}.{type_} [%o], {r}1;"
    got = run(driver, body, data, 8, 1).view(data.dtype)
    for lane in range(bits // step):
        total = 0.0
        for raw in data[lane :: bits // step]:
            total = references.sum_of(total, references.decode(int(raw), single), single, "rn")
        assert got[lane] == references.encode(total, single)


@pytest.mark.parametrize("threads", [32, 96])
def test_barriers_that_count(driver: Driver, threads: int) -> None:
    body = """setp.lt.u32 %p, %i, 20;
    barrier.cta.red.popc.u32 %r1, 0, %p; bar.red.and.pred %q, 0, %p; selp.b32 %r2, 1, 0, %q;
    bar.red.or.pred %q, 0, %p; selp.b32 %r3, 1, 0, %q; barrier.sync 0; bar.sync 3, %r4;
    mul.wide.u32 %x0, %i, 16; add.s64 %x0, %x0, %o; st.global.v4.b32 [%x0], {%r1, %r2, %r3, %i};"""
    body = f"mov.u32 %r4, {threads};" + body
    got = run(driver, body, np.zeros(1), 16 * threads, threads).view(np.uint32).reshape(-1, 4)
    assert (got[:, :3] == [20, 0, 1]).all() and (got[:, 3] == np.arange(threads)).all()


def decoded(raws: np.ndarray, type_: str) -> np.ndarray:
    if type_ == "f16":
        return raws.view(np.float16).astype(np.float64)
    wide = raws.astype(np.uint32) << 16 if type_ == "bf16" else raws & np.uint32(0xFFFFE000)
    return wide.view(np.float32).astype(np.float64)


MATRICES = [("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("type_", "k"), MATRICES)
def test_matrix_products(driver: Driver, type_: str, k: int, whole: bool) -> None:
    """A and B are loaded element by element, in the manual's assignment to lanes. Sums of integers
    are exact."""
    step = 1 if type_ == "tf32" else 2  # elements of a register
    size = 4 // step
    n_a, n_b = 16 * k // 32 // step, 8 * k // 32 // step
    lines = ["shr.u32 %r12, %i, 2; and.b32 %r13, %i, 3;"]  # group, place
    for name, count in (("a", n_a), ("b", n_b)):
        for i in range(count):
            half = i % 2 if name == "a" else 0
            part = i // 2 if name == "a" else i
            base = 0 if name == "a" else 16 * k * size
            # of A: row group + 8 half, columns from step * place + 4 step part; B is column-major
            lines.append(f"mad.lo.u32 %r14, %r12, {k}, {8 * half * k + 4 * step * part};")
            lines.append(f"mad.lo.u32 %r14, %r13, {step}, %r14; mul.lo.u32 %r14, %r14, {size};")
            lines.append("cvt.u64.u32 %x0, %r14; add.s64 %x0, %x0, %d;")
            lines.append(f"ld.global.b32 %r{(0 if name == 'a' else 4) + i}, [%x0+{base}];")
    lines.append("shl.b32 %r14, %i, 4; cvt.u64.u32 %x0, %r14; add.s64 %x1, %x0, %o;")
    lines.append(
        f"add.s64 %x0, %x0, %d; ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%x0+{24 * k * size}];"
    )
    a = ", ".join(f"%r{i}" for i in range(n_a))
    b = ", ".join(f"%r{4 + i}" for i in range(n_b))
    c = "{%c0, %c1, %c2, %c3}"
    lines.append(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{type_}.{type_}.f32 {c}, {{{a}}}, {{{b}}}, {c};"
    )
    lines.append("st.global.v4.b32 [%x1], {%c0, %c1, %c2, %c3};")
    rng = np.random.default_rng(k)
    numbers = rng.standard_normal(24 * k).astype(np.float32)
    add = rng.standard_normal((32, 4)).astype(np.float32)
    if whole:
        numbers, add = np.round(9 * numbers), np.round(99 * add)
    if type_ == "f16":
        raws = numbers.astype(np.float16).view(np.uint16)
    else:
        raws = numbers.view(np.uint32)
        raws = (raws >> 16).astype(np.uint16) if type_ == "bf16" else raws
    data = np.frombuffer(raws.tobytes() + add.tobytes(), np.uint8)
    got = run(driver, "\n".join(lines), data, 512).view(np.float32).reshape(32, 4)
    x = decoded(raws, type_)
    product = x[: 16 * k].reshape(16, k) @ x[16 * k :].reshape(8, k).T
    for lane, i in itertools.product(range(32), range(4)):
        row, column = lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2
        off = abs(got[lane, i] - (product[row, column] + add[lane, i]))
        assert off == 0 if whole else off < 1e-5, (lane, i)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_matrix_loads(driver: Driver, count: int, transposed: str) -> None:
    """Matrices are row-major in shared memory, 16 bytes per row."""
    names = ", ".join(f"%r{i}" for i in range(count))
    body = f"""shl.b32 %r8, %i, 4; cvt.u64.u32 %x0, %r8; add.s64 %x1, %x0, %d; add.u32 %r9, %t, %r8;
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%x1]; st.shared.v4.b32 [%r9], {{%r4, %r5, %r6, %r7}};
    bar.sync 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;
    ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 {{{names}}}, [%r9];
    add.s64 %x1, %x0, %o; st.global.v4.b32 [%x1], {{%r0, %r1, %r2, %r3}};"""
    data = np.arange(256, dtype=np.uint16)
    got = run(driver, body, data, 512).view(np.uint16).reshape(32, 4, 2)
    matrices = data.reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    for lane, m in itertools.product(range(32), range(count)):
        assert (got[lane, m] == matrices[m, lane // 4, lane % 4 * 2 :][:2]).all()
    assert (got[:, count:] == 0).all()


def test_matrix_operations_need_all_lanes(driver: Driver) -> None:
    body = """setp.lt.u32 %p, %i, 16; @%p bra L; ret; L:
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%t];"""
    driver.set(unwritten=0)
    with pytest.raises(CudaError) as error:
        run(driver, body, np.zeros(1), 4)
    assert "needs all lanes" in error.value.reports


@pytest.mark.parametrize(("given", "form"), [(16, ", 16"), (4, ", 16, 4"), (0, ", 16, 0")])
def test_copies_that_fill_with_zeros(driver: Driver, given: int, form: str) -> None:
    body = f"""cp.async.ca.shared.global [%t], [%d]{form}; cp.async.commit_group; cp.async.wait_all;
    ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%t]; st.global.v4.b32 [%o], {{%r0, %r1, %r2, %r3}};"""
    data = np.arange(1, 17, dtype=np.uint8)
    got = run(driver, body, data, 16, 1)
    assert (got == np.where(np.arange(16) < given, data, 0)).all()


@pytest.mark.parametrize(("wait", "is_there"), [("wait_group 1", True), ("wait_group 2", False)])
def test_groups_of_copies(driver: Driver, wait: str, is_there: bool) -> None:
    """With two groups, waiting for all but one waits for the first."""
    body = f"""cp.async.ca.shared.global [%t], [%d], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%t+4], [%d+4], 4; cp.async.commit_group; cp.async.{wait};
    ld.shared.b32 %r0, [%t]; st.global.b32 [%o], %r0;"""
    data = np.array([7, 8], np.uint32)
    if is_there:
        assert run(driver, body, data, 4, 1).view(np.uint32)[0] == 7
        return
    with pytest.raises(CudaError, match="unwritten"):
        run(driver, body, data, 4, 1)


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_go_on(driver: Driver, bits: int) -> None:
    """Carries give the sum, difference and product of two-word numbers, word by word."""
    rng = np.random.default_rng(bits)
    for _ in range(20):
        words = [int(w) for w in rng.integers(0, 2**63, 4)]
        words = [w * 2 + k % 2 & (1 << bits) - 1 for k, w in enumerate(words)]
        if rng.integers(2):
            words[0] = words[2] = (1 << bits) - 1
        r, size = ("%r" if bits == 32 else "%w"), bits // 8
        body = "".join(f"ld.global.b{bits} {r}{k}, [%d+{k * size}];" for k in range(4))
        u = f"u{bits}"
        body += f"""
        add.cc.{u} {r}4, {r}0, {r}2; addc.{u} {r}5, {r}1, {r}3;
        st.global.b{bits} [%o], {r}4; st.global.b{bits} [%o+{size}], {r}5;
        sub.cc.{u} {r}4, {r}0, {r}2; subc.{u} {r}5, {r}1, {r}3;
        st.global.b{bits} [%o+{2 * size}], {r}4; st.global.b{bits} [%o+{3 * size}], {r}5;
        mul.lo.{u} {r}4, {r}0, {r}2; mul.hi.{u} {r}5, {r}0, {r}2;
        mad.lo.cc.{u} {r}5, {r}0, {r}3, {r}5; madc.hi.{u} {r}6, {r}0, {r}3, 0;
        mad.lo.cc.{u} {r}5, {r}1, {r}2, {r}5; madc.hi.cc.{u} {r}6, {r}1, {r}2, {r}6;
        addc.{u} {r}7, 0, 0; mad.lo.cc.{u} {r}6, {r}1, {r}3, {r}6;
        madc.hi.{u} {r}7, {r}1, {r}3, {r}7;
        st.global.b{bits} [%o+{4 * size}], {r}4; st.global.b{bits} [%o+{5 * size}], {r}5;
        st.global.b{bits} [%o+{6 * size}], {r}6; st.global.b{bits} [%o+{7 * size}], {r}7;"""
        data = np.array(words, f"u{size}").view(np.uint8)
        out = run(driver, body, data, 8 * size, 1).tobytes()
        a, b = words[0] | words[1] << bits, words[2] | words[3] << bits
        mask = (1 << 2 * bits) - 1
        got = [int.from_bytes(out[k * size : (k + 2) * size], "little") for k in (0, 2)]
        assert got == [a + b & mask, a - b & mask]
        assert int.from_bytes(out[4 * size :], "little") == a * b


def test_switches_and_calls(driver: Driver) -> None:
    """Kernels may use brx.idx, and call a function with an argument and a result."""
    text = """.version 8.0
.target sm_90
.address_size 64
.func (.param .b32 result) twice(.param .b32 x) {
.reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, %a; st.param.b32 [result], %a; ret;
}
.visible .entry k(.param .u64 out) {
.reg .b64 %o, %x; .reg .b32 %i, %r;
ld.param.u64 %o, [out]; mov.u32 %i, %tid.x; mul.wide.u32 %x, %i, 4; add.s64 %o, %o, %x;
targets: .branchtargets A, B, C;
brx.idx %i, targets;
A: mov.u32 %r, 10; bra.uni END;
B: mov.u32 %r, 20; bra.uni END;
C: { .param .b32 arg; .param .b32 res; st.param.b32 [arg], 21; call.uni (res), twice, (arg);
ld.param.b32 %r, [res]; }
END: st.global.b32 [%o], %r; ret;
}
"""
    out = driver.put(np.zeros(3, np.uint32))
    driver.launch(text, "k", 1, 3, out)
    assert driver.get(out, np.uint32, 3).tolist() == [10, 20, 42]


def test_special_registers(driver: Driver) -> None:
    body = """mov.u32 %r0, %laneid; mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %total_smem_size;
    activemask.b32 %r3; mul.wide.u32 %x0, %i, 16; add.s64 %x0, %x0, %o;
    st.global.v4.b32 [%x0], {%r0, %r1, %r2, %r3};"""
    got = run(driver, body, np.zeros(1), 16 * 64, 64).view(np.uint32).reshape(-1, 4)
    lanes = np.arange(64) % 32
    assert (got[:, 0] == lanes).all() and (got[:, 1] == (1 << lanes) - 1).all()
    assert (got[:, 2] == 2048).all() and (got[:, 3] == 1 << lanes).all()
