"""Transformations of functions, with the names and arguments of JAX.

Inside a traced function their results are traced arrays. Outside, they compile the functions that
they need and return NumPy arrays. ``grad`` and ``value_and_grad`` are in
:mod:`cutback.frontend.training`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import numpy as np

from .. import dtypes, tree
from ..source import located
from .batching import Batch
from .gradients import Pullback, as_tuple, check_argnums, lifted
from .graph import composing, current, is_tracing, tracing
from .ops import stack, zeros_like
from .rearrange import eye
from .tracer import Array
from .training import compile as compile_step

__all__ = ["custom_vjp", "hessian", "jacfwd", "jacrev", "jvp", "stop_gradient", "vjp", "vmap"]


def stop_gradient(x: Any) -> Any:
    """Returns the arrays of a tree unchanged, but as constants for gradients: no gradient flows
    through them. Source: ``jax.lax.stop_gradient``; PyTorch's ``x.detach()``.

    Example:
        >>> def loss(x):
        ...     return (x * cutback.stop_gradient(x)).sum()
        >>> cutback.grad(loss)(np.array([2.0, 3.0])).tolist()
        [2.0, 3.0]
    """
    if not is_tracing():
        return x
    leaves, structure = tree.flatten(lifted(x))
    stopped = [leaf._apply("stop_gradient") if isinstance(leaf, Array) else leaf for leaf in leaves]
    return tree.unflatten(structure, stopped)


def _arrays(values: Any) -> Any:
    """Replaces the numbers of a tree by arrays, because a step would treat numbers as constants."""
    leaves, structure = tree.flatten(values)
    numbers = [np.asarray(x) if isinstance(x, (int, float)) else x for x in leaves]
    return tree.unflatten(structure, numbers)


def _value_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function without gradients."""
    return compile_step(function, argnums=None)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns ``(f(*primals), pull)``, where ``pull(g)`` returns the product of ``g`` and the
    Jacobian: the gradients of the sum of ``g * f(*primals)`` with respect to each argument, as a
    tuple.

    ``g`` is nested like the value and has its shapes. With ``has_aux``, ``f`` returns (value, aux),
    and the result is (value, pull, aux). Outside a traced function, ``pull`` runs ``f`` again.
    Source: ``jax.vjp``.

    Example:
        >>> value, pull = cutback.vjp(lambda x: x ** 2, np.arange(3.0))
        >>> pull(np.ones(3))[0].tolist()
        [0.0, 2.0, 4.0]

    Raises:
        TypeError: if an argument is not floating-point.
        ValueError: if ``g`` is not nested like the value, or differs in a shape or type.
    """
    if not callable(f):
        raise TypeError(f"vjp: expected a function, got {f!r}")
    if is_tracing():
        found = Pullback(f, primals, has_aux, "vjp")
        return (found.value, found, found.aux) if has_aux else (found.value, found)
    primals = _arrays(primals)
    value = _value_of(lambda given: f(*given))(primals)
    run = _value_of(lambda given, g: Pullback(f, given, has_aux, "vjp")(g))

    def pull(g: Any) -> tuple[Any, ...]:
        return run(primals, _arrays(g))  # type: ignore[no-any-return]

    return (value[0], pull, value[1]) if has_aux else (value, pull)


def _placeholder(y: Array) -> Array:
    """Returns zeros that represent the gradient of ``y`` and are shared with no other value."""
    graph = current()
    return graph.alias(graph.full(y.shape, 0.0, y.dtype))


def _push(f: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool) -> Any:
    """Computes a jvp. The result of a vjp is linear in the gradient that is pulled back, so its
    derivative with respect to that gradient is the jvp."""
    graph = current()
    with composing():  # so that attention and its derivative share their products
        found = Pullback(f, primals, has_aux, "jvp")
    leaves, structure = tree.flatten(tangents)
    if structure != tree.flatten(primals)[1]:
        raise ValueError(located("jvp: the tangents must be nested like the primals"))
    given = [
        graph.full((), x, y.dtype) if type(x) in (int, float) else graph.lift(x)
        for x, y in zip(leaves, found.wrt, strict=True)
    ]
    for x, tangent in zip(found.wrt, given, strict=True):
        if (x.shape, x.dtype) != (tangent.shape, tangent.dtype):
            raise ValueError(
                located(
                    f"jvp: the tangent of {x.dtype}{list(x.shape)} must have its shape and type, "
                    f"but is {tangent.dtype}{list(tangent.shape)}"
                )
            )
    for y in found.results:
        if y.dtype not in dtypes.FLOATS:
            raise TypeError(located(f"jvp: the function returned {y.dtype}, which has no tangent"))
    pulled = [_placeholder(y) for y in found.results]
    pushed = graph.gradients(found.pull(pulled), given, pulled)
    rows = [zeros_like(y) if t is None else t for y, t in zip(found.results, pushed, strict=True)]
    out = tree.unflatten(found.value_tree, rows)
    return (found.value, out, found.aux) if has_aux else (found.value, out)


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Returns ``(f(*primals), tangent)``: the value, and its derivative in the direction
    ``tangents``, a tuple that is nested like ``primals``.

    It is computed as the gradient of a vjp, and takes up to about three times as long as ``f``.
    Attention without dropout is composed of products and softmax, because the tangent reads their
    results, so its weights exist in memory. With ``has_aux``, ``f`` returns (value, aux), and the
    result is (value, tangent, aux). Source: ``jax.jvp``.

    Example:
        >>> value, slope = cutback.jvp(cutback.sin, (np.zeros(3),), (np.ones(3),))
        >>> slope.tolist()
        [1.0, 1.0, 1.0]

    Raises:
        TypeError: if an argument or result is not floating-point, or ``primals`` or ``tangents`` is
            not a sequence.
        ValueError: if the tangents differ from the arguments in structure, shape or type.
    """
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(
                located(
                    f"jvp: {name} must be a tuple with one for each argument, not {given!r:.60}"
                )
            )
    primals, tangents = tuple(primals), tuple(tangents)
    if is_tracing():
        return _push(f, primals, tangents, has_aux)
    step = _value_of(lambda given, along: _push(f, given, along, has_aux))
    return step(_arrays(primals), _arrays(tangents))


def _of_arguments(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: tuple[int, ...]
) -> Callable[..., Any]:
    """Returns ``f`` as a function of only the arguments ``argnums``."""
    check_argnums(argnums, len(args))

    def of_some(*chosen: Any) -> Any:
        values = list(args)
        for n, x in zip(argnums, chosen, strict=True):
            values[n] = x
        return f(*values, **kwargs)

    return of_some


def _rows(n: int, pull: Callable[[Array], list[Array]], dtype: Any, shape: tuple[int, ...]) -> Any:
    """Calls ``pull`` with each unit vector, and stacks the results along a first axis."""
    units = eye(n, dtype=dtype)
    found = [pull(units[i].reshape(shape)) for i in range(n)]
    return [stack(list(column)) for column in zip(*found, strict=True)]


def _jacobian(
    f: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    rows_of: Callable[..., Any],
) -> Callable[..., Any]:
    chosen = as_tuple(argnums)
    single = isinstance(argnums, int)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        args = lifted(args)
        of_some = _of_arguments(f, args, lifted(kwargs), chosen)
        value_tree, rows, below, aux = rows_of(of_some, tuple(args[n] for n in chosen), has_aux)
        nested = []
        for row in rows:
            parts = tree.unflatten(below, row)
            nested.append(parts[0] if single else parts)
        result = tree.unflatten(value_tree, nested)
        return (result, aux) if has_aux else result

    update_wrapper(jacobian, f, updated=())
    return compile_step(jacobian, argnums=None)


def _reverse(of_some: Callable[..., Any], primals: Any, has_aux: bool) -> Any:
    found = Pullback(of_some, primals, has_aux, "jacrev")
    rows = []
    for i, y in enumerate(found.results):
        if y.dtype not in dtypes.FLOATS:
            raise TypeError(
                located(f"jacrev: the function returned {y.dtype}, which has no gradient")
            )

        def pull(unit: Array, i: int = i) -> list[Array]:
            given = [unit if k == i else zeros_like(z) for k, z in enumerate(found.results)]
            return found.pull(given)

        columns = _rows(y.size, pull, y.dtype, y.shape)
        rows.append(
            [c.reshape((*y.shape, *x.shape)) for c, x in zip(columns, found.wrt, strict=True)]
        )
    return found.value_tree, rows, tree.flatten(primals)[1], found.aux


def jacrev(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the Jacobian of ``f``: for each result and each argument, an
    array with the axes of the result followed by those of the argument.

    One gradient is computed for each element of the results, so these should be small. ``argnums``
    is the position, or positions, of the arguments to differentiate by. With ``has_aux``, ``f``
    returns (value, aux), and the function returns (Jacobian, aux). Source: ``jax.jacrev``.

    Example:
        >>> cutback.jacrev(lambda x: x ** 2)(np.arange(3.0)).tolist()
        [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]

    Raises:
        TypeError: if an argument or result is not floating-point.
    """
    return _jacobian(f, argnums, has_aux, _reverse)


def _forward(of_some: Callable[..., Any], primals: Any, has_aux: bool) -> Any:
    leaves, structure = tree.flatten(primals)
    value_tree, aux, rows = None, None, []
    for i, x in enumerate(leaves):

        def push(unit: Array, i: int = i) -> list[Array]:
            nonlocal value_tree, aux
            along = [unit if k == i else zeros_like(z) for k, z in enumerate(leaves)]
            out = _push(of_some, primals, tree.unflatten(structure, along), has_aux)
            tangents, value_tree = tree.flatten(out[1])
            aux = out[2] if has_aux else None
            return tangents

        columns = _rows(x.size, push, x.dtype, x.shape)
        rows.append([_last(c, x.shape) for c in columns])
    return value_tree, [list(row) for row in zip(*rows, strict=True)], structure, aux


def _last(column: Array, shape: tuple[int, ...]) -> Array:
    """Moves the first axis to the end and splits it into the axes of ``shape``."""
    moved = column.transpose((*range(1, column.ndim), 0))
    return moved.reshape((*moved.shape[:-1], *shape))


def jacfwd(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the Jacobian of ``f``, like :func:`jacrev`, but with one
    :func:`jvp` for each element of the arguments. It suits functions with few inputs and many
    outputs. ``argnums`` and ``has_aux`` are those of :func:`jacrev`. Source: ``jax.jacfwd``.

    Example:
        >>> cutback.jacfwd(cutback.sin)(np.zeros(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return _jacobian(f, argnums, has_aux, _forward)


def hessian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the second derivatives of ``f``: the Jacobian of its
    Jacobian. One gradient is computed for each element of the first derivatives, so arguments
    should be small. ``argnums`` and ``has_aux`` are those of :func:`jacrev`. Source:
    ``jax.hessian``.

    Example:
        >>> cutback.hessian(lambda x: (x ** 3).sum())(np.arange(2.0)).tolist()
        [[0.0, 0.0], [0.0, 6.0]]
    """
    return jacrev(jacrev(f, argnums, has_aux), argnums, has_aux)


class custom_vjp:  # noqa: N801  # JAX's name
    """The function ``fun`` with a custom gradient, which ``defvjp`` sets. Arguments at the
    positions ``nondiff_argnums`` get no gradient. Source: ``jax.custom_vjp``.

    Example:
        >>> @cutback.custom_vjp
        ... def clip_gradient(x):
        ...     return x
        >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, g: (cutback.clip(g, -1, 1),))

    Raises:
        TypeError: if ``fun`` is not a function.
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        if not callable(fun):
            raise TypeError(f"custom_vjp: expected a function, got {fun!r}")
        self.__wrapped__ = fun
        self.__name__ = getattr(fun, "__name__", type(fun).__name__)
        self.__doc__ = fun.__doc__
        self.nondiff_argnums = tuple(nondiff_argnums)
        self._fwd: Callable[..., Any] | None = None
        self._bwd: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Sets the gradient rule. ``fwd(*args)`` returns (value, residuals). ``bwd(residuals, g)``
        returns a tuple with the gradient of each argument, or None for a gradient of zero.
        Arguments in ``nondiff_argnums`` are passed to ``bwd`` first and have no gradient."""
        self._fwd, self._bwd = fwd, bwd

    def __call__(self, *args: Any) -> Any:
        """Calls the function; its gradient is the one that ``defvjp`` set. Returns its value.

        Raises:
            ValueError: if ``defvjp`` was not called, or ``bwd`` returned a gradient that is not
                nested like its argument, or has another shape or dtype.
            TypeError: if a result is not floating-point, ``fwd`` did not return a pair, or ``bwd``
                did not return a tuple with an entry for each argument.
        """
        if not is_tracing():
            return compile_step(self, argnums=None)(*args)
        if self._fwd is None or self._bwd is None:
            raise ValueError(
                located(f"custom_vjp: {self.__name__} has no gradient; call its defvjp(fwd, bwd)")
            )
        args = tuple(x if i in self.nondiff_argnums else lifted(x) for i, x in enumerate(args))
        graph = current()
        result = self._fwd(*args)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                located(f"custom_vjp: fwd of {self.__name__} must return a pair (value, residuals)")
            )
        leaves, structure = tree.flatten(result[0])
        values = [graph.lift(y) for y in leaves]
        for y in values:
            if y.dtype not in dtypes.FLOATS:
                raise TypeError(
                    located(f"custom_vjp: {self.__name__} returned {y.dtype}; it must be floating")
                )
        placeholders = [_placeholder(y) for y in values]
        fixed = [args[n] for n in self.nondiff_argnums]
        given = self._bwd(*fixed, result[1], tree.unflatten(structure, placeholders))
        pairs = self._pairs(args, given)
        ins = (*placeholders, *(x for x, _ in pairs), *(dx for _, dx in pairs))
        marked = [
            graph.apply("custom_vjp", (y, *ins), {"index": i, "n_outs": len(values)})[0]
            for i, y in enumerate(values)
        ]
        return tree.unflatten(structure, marked)

    def _pairs(self, args: tuple[Any, ...], given: Any) -> list[tuple[Array, Array]]:
        """Returns pairs of the arrays among the arguments and their gradients."""
        wanted = [x for i, x in enumerate(args) if i not in self.nondiff_argnums]
        if not isinstance(given, (tuple, list)) or len(given) != len(wanted):
            raise TypeError(
                located(
                    f"custom_vjp: bwd of {self.__name__} must return a tuple of {len(wanted)}, one "
                    f"gradient for each argument, not {given!r:.60}"
                )
            )
        pairs = []
        for x, dx in zip(wanted, given, strict=True):
            leaves, structure = tree.flatten(x)
            for leaf, gradient in zip(leaves, tree.beside(structure, dx, "gradients"), strict=True):
                if not isinstance(leaf, Array) or leaf.dtype not in dtypes.FLOATS:
                    continue
                if gradient is None:
                    continue
                row = current().lift(gradient)
                if (row.shape, row.dtype) != (leaf.shape, leaf.dtype):
                    raise ValueError(
                        located(
                            f"custom_vjp: bwd of {self.__name__} returned "
                            f"{row.dtype}{list(row.shape)} for an argument "
                            f"{leaf.dtype}{list(leaf.shape)}"
                        )
                    )
                pairs.append((leaf, row))
        return pairs


def _axes_of(structure: tree.Tree, axes: Any, what: str) -> list[int | None]:
    """Returns the axis of each leaf. ``axes`` is one axis for all leaves, or nested like the
    tree."""
    if axes is None or isinstance(axes, int):
        return [axes] * tree.count(structure)
    given = tree.parts(axes)
    if given is None or len(structure) < 3 or given[0] != structure[2]:
        raise ValueError(
            located(f"vmap: {what}={axes!r:.60} is not nested like the value it belongs to")
        )
    rows = zip(structure[3], given[1], strict=True)
    return [axis for below, one in rows for axis in _axes_of(below, one, what)]


def _moved(x: Array, source: int, target: int) -> Array:
    rest = [a for a in range(x.ndim) if a != source % x.ndim]
    rest.insert(target % x.ndim, source % x.ndim)
    return x if rest == list(range(x.ndim)) else x.transpose(rest)


def _examples(leaves: list[Any], axes: list[int | None], names: list[str], size: int | None) -> int:
    """Returns the number of examples."""
    found = {} if size is None else {"axis_size": size}
    for x, axis, name in zip(leaves, axes, names, strict=True):
        if axis is None or (not isinstance(x, Array) and not isinstance(x, (int, float))):
            continue
        shape = getattr(x, "shape", ())
        if not -len(shape) <= axis < len(shape):
            raise ValueError(
                located(
                    f"vmap: {name} has the shape {list(shape)} and no axis {axis}; write None in "
                    "in_axes for an argument that all examples share"
                )
            )
        found[f"axis {axis} of {name}"] = shape[axis]
    if not found:
        raise ValueError(located("vmap: no argument has an axis of examples; pass axis_size="))
    first = next(iter(found.values()))
    for name, n in found.items():
        if n != first:
            raise ValueError(
                located(
                    f"vmap: axes of examples differ: {next(iter(found))} has "
                    f"{first}, but {name} has {n}"
                )
            )
    return first


def vmap(
    fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """Returns a function that maps ``fun`` over an axis of its arguments; each operation of ``fun``
    becomes one operation on the whole batch.

    ``in_axes`` gives the axis of each positional argument: one axis for all arguments, a sequence,
    or axes nested like the arguments; None means that all examples share the argument. Keyword
    arguments have their examples along axis 0. ``out_axes`` gives the axes of the results in the
    same way. ``axis_size``, the number of examples, is only needed if no argument has an axis of
    examples. Random numbers differ between examples. There are rules for pointwise operations,
    reductions, products, convolutions, pooling, indexing, norms, losses, attention and random
    numbers. Source: ``jax.vmap``.

    Example:
        >>> each = cutback.vmap(cutback.grad(loss), in_axes=(None, 0, 0))  # one for each example
        >>> gradients = each(params, x, y)

    Raises:
        ValueError: if arguments have different numbers of examples, or lack the axis.
        TypeError: if ``fun`` is not a function.
        NotImplementedError: if an operation has no rule; the error names it.
    """
    if not callable(fun):
        raise TypeError(f"vmap: expected a function, got {fun!r}")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise ValueError(
                located(f"vmap: in_axes has {len(in_axes)} entries for {len(args)} arguments")
            )
        leaves, structure = tree.flatten((lifted(args), lifted(kwargs)))
        below, named = structure[3]
        given = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        axes = _axes_of(below, given, "in_axes") + _axes_of(named, 0, "in_axes")
        names = tree.names(below, "args") + tree.names(named, "kwargs")
        batch = Batch(current(), _examples(leaves, axes, names, axis_size))
        values = [
            x if axis is None or not isinstance(x, Array) else batch.one(_moved(x, axis, 0))
            for x, axis in zip(leaves, axes, strict=True)
        ]
        inner_args, inner_kwargs = tree.unflatten(structure, values)
        with tracing(batch):  # type: ignore[arg-type]
            result = fun(*inner_args, **inner_kwargs)
        leaves, structure = tree.flatten(result)
        rows = []
        for x, axis in zip(leaves, _axes_of(structure, out_axes, "out_axes"), strict=True):
            y = batch.lift(x)
            if axis is not None and not -y.ndim <= axis + (axis < 0) <= y.ndim:
                raise ValueError(
                    located(
                        f"vmap: out_axes={axis} is not an axis of a result of shape {list(y.shape)}"
                    )
                )
            if axis is None:
                if batch.is_batched(y):
                    raise ValueError(
                        located(
                            "vmap: out_axes=None needs a result that is the same for all examples"
                        )
                    )
                rows.append(y)
            else:
                rows.append(_moved(batch.all_of(y), 0, axis))
        return tree.unflatten(structure, rows)

    update_wrapper(mapped, fun, updated=())
    return compile_step(mapped, argnums=None)
