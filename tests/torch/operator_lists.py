"""Operators of PyTorch's database that are not recomputed when forced, by reason. The sweep
(``test_operators.py``) fails if the reason changes or disappears."""

from __future__ import annotations

_RANDOM = """
bernoulli cauchy exponential geometric log_normal multinomial nn_functional_alpha_dropout
nn_functional_dropout nn_functional_dropout2d nn_functional_dropout3d
nn_functional_feature_alpha_dropout_with_train nn_functional_fractional_max_pool2d
nn_functional_fractional_max_pool3d nn_functional_multi_head_attention_forward
nn_functional_rrelu nn_functional_scaled_dot_product_attention normal normal_in_place
normal_number_mean rand_like randint randint_like randn randn_like uniform
"""
"""It draws: a second draw would give other numbers, and move the generator."""

_VIEWS = """
H T as_strided as_strided_partial_views atleast_1d atleast_2d atleast_3d broadcast_tensors
broadcast_to chunk conj contiguous diagonal dsplit expand expand_as flatten hsplit imag
linalg_diagonal mH mT meshgrid_list_of_tensors meshgrid_variadic_tensors movedim narrow
nn_functional_feature_alpha_dropout_without_train permute positive ravel real reshape reshape_as
resolve_conj resolve_neg select slice split split_list_args split_with_sizes squeeze
squeeze_multiple t tensor_split transpose unbind unflatten unfold unsafe_chunk unsafe_split
unsqueeze view view_as view_as_complex view_as_real vsplit
"""
"""All that it makes are views of its argument, or the argument itself: nothing is saved for it, and
nothing need run again."""

_BROKEN = """
corrcoef cov linalg_lstsq linalg_lstsq_grad_oriented nn_functional_ctc_loss
nn_functional_gaussian_nll_loss nn_functional_one_hot sparse_mm_reduce sparse_sampled_addmm
to_sparse
"""
"""Dynamo does not take it into one graph (its size follows from values without a rule for it, or it
reads sparse tensors). Bits are compared all the same."""

_NOT_COMPILED = """
jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
jiterator_binary_return_by_ref jiterator_unary
"""
"""``aot_eager`` does not compile it either: Jiterator needs a GPU."""

_NO_TENSOR = """
allclose broadcast_shapes equal item
"""
"""Its result is a shape or a Python number."""

PINNED: dict[str, str | dict[str, str]] = {
    **dict.fromkeys(_RANDOM.split(), "random"),
    **dict.fromkeys(_VIEWS.split(), "view"),
    **dict.fromkeys(_BROKEN.split(), "graph break"),
    **dict.fromkeys(_NOT_COMPILED.split(), "not compiled"),
    **dict.fromkeys(_NO_TENSOR.split(), "no tensor"),
    "bfloat16": {"bf16": "view"},
    "cfloat": {"c64": "view"},
    "conj_physical": {"f32": "view", "bf16": "view"},
    "float": {"f32": "view"},
    "linalg_svd": {"c64": "graph break"},
    "pca_lowrank": {"f32": "random", "c64": "not compiled"},
    "svd": {"c64": "graph break"},
    "svd_lowrank": {"f32": "random", "c64": "not compiled"},
}
"""Operator -> reason, or -> reason by type of number: a conversion to the type at hand makes
nothing, nor does the conjugate of a real number; PyTorch checks derivatives of complex singular
vectors by looking at values."""

REFUSED: dict[str, str] = {}
"""What ``aot_eager`` compiles and Cutback refuses, with the reason: nothing."""

UNFILLED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()  # noqa: SIM905
)
"""Their results are whatever lies in memory: there are no bits to compare."""
