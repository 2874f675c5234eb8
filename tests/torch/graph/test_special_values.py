"""NaN, infinities, signed zeros, subnormal and huge numbers through every differentiable operation
that PyTorch also has: values and gradients are PyTorch's, except where ``EXPECTED`` says otherwise
(docs/ops.md, "Special values", gives the reasons)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cutback
import cutback.nn.functional as F
from cutback import _native

TF = torch.nn.functional
TYPES = {"f32": np.float32, "f64": np.float64}


def scalars(dtype):
    info = np.finfo(dtype)
    return np.array(
        [
            np.nan, np.inf, -np.inf, 0.0, -0.0, info.smallest_subnormal, -info.smallest_subnormal,
            info.tiny / 3, info.tiny, info.max, -info.max, info.max / 2, 1.0, -1.0, 0.5, 2.0, -3.0,
            100.0, -100.0, 1e20, -1e20,
        ],
        dtype,
    )  # fmt: skip


def lines(dtype):
    """Returns rows of four in which special values meet ordinary ones, each other and equal
    ones."""
    big, nan, inf = np.finfo(dtype).max, np.nan, np.inf
    return np.array(
        [
            [nan, 1, 2, 3], [1, 2, nan, 0], [inf, 1, 2, 3], [-inf, -inf, -inf, -inf],
            [inf, inf, 1, 2], [-inf, 1, 2, 3], [1e20, -1e20, 1e20, -1e20], [0, -0.0, 0, -0.0],
            [1e-40, 2e-40, 3e-40, -1e-40], [inf, -inf, 0, 1], [5, 5, 5, 5], [3, 9, 9, 1],
            [big, 1, 1, 1], [-big, 0, 0, 0],
        ],
        dtype,
    )  # fmt: skip


def attend(x):
    """Attends with one query of one number per row, whose numbers are both its keys and its
    values."""
    rows = x.reshape((14, 1, 4, 1))
    query = np.ones((14, 1, 1, 1), {"f32": "f4", "f64": "f8"}[x.dtype])
    return F.scaled_dot_product_attention(query, rows, rows).reshape((14,))


def like(x, value):
    return np.full(4, value, {"f32": "f4", "f64": "f8"}[x.dtype])


ONE = {
    "neg": (lambda x: -x, torch.neg),
    "abs": (cutback.absolute, torch.abs),
    "sign": (cutback.sign, torch.sign),
    "floor": (cutback.floor, torch.floor),
    "exp": (cutback.exp, torch.exp),
    "log": (cutback.log, torch.log),
    "log1p": (cutback.log1p, torch.log1p),
    "sqrt": (cutback.sqrt, torch.sqrt),
    "rsqrt": (cutback.rsqrt, torch.rsqrt),
    "reciprocal": (cutback.reciprocal, torch.reciprocal),
    "square": (cutback.square, torch.square),
    "sin": (cutback.sin, torch.sin),
    "cos": (cutback.cos, torch.cos),
    "tanh": (cutback.tanh, torch.tanh),
    "sigmoid": (cutback.sigmoid, torch.sigmoid),
    "erf": (cutback.erf, torch.erf),
    "relu": (F.relu, TF.relu),
    "gelu": (F.gelu, TF.gelu),
    "gelu_tanh": (lambda x: F.gelu(x, "tanh"), lambda x: TF.gelu(x, approximate="tanh")),
    "silu": (F.silu, TF.silu),
    "cast": (lambda x: x.astype("f64") * 2.0, lambda x: x.double() * 2.0),
    "contiguous": (lambda x: x + 0.0, lambda x: x + 0.0),
}
TWO = {
    "add": (cutback.add, torch.add),
    "sub": (cutback.subtract, torch.sub),
    "mul": (cutback.multiply, torch.mul),
    "div": (cutback.divide, torch.div),
    "pow": (cutback.power, torch.pow),
    "maximum": (cutback.maximum, torch.maximum),
    "minimum": (cutback.minimum, torch.minimum),
    "where": (
        lambda x, y: cutback.where(x > y, x, y * y),
        lambda x, y: torch.where(x > y, x, y * y),
    ),
}
INDEX = np.array([[0, 1, 2, 0]])
ROWS = {
    "sum": (lambda x: cutback.sum(x, 1), lambda x: x.sum(1)),
    "mean": (lambda x: cutback.mean(x, 1), lambda x: x.mean(1)),
    "amax": (lambda x: cutback.max(x, 1), lambda x: x.amax(1)),
    "amin": (lambda x: cutback.min(x, 1), lambda x: x.amin(1)),
    "amax of all": (lambda x: cutback.max(x), lambda x: x.amax()),
    "softmax": (lambda x: F.softmax(x) * F.softmax(x), lambda x: TF.softmax(x, -1).square()),
    "log_softmax": (F.log_softmax, lambda x: TF.log_softmax(x, -1)),
    "attention": (attend, lambda x: (torch.softmax(x, -1) * x).sum(-1)),
    "layer_norm": (
        lambda x: F.layer_norm(x, like(x, 1.0), like(x, 0.5)),
        lambda x: TF.layer_norm(x, (4,), torch.ones(4, dtype=x.dtype), torch.full((4,), 0.5).to(x)),
    ),
    "rms_norm": (
        lambda x: F.rms_norm(x, like(x, 1.0), eps=1e-6),
        lambda x: TF.rms_norm(x, (4,), torch.ones(4, dtype=x.dtype), eps=1e-6),
    ),
    "batch_norm_apply": (  # read by a pointwise operation
        lambda x: -F.batch_norm(x.T, None, None, training=True),
        lambda x: -TF.batch_norm(x.T, None, None, training=True),
    ),
    "batch_norm": (
        lambda x: F.batch_norm(x.T, None, None, training=True),
        lambda x: TF.batch_norm(x.T, None, None, training=True),
    ),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, np.arange(14) % 4, reduction="none"),
        lambda x: TF.cross_entropy(x, torch.arange(14) % 4, reduction="none"),
    ),
    "dropout of nothing": (lambda x: F.dropout(x, 0.0), lambda x: TF.dropout(x, 0.0)),
    "dropout of all": (lambda x: F.dropout(x, 1.0), lambda x: TF.dropout(x, 1.0)),
    "tril": (cutback.tril, torch.tril),
    "pad": (lambda x: cutback.pad(x, 1), lambda x: TF.pad(x, (1, 1, 1, 1))),
    "slice": (lambda x: x[:, 1:3], lambda x: x[:, 1:3]),
    "reshape": (lambda x: x.reshape((4, 14)), lambda x: x.reshape(4, 14)),
    "transpose": (lambda x: x.T, lambda x: x.T),
    "expand": (
        lambda x: cutback.broadcast_to(x[:, None, :], (14, 3, 4)),
        lambda x: x[:, None].repeat(1, 3, 1),
    ),
    "concat": (lambda x: cutback.concatenate([x, x]), lambda x: torch.cat([x, x])),
    "embedding": (
        lambda x: F.embedding(np.array([1, 1, 2]), x),
        lambda x: TF.embedding(torch.tensor([1, 1, 2]), x),
    ),
    "gather": (
        lambda x: cutback.take_along_axis(x, INDEX, 0),
        lambda x: torch.gather(x, 0, torch.tensor(INDEX)),
    ),
    "matmul": (lambda x: x @ x.T, lambda x: x @ x.T),
    "max_pool2d": (
        lambda x: F.max_pool2d(x.reshape((1, 1, 14, 4)), (1, 2)),
        lambda x: TF.max_pool2d(x.reshape(1, 1, 14, 4), (1, 2)),
    ),
    "avg_pool2d": (
        lambda x: F.avg_pool2d(x.reshape((1, 1, 14, 4)), (1, 2)),
        lambda x: TF.avg_pool2d(x.reshape(1, 1, 14, 4), (1, 2)),
    ),
    "conv2d": (
        lambda x: F.conv2d(x.reshape((1, 1, 14, 4)), like(x, 1.0).reshape(1, 1, 1, 4)),
        lambda x: TF.conv2d(x.reshape(1, 1, 14, 4), torch.ones(1, 1, 1, 4, dtype=x.dtype)),
    ),
}
NOT_COMPARED = {
    "input", "full", "iota", "uniform", "scatter_add",  # these have no values
    "dropout",  # tested under other names above
    "batch_norm_stats",  # tested with what uses it
    "custom_vjp",  # the caller defines its gradient
    "conv2d_dgrad", "conv2d_wgrad", "embedding_bwd", "avg_pool2d_bwd",  # gradients
    "matmul_add",  # no public function makes it; test_slices.py covers it
}  # fmt: skip


def ours_of(f, args, backend):
    def both(*a):
        y = f(*a)
        return y.sum(), y

    step = cutback.value_and_grad(
        both, argnums=tuple(range(len(args))), has_aux=True, backend=backend
    )
    (_, y), gradients = step(*args)
    return [np.asarray(y), *map(np.asarray, gradients)]


def theirs_of(f, args):
    tensors = [torch.tensor(a, requires_grad=True) for a in args]
    y = f(*tensors)
    gradients = torch.autograd.grad(y.sum(), tensors, allow_unused=True)
    filled = [
        torch.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True)
    ]
    return [y.detach().numpy(), *(g.numpy(force=True) for g in filled)]


# What differs, and where: (operation, output) -> the inputs at which it may.
def huge(x):
    return np.abs(x) >= 1e19


def at_nan(x):
    return np.isnan(x)


EXPECTED = {
    ("abs", 1): at_nan,
    ("sign", 0): at_nan,
    ("log1p", 0): lambda x: np.abs(x) < np.finfo(x.dtype).tiny,
    ("rsqrt", 1): lambda x: (x == 0) & np.signbit(x),
    ("sigmoid", 0): lambda x: x == -100,
    ("sigmoid", 1): lambda x: x == -100,
    ("silu", 0): lambda x: x == -100,
    ("silu", 1): lambda x: x == -100,
    ("gelu", 0): lambda x: huge(x) | (x == -3),
    ("gelu_tanh", 1): huge,
}
ROWS_EXPECTED = {  # whole rows
    # the logarithm of a row's sum is lost next to a huge maximum
    "attention": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
    "layer_norm": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
    "rms_norm": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
    "cross_entropy": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
    "batch_norm": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
    "batch_norm_apply": lambda x: huge(x).any(1) & np.isfinite(x).all(1),
}


def differs(a, b, dtype, size=0.0):
    """True where two results differ by more than rounding; ``size``: of terms that cancel."""
    tolerance = 3e-5 if dtype is np.float32 else 1e-9
    room = size * 4 * np.finfo(dtype).eps
    return ~(np.isclose(a, b, rtol=tolerance, atol=room, equal_nan=True) | (a == b))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("backend", ["cpu", "ref"])
@pytest.mark.parametrize("type_name", TYPES)
def test_pointwise(type_name, backend):
    dtype = TYPES[type_name]
    one = scalars(dtype)
    x, y = (a.ravel().copy() for a in np.meshgrid(one, one))
    for table, args in ((ONE, [one]), (TWO, [x, y])):
        for name, (ours, theirs) in table.items():
            pairs = zip(ours_of(ours, args, backend), theirs_of(theirs, args), strict=True)
            for k, (a, b) in enumerate(pairs):
                allowed = EXPECTED.get((name, k), lambda x: np.zeros(x.shape, bool))(args[0])
                bad = differs(a, b, dtype) & ~allowed
                where = [tuple(v[bad][:3] for v in args), a[bad][:3], b[bad][:3]]
                assert not bad.any(), (name, "value" if k == 0 else f"gradient {k}", where)


@pytest.mark.parametrize("backend", ["cpu", "ref"])
@pytest.mark.parametrize("type_name", TYPES)
def test_rows(type_name, backend):
    dtype = TYPES[type_name]
    x = lines(dtype)
    for name, (ours, theirs) in ROWS.items():
        (y, dx), (ty, tdx) = ours_of(ours, [x], backend), theirs_of(theirs, [x])
        allowed = ROWS_EXPECTED.get(name, lambda x: np.zeros(len(x), bool))(x)
        bad = differs(dx, tdx, dtype, 1.0) & ~allowed[:, None]
        assert not bad.any(), (name, x[bad.any(1)], dx[bad.any(1)], tdx[bad.any(1)])
        bad = differs(y, ty, dtype, 1.0)
        if name.startswith("batch_norm"):
            bad = bad.T
        if allowed.any():
            bad = bad & (~allowed[:, None] if bad.ndim == 2 else ~allowed)
        assert not bad.any(), (name, "value", y[..., :], ty)


def bits(values):
    """Returns the bytes of an array, in which any two NaNs are equal."""
    return np.where(np.isnan(values), np.nan, values).astype(values.dtype).tobytes()


def test_backends_that_share_kernels_agree_in_bits():
    x = lines(np.float32)
    for name, (ours, _) in ROWS.items():
        for a, b in zip(ours_of(ours, [x], "cpu"), ours_of(ours, [x], "debug"), strict=True):
            assert bits(a) == bits(b), name


def test_every_differentiable_operation_is_here():
    table = {row[0] for row in _native.op_table() if row[-1] and not row[0].endswith("_bwd")}
    assert table <= set(ONE) | set(TWO) | set(ROWS) | NOT_COMPARED, table
