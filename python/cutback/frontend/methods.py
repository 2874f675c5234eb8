"""Methods of traced arrays that call the operation of the same name, and errors for methods that
only other libraries have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .. import dtypes, names
from ..source import located

_OURS = {
    "abs": "cutback.absolute(x)",
    "at": "cutback.where(mask, value, x), or x + cutback.segment_sum(y, ids, n) for .at[].add",
    "backward": "cutback.grad(f) or cutback.compile(f)", "bfloat16": "x.astype('bf16')",
    "bool": "x.astype(bool)", "chunk": "cutback.split(x, n, axis)", "contiguous": "x",
    "cpu": "x", "cuda": "cutback.compile(f, backend='cuda')",
    "detach": "cutback.stop_gradient(x)",
    "dim": "x.ndim", "double": "x.astype('f64')",
    "eq": "x == y", "exp": "cutback.exp(x)", "expand": "cutback.broadcast_to(x, shape)",
    "float": "x.astype('f32')", "half": "x.astype('f16')", "int": "x.astype('i32')",
    "log": "cutback.log(x)", "log_softmax": "cutback.nn.functional.log_softmax(x, dim)",
    "long": "x.astype('i64')", "masked_fill": "cutback.where(mask, value, x)",
    "masked_fill_": "cutback.where(mask, value, x)", "matmul": "x @ y", "mul": "x * y",
    "norm": "cutback.linalg.norm(x)", "numel": "x.size", "numpy": "the result of the function",
    "permute": "x.transpose(axes)", "pow": "x ** n", "relu": "cutback.nn.functional.relu(x)",
    "requires_grad": "argnums=, which names the arguments to differentiate by",
    "requires_grad_": "argnums=, which names the arguments to differentiate by",
    "sigmoid": "cutback.sigmoid(x)", "softmax": "cutback.nn.functional.softmax(x, dim)",
    "split": "cutback.split(x, n, axis)", "sqrt": "cutback.sqrt(x)", "sub": "x - y",
    "tanh": "cutback.tanh(x)", "to": "x.astype(dtype)", "tolist": "the result of the function",
    "tril": "cutback.tril(x, k)", "triu": "cutback.triu(x, k)", "type": "x.astype(dtype)",
    "unsqueeze": "cutback.expand_dims(x, axis)", "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)", "zero_": "cutback.zeros_like(x)", "grad": "cutback.grad(f)",
    "add": "x + y", "add_": "x + y", "mul_": "x * y", "sub_": "x - y", "div": "x / y",
    "nonzero": "cutback.where(mask, x, 0); the number of elements found is not known",
    "tobytes": "the result of the function", "fill": "cutback.full_like(x, value)",
    "topk": "cutback.top_k(x, k)", "flip": "cutback.flip(x, axis)",
    "index_add": "x + cutback.segment_sum(y, ids, n)",
    "index_add_": "x + cutback.segment_sum(y, ids, n)",
    "scatter_add": "x + cutback.segment_sum(y, ids, n) for slices",
    "scatter_add_": "x + cutback.segment_sum(y, ids, n) for slices",
    "logsumexp": "cutback.logsumexp(x, axis)", "gather": "cutback.take_along_axis(x, index, axis)",
}  # fmt: skip


class Methods:
    """The methods of :class:`cutback.Array` that call the operation of the same name."""

    __slots__ = ()
    if TYPE_CHECKING:
        dtype: dtypes.DType
        shape: tuple[int, ...]

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return names.operation(name)(self, *args, **kwargs)

    @property
    def mT(self) -> Self:  # noqa: N802
        """The array with its last two axes exchanged."""
        return self._call("swapaxes", -1, -2)  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def all(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Returns True where no element over ``axis`` (None: all axes) is zero."""
        return self._call("all", axis, keepdims)  # type: ignore[no-any-return]

    def any(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Returns True where any element over ``axis`` (None: all axes) is not zero."""
        return self._call("any", axis, keepdims)  # type: ignore[no-any-return]

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Returns the index (i64) of the first smallest element along ``axis``."""
        return self._call("argmin", axis, keepdims)  # type: ignore[no-any-return]

    def argsort(self, axis: int | None = -1) -> Self:
        """Returns the indices (i64) that sort the array along ``axis``."""
        return self._call("argsort", axis)  # type: ignore[no-any-return]

    def copy(self) -> Self:
        """Returns the array itself, because traced arrays cannot be written to."""
        return self._call("copy")  # type: ignore[no-any-return]

    def cumprod(self, axis: int | None = None) -> Self:
        """Returns the cumulative product along ``axis``."""
        return self._call("cumprod", axis)  # type: ignore[no-any-return]

    def cumsum(self, axis: int | None = None) -> Self:
        """Returns the cumulative sum along ``axis``."""
        return self._call("cumsum", axis)  # type: ignore[no-any-return]

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """Returns the elements with ``j = i + offset`` along two axes."""
        return self._call("diagonal", offset, axis1, axis2)  # type: ignore[no-any-return]

    def dot(self, other: Any) -> Self:
        """Returns the sum of products over the last axis and the second to last of ``other``."""
        return self._call("dot", other)  # type: ignore[no-any-return]

    def prod(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Returns the product over axes."""
        return self._call("prod", axis, keepdims)  # type: ignore[no-any-return]

    def repeat(self, repeats: Any, axis: int | None = None) -> Self:
        """Repeats each element, or each slice along ``axis``."""
        return self._call("repeat", repeats, axis)  # type: ignore[no-any-return]

    def round(self, decimals: int = 0) -> Self:
        """Rounds to the nearest multiple of 10**-decimals; halves are rounded to even."""
        return self._call("round", decimals)  # type: ignore[no-any-return]

    def __round__(self, ndigits: int | None = None) -> Self:
        return self.round(ndigits or 0)

    def __mod__(self, other: Any) -> Self:
        return self._call("remainder", other)  # type: ignore[no-any-return]

    def __rmod__(self, other: Any) -> Self:
        return names.operation("remainder")(other, self)  # type: ignore[no-any-return]

    def __floordiv__(self, other: Any) -> Self:
        return self._call("floor_divide", other)  # type: ignore[no-any-return]

    def __rfloordiv__(self, other: Any) -> Self:
        return names.operation("floor_divide")(other, self)  # type: ignore[no-any-return]

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self._call("divmod", other)  # type: ignore[no-any-return]

    def searchsorted(self, v: Any, side: str = "left") -> Self:
        """Returns the indices before which the elements of ``v`` would be inserted."""
        return self._call("searchsorted", v, side)  # type: ignore[no-any-return]

    def sort(self, axis: int | None = -1) -> Self:
        """Returns a new array with the elements in ascending order, like ``numpy.sort``."""
        return self._call("sort", axis)  # type: ignore[no-any-return]

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """Returns the sum of a diagonal."""
        return self.diagonal(offset, axis1, axis2)._call("sum", -1)  # type: ignore[no-any-return]

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Returns the module of operations with the names of the array API standard."""
        from importlib import import_module

        return import_module("cutback.frontend.namespace")

    if not TYPE_CHECKING:  # type checkers must report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OURS:
                raise AttributeError(
                    located(f"a traced array has no .{name}; write {_OURS[name]}"), name=name
                )
            if not name.startswith("_"):
                from ..foreign import advice  # here, because only errors need it

                if (found := advice(name)) is not None:
                    raise AttributeError(
                        located(f"a traced array has no .{name}: {found}"), name=name
                    )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
