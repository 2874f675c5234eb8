"""docs/names.md: which names of NumPy, of `torch.nn.functional` and of JAX exist, and why others do
not. Written by gen_docs.py from `python/cutback/names.py`, `foreign.py` and
`nn/functional.py`."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/names.md"

NUMPY = """
abs absolute add all allclose any arange arccos arcsin arctan arctan2 argmax argmin argsort array
asarray astype atleast_1d atleast_2d average broadcast_to ceil clip concatenate convolve copy cos
cosh count_nonzero cross cumprod cumsum diag diagonal diff divide dot einsum empty equal exp
expand_dims expm1 eye flip floor floor_divide full full_like greater hstack histogram identity inner
interp isclose isfinite isinf isnan kron less linspace log log10 log1p log2 logaddexp logical_and
logical_not logical_or logical_xor matmul max maximum mean median meshgrid min minimum mod moveaxis
multiply nan_to_num negative nonzero not_equal ones ones_like outer pad percentile power prod ravel
reciprocal remainder repeat reshape roll round searchsorted sign sin sinh sort split sqrt square
squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose
tril triu trunc unique vdot var vstack where zeros zeros_like linalg random fft float32 int32
newaxis pi
"""
"""The names of NumPy that programs use most."""

TORCH = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool2d batch_norm
bilinear binary_cross_entropy binary_cross_entropy_with_logits celu conv1d conv2d conv3d
conv_transpose1d conv_transpose2d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss
dropout dropout1d dropout2d elu embedding embedding_bag fold gelu glu grid_sample group_norm
gumbel_softmax hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm
interpolate kl_div l1_loss layer_norm leaky_relu linear local_response_norm log_softmax logsigmoid
lp_pool2d margin_ranking_loss max_pool1d max_pool2d max_unpool2d mish mse_loss
multi_head_attention_forward multi_margin_loss nll_loss normalize one_hot pad pairwise_distance
pixel_shuffle poisson_nll_loss prelu relu relu6 rms_norm scaled_dot_product_attention selu sigmoid
silu smooth_l1_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold
triplet_margin_loss unfold upsample
"""
"""Those of torch.nn.functional."""

JAX = """
grad value_and_grad jit vmap jacfwd jacrev hessian vjp jvp linearize checkpoint stop_gradient
custom_vjp scan cond while_loop fori_loop logsumexp top_k tree
"""
"""Those of JAX's transformations."""

OTHER = {"trace": "`cutback.trace` traces a function; write `cutback.diagonal(x).sum(-1)`"}
"""Names of NumPy that mean something else here."""

HEAD = """\
# Names that exist, and names that do not

This page is written by `tools/gen_docs.py` from tables of the package; edit the tables. It lists
the most used names of NumPy, of `torch.nn.functional` and of JAX. [Coming from NumPy, PyTorch or
JAX](coming-from.md) shows what to write where spellings differ. The error for a name that does not
exist uses the wording of these tables.
"""


def _module(path: str) -> Any:
    """Returns a module of the package that imports nothing else from it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _assigned(path: str, name: str) -> Any:
    """Returns the value of a module's constant. The module is not imported, because checks run
    without the package."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)  # type: ignore[attr-defined]
    raise ValueError(f"{path} has no {name}")


def _section(title: str, wanted: list[str], have: set[str], why: dict[str, str]) -> list[str]:
    there = [name for name in wanted if name in have]
    missing = [name for name in wanted if name not in have]
    lines = [f"## {title}: {len(there)} of {len(wanted)}", ""]
    lines += [" ".join(f"`{name}`" for name in there), ""]
    if missing:
        lines += ["| missing | reason, or what to write |", "|---|---|"]
        lines += [f"| `{name}` | {why[name]} |" for name in missing]
        lines.append("")
    more = sorted(have - set(wanted))
    if more:
        lines += ["Others that exist: " + " ".join(f"`{name}`" for name in more), ""]
    return lines


def text() -> str:
    """Returns the page.

    Raises:
        KeyError: a missing name has no reason.
    """
    names = _module("python/cutback/names.py")
    foreign = _module("python/cutback/foreign.py")
    arrays = {*names.OPERATIONS, *names.CONSTANTS, "linalg", "random"}
    functional = set(_assigned("python/cutback/nn/functional.py", "__all__"))
    why = _assigned("python/cutback/nn/functional.py", "_NOT_BUILT")
    transforms = {*names.TRANSFORMS, "grad", "value_and_grad", "checkpoint", "tree"}
    jax = transforms | ({*JAX.split()} & arrays)
    lines = [HEAD]
    lines += _section("NumPy", NUMPY.split(), arrays, {**foreign.NOT_BUILT, **OTHER})
    lines += _section("torch.nn.functional", TORCH.split(), functional, why)
    lines += _section("JAX", JAX.split(), jax, foreign.NOT_BUILT)
    return "\n".join(lines).rstrip() + "\n"
