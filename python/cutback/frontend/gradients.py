"""Gradients of functions inside a traced function.

Calling the function adds its operations to the graph; gradient rules then append further ones.
These are ordinary operations: values computed from gradients have gradients too, and the planner
sees one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import dtypes, tree
from ..source import located
from .graph import current
from .tracer import Array


def check_loss(loss: Any, has_aux: bool) -> None:
    """Checks that the result of a function can be differentiated.

    Raises:
        TypeError, ValueError: if the result is not a floating-point scalar, or, with ``has_aux``,
            not a pair.
    """
    if has_aux:
        if not isinstance(loss, tuple) or len(loss) != 2:
            raise TypeError(
                located("with has_aux=True the function must return a pair (loss, aux)")
            )
        loss = loss[0]
    if not isinstance(loss, Array):
        kind = type(loss).__name__
        hint = (
            "; to return more than the loss, pass has_aux=True" if isinstance(loss, tuple) else ""
        )
        raise TypeError(
            located(f"the function must return a traced scalar, the loss, not a {kind}{hint}")
        )
    if loss.shape or loss.dtype not in dtypes.FLOATS:
        raise ValueError(
            located(
                "gradients need a floating-point scalar loss, but the function returned "
                f"{loss.dtype}{list(loss.shape)}; reduce it, as with .mean() or .sum()"
            )
        )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (Array, np.ndarray, np.generic)) or hasattr(leaf, "__dlpack__")


def lifted(value: Any) -> Any:
    """Returns the same tree with each array replaced by a value of the graph."""
    leaves, structure = tree.flatten(value)
    graph = current()
    return tree.unflatten(structure, [graph.lift(x) if _is_array(x) else x for x in leaves])


def _wanted(leaf: Any, name: str) -> Array:
    """Converts a leaf to a value by which results can be differentiated.

    Raises:
        TypeError: if the leaf is not floating-point.
    """
    graph = current()
    value = graph.lift(leaf)
    if value.dtype not in dtypes.FLOATS:
        raise TypeError(located(f"{name} is {value.dtype}; gradients need floating-point arrays"))
    return graph.alias(value)


class Pullback:
    """The function that :func:`cutback.vjp` returns. It maps gradients of the results to gradients
    of the arguments."""

    def __init__(
        self, function: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, what: str
    ) -> None:
        self._again = (function, primals, has_aux, what)
        self.graph = current()
        leaves, self._tree = tree.flatten(primals)
        names = tree.names(self._tree, f"{what}: primals")
        self.wrt = [_wanted(x, name) for x, name in zip(leaves, names, strict=True)]
        result = function(*tree.unflatten(self._tree, self.wrt))
        self.aux: Any = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise TypeError(
                    located(
                        f"{what}: with has_aux=True the function must return a pair (value, aux)"
                    )
                )
            result, self.aux = result
        leaves, self.value_tree = tree.flatten(result)
        self.results = [self.graph.lift(x) for x in leaves]
        self.value = tree.unflatten(self.value_tree, self.results)

    def _given(self, leaf: Any, y: Array) -> Array:
        value = self.graph.full((), leaf, y.dtype) if type(leaf) in (int, float) else leaf
        value = current().lift(value)
        if value.shape != y.shape or value.dtype != y.dtype:
            raise ValueError(
                located(
                    f"the gradient of a result {y.dtype}{list(y.shape)} must have its type "
                    f"and shape, but is {value.dtype}{list(value.shape)}"
                )
            )
        return value

    def pull(self, given: Sequence[Any]) -> list[Array]:
        """Returns the gradients of the leaves of the arguments; ``given`` has the gradient of each
        result."""
        pairs = zip(self.results, given, strict=True)
        rows = [(y, self._given(g, y)) for y, g in pairs if y.dtype in dtypes.FLOATS]
        graph: Any = current()
        if getattr(graph, "depth", 0) > getattr(self.graph, "depth", 0):
            # vmap maps this call: run the function again inside it, so that it runs on the batch
            function, primals, has_aux, what = self._again
            return Pullback(function, primals, has_aux, what).pull(given)
        found = self.graph.gradients([y for y, _ in rows], [g for _, g in rows], self.wrt)
        return [
            self.graph.full(x.shape, 0, x.dtype) if gradient is None else gradient
            for x, gradient in zip(self.wrt, found, strict=True)
        ]

    def __call__(self, given: Any) -> tuple[Any, ...]:
        """Returns the gradients of the arguments as a tuple.

        Raises:
            ValueError: if ``given`` is not nested like the value, or differs in a shape or type.
        """
        leaves, structure = tree.flatten(given)
        if structure != self.value_tree:
            raise ValueError(
                located("vjp: the gradients must be nested like the result of the function")
            )
        result: tuple[Any, ...] = tree.unflatten(self._tree, self.pull(leaves))
        return result


def as_tuple(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """Returns ``argnums`` as a tuple of positions."""
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


def check_argnums(argnums: Sequence[int], count: int) -> None:
    """Raises ValueError if one of ``argnums`` is not a position among ``count`` arguments."""
    for argnum in argnums:
        if not 0 <= argnum < count:
            raise ValueError(
                located(
                    f"argnums={argnum}, but the function was called with {count} positional "
                    "arguments"
                )
            )


def value_and_gradients(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
) -> tuple[Any, Any]:
    """Returns the result of ``function`` and its gradients. It does inside a traced function what
    :func:`cutback.value_and_grad` does outside.

    Raises:
        TypeError, ValueError: if the result is not a scalar, or an argument has no gradient.
    """
    graph = current()
    several = as_tuple(argnums)
    check_argnums(several, len(args))
    values, wrt, below = list(lifted(args)), [], []
    for n in several:
        leaves, structure = tree.flatten(values[n])
        names = tree.names(structure, f"argument {n}")
        chosen = [isinstance(x, Array) for x in leaves]
        if not any(chosen):
            raise TypeError(
                located(
                    f"argnums={n}: that argument holds no arrays; pass np.asarray(x) for a number"
                )
            )
        leaves = [
            _wanted(x, f"argnums={n}: {name}") if isinstance(x, Array) else x
            for x, name in zip(leaves, names, strict=True)
        ]
        wrt += [x for x in leaves if isinstance(x, Array)]
        values[n] = tree.unflatten(structure, leaves)
        below.append((structure, chosen))
    result = function(*values, **lifted(kwargs))
    check_loss(result, has_aux)
    loss = result[0] if has_aux else result
    found = graph.gradients([loss], [graph.full((), 1.0, loss.dtype)], wrt)
    gradients = iter(
        graph.full(x.shape, 0, x.dtype) if gradient is None else gradient
        for x, gradient in zip(wrt, found, strict=True)
    )
    nested = tuple(
        tree.unflatten(structure, [next(gradients) if taken else None for taken in chosen])
        for structure, chosen in below
    )
    return result, nested[0] if isinstance(argnums, int) else nested
