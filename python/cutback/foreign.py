"""Advice for names of NumPy, PyTorch and JAX that this package does not have, or has elsewhere.
Loaded only to raise an error."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module

_UNKNOWN_SIZE = "the size of its result depends on the values of elements"
_NEEDS = "it needs an operation that the core does not have"
NOT_BUILT = {
    "bincount": "use segment_sum(ones, x, n)", "compress": _UNKNOWN_SIZE,
    "extract": _UNKNOWN_SIZE, "fft": "there are no complex numbers",
    "flatnonzero": _UNKNOWN_SIZE, "histogram": "compare with the edges and sum",
    "nonzero": _UNKNOWN_SIZE, "unique": _UNKNOWN_SIZE,
    "argwhere": _UNKNOWN_SIZE,
    **dict.fromkeys(
        ("rfft", "ifft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "imag", "angle"),
        "there are no complex numbers",
    ),
    **dict.fromkeys(
        ("put", "putmask", "place", "copyto", "put_along_axis", "fill_diagonal"),
        "traced arrays cannot be written to; use cutback.where",
    ),
    "segment_max": _NEEDS, "segment_min": _NEEDS, "segment_prod": _NEEDS,
    "scan": "write a Python loop over the steps", "cond": "use cutback.where",
    "while_loop": "the number of rounds must be known: write a Python loop",
    "fori_loop": "write a Python loop", "jit": "cutback.compile(f, argnums=None) compiles f",
    "tensor": "cutback.asarray makes an array",
    "no_grad": "cutback.stop_gradient(x) makes x a constant to gradients",
    **{
        f"linalg.{name}": "singular vectors and eigenvectors need an operation that the core does "
        "not have; find the largest by power iteration"
        for name in ("eig", "eigh", "eigvals", "eigvalsh", "svd", "svdvals")
    },
    "linalg.qr": "factorize with cutback.linalg.cholesky(x.T @ x, upper=True)",
    "linalg.lstsq": "cutback.linalg.solve(x.T @ x, x.T @ y)",
    "linalg.pinv": "cutback.linalg.solve(x.T @ x, x.T)",
    "linalg.matrix_rank": "it needs singular values",
    "linalg.cond": "it needs singular values",
    "linalg.cho_factor": "(cutback.linalg.cholesky(a), True)",
    "linalg.cholesky_solve": "cutback.linalg.cho_solve((factor, True), b)",
    "tree_map": "write cutback.tree.map(f, x)", "tree_util": "write cutback.tree",
    "jacobian": "cutback.jacrev(f)", "linearize": "cutback.jvp(f, primals, tangents)",
    "save": "numpy.savez saves arrays", "load": "numpy.load loads arrays",
}  # fmt: skip
"""Names that users look for and that do not exist, each with the reason or an alternative."""

_SUM = "x + cutback.segment_sum(y, ids, n)"
WRITE = {
    # PyTorch
    "addmm": "b + x @ y", "baddbmm": "b + x @ y", "bmm": "x @ y", "mm": "x @ y", "mv": "x @ y",
    "cat": "cutback.concatenate([x, y], axis)", "concat": "cutback.concatenate([x, y], axis)",
    "chunk": "cutback.split(x, n, axis)", "clamp": "cutback.clip(x, low, high)",
    "clamp_max": "cutback.minimum(x, high)", "clamp_min": "cutback.maximum(x, low)",
    "data": "x", "gather": "cutback.take_along_axis(x, index, axis)", "index_add": _SUM,
    "index_put": _SUM, "index_select": "cutback.take(x, index, axis)",
    "is_tensor": "isinstance(x, cutback.Array)", "lerp": "x + weight * (y - x)",
    "masked_fill": "cutback.where(mask, value, x)", "masked_select": "cutback.where(mask, x, 0)",
    "multinomial": "cutback.random.categorical(logits)", "narrow": "x[:, start : start + length]",
    "permute": "x.transpose(axes)", "rand": "cutback.random.uniform(shape)",
    "rand_like": "cutback.random.uniform(x.shape)", "randn": "cutback.random.normal(shape)",
    "randn_like": "cutback.random.normal(x.shape)", "randperm": "cutback.random.permutation(n)",
    "repeat_interleave": "cutback.repeat(x, n, axis)", "rsub": "y - x", "scatter": _SUM,
    "scatter_add": _SUM, "scatter_reduce": _SUM, "t": "x.T", "Tensor": "cutback.Array",
    "unsqueeze": "cutback.expand_dims(x, axis)", "autograd": "cutback.grad(f)",
    "func": "cutback.vmap, cutback.grad or cutback.jvp", "manual_seed": "seed= of cutback.compile",
    "log_sigmoid": "cutback.nn.functional.logsigmoid(x)",
    # JAX
    "eval_shape": "cutback.trace(f, *arguments)", "remat": "cutback.checkpoint(f)",
    "vectorize": "cutback.vmap(f)", "make_jaxpr": "print(cutback.trace(f, *arguments))",
    "lax": "cutback.stop_gradient, cutback.where or a Python loop",
    "numpy": "cutback.exp for jnp.exp",
    "scipy": "cutback.logsumexp, cutback.erf or cutback.linalg",
    "special": "cutback.logsumexp, cutback.erf or cutback.sigmoid",
    # NumPy
    "append": "cutback.concatenate([x, y], axis)", "apply_along_axis": "cutback.vmap(f)",
    "argpartition": "cutback.argsort(x, axis)", "around": "cutback.round(x, decimals)",
    "array_equal": "(x == y).all()", "block": "cutback.concatenate for each axis",
    "broadcast_arrays": "cutback.broadcast_to(x, shape) for each", "choose": "cutback.where",
    "corrcoef": "y @ y.T with y = cutback.nn.functional.normalize(x - x.mean(1, keepdims=True))",
    "correlate": "cutback.convolve(x, y[::-1], mode)",
    "cov": "y @ y.T / (n - 1) with y = x - x.mean(1, keepdims=True)",
    "deg2rad": "x * (cutback.pi / 180)", "degrees": "x * (180 / cutback.pi)",
    "delete": "cutback.concatenate of slices",
    "digitize": "cutback.searchsorted(edges, x, side='right')",
    "fabs": "cutback.absolute(x)", "fmax": "cutback.maximum(x, y), where NaN wins",
    "fmin": "cutback.minimum(x, y), where NaN wins", "float_power": "cutback.power(x, y)",
    "gradient": "cutback.diff(x)", "heaviside": "cutback.where(x > 0, 1.0, 0.0)",
    "insert": "cutback.concatenate of slices", "ldexp": "x * 2.0**n",
    "modf": "cutback.trunc(x) and x - cutback.trunc(x)",
    "nanmax": "cutback.where(cutback.isnan(x), -cutback.inf, x).max(axis)",
    "nanmean": "cutback.nansum(x, axis) / cutback.sum(~cutback.isnan(x), axis)",
    "nanmin": "cutback.where(cutback.isnan(x), cutback.inf, x).min(axis)",
    "nanstd": "cutback.sqrt(cutback.nansum((x - mean) ** 2) / cutback.sum(~cutback.isnan(x)))",
    "nanvar": "cutback.nansum((x - mean) ** 2) / cutback.sum(~cutback.isnan(x))",
    "partition": "cutback.sort(x, axis)", "piecewise": "cutback.where",
    "real": "x", "rollaxis": "cutback.moveaxis(x, axis, start)",
    "polyval": "a loop over y = y * x + coefficient",
    "rad2deg": "x * (180 / cutback.pi)", "radians": "x * (cutback.pi / 180)",
    "select": "cutback.where",
    "sinc": "cutback.where(x == 0, 1, cutback.sin(y) / y) with y = cutback.where(x == 0, 1, x)",
    "sliding_window_view": "x[:, np.arange(n)[:, None] + np.arange(window)]",
    "vander": "cutback.stack([x**i for i in range(n)], -1)",
    "trapezoid": "(x[1:] + x[:-1]).sum() / 2 * dx", "trapz": "(x[1:] + x[:-1]).sum() / 2 * dx",
}  # fmt: skip
"""For names of other libraries, the code that does the same with this package."""

_ARRAYS = "parameters are NumPy arrays in arguments of the function"
_LAYER = f"layers are functions, such as cutback.nn.functional.linear(x, w, b); {_ARRAYS}"
_KEYS = "no key is needed: each call draws new numbers; seed= of cutback.compile repeats a run"
_MODE = "only cutback.grad, cutback.compile and their like compute gradients"
WHY = {
    "Parameter": _ARRAYS, "initializers": _ARRAYS, "init": _ARRAYS,
    **dict.fromkeys(
        ("Module", "Linear", "Conv1d", "Conv2d", "Embedding", "LayerNorm", "BatchNorm2d", "ReLU",
         "Sequential", "Dropout", "LSTM", "GRU", "ModuleList", "Dense", "Conv", "MSELoss",
         "CrossEntropyLoss", "MultiheadAttention", "TransformerEncoderLayer"),
        _LAYER,
    ),
    **dict.fromkeys(
        ("PRNGKey", "key", "fold_in", "default_rng", "random.split", "random.seed"), _KEYS
    ),
    **dict.fromkeys(("enable_grad", "inference_mode", "set_grad_enabled"), _MODE),
    **dict.fromkeys(
        ("lgamma", "gammaln", "digamma", "gamma", "erfinv", "erfc", "i0", "betainc", "ndtri"),
        _NEEDS,
    ),
    "zero_grad": "steps keep no gradients between calls",
    "set_default_dtype": "operations keep the dtype of their arguments",
    "device": "all arrays of a step are on the device passed to cutback.compile",
    "device_put": "steps take NumPy arrays on every device",
    "debug": "return the value from the function, with has_aux=True",
    "pmap": "a step runs on one device", "associative_scan": "write a Python loop over the steps",
    "logcumsumexp": "with m = x.max(), write cutback.log(cutback.cumsum(cutback.exp(x - m))) + m",
    "optim.chain": "optimizers have options instead: clipping, decay, a schedule as lr",
    "optim.apply_updates": "a step compiled with an optimizer updates the parameters itself",
    "optim.lr_scheduler": "write cutback.optim.schedules",
}  # fmt: skip
"""Reasons for further names that do not exist."""

PLACES = {
    "cutback.random": "frontend.random", "cutback.linalg": "frontend.linalg",
    "cutback.nn.functional": "nn.functional", "cutback.optim": "optim",
    "cutback.optim.schedules": "optim.schedules", "cutback.tree": "tree",
}  # fmt: skip


@cache
def _known() -> dict[str, str]:
    """Returns the full name of each name in the package. If several are equal, that of an operation
    wins."""
    found: dict[str, str] = {}
    for place, module in PLACES.items():
        for name in getattr(import_module(f"cutback.{module}"), "__all__", ()):
            found.setdefault(name, f"{place}.{name}")
    package = import_module("cutback")
    return found | {name: f"cutback.{name}" for name in dir(package) if name[0] != "_"}


def known(name: str) -> str | None:
    """Returns the full name of ``name``, which may be in another module or differ in case; None if
    it does not exist."""
    names = _known()
    lower = {key.lower(): value for key, value in names.items()}
    return names.get(name) or lower.get(name.lower())


def advice(name: str, module: str = "cutback") -> str | None:
    """Says what to write instead of a name that ``module`` does not have, or why it does not exist.
    Returns None if no name is similar."""
    reasons = {**NOT_BUILT, **WHY}
    inner = f"{module.rpartition('.')[2]}.{name}"
    plain = name.rstrip("_")
    if inner in reasons or name in reasons:
        return reasons.get(inner) or reasons[name]
    found = WRITE.get(plain) or known(plain)
    if found is not None:
        return (
            f"write {found}"
            if name == plain
            else f"no operation works in place; write x = {found}(x)"
        )
    close = difflib.get_close_matches(plain, _known(), 1, 0.8)
    return f"did you mean {_known()[close[0]]}?" if close else None


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that ``module`` does not have."""
    found = None if name.startswith("__") else advice(name, module)
    if found is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    inner = f"linalg.{name}" if module == "cutback.linalg" else name
    shown = "cutback" if module == "cutback.linalg" else module
    return AttributeError(f"{shown} has no {inner}: {found}", name=name)
