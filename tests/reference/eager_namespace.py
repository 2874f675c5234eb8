"""Provides the array API standard's namespace for the standard's test suite, which looks at
elements after each call. So each call is traced, compiled and run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import numpy as np

import cutback
from cutback import tree
from cutback.frontend import namespace, tracer

__array_api_version__ = namespace.__array_api_version__


class Eager:
    """An array of elements, with the methods and operators of traced arrays."""

    def __init__(self, elements: Any) -> None:
        self.elements = np.asarray(elements)

    @property
    def dtype(self) -> Any:
        name = cutback.dtypes.from_numpy(self.elements.dtype)
        return cutback.dtypes.DTYPES[name] if name else self.elements.dtype

    shape = property(lambda self: self.elements.shape)
    ndim = property(lambda self: self.elements.ndim)
    size = property(lambda self: self.elements.size)
    device = "step"

    def to_device(self, device: str, /, *, stream: None = None) -> Eager:
        if device != "step":
            raise ValueError(f"unknown device {device!r}")
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return sys.modules[__name__]

    def __bool__(self) -> bool:
        return bool(self.elements)

    def __int__(self) -> int:
        return int(self.elements)

    def __float__(self) -> float:
        return float(self.elements)

    def __complex__(self) -> complex:
        return complex(self.elements)

    def __index__(self) -> int:
        return self.elements.__index__()

    def __repr__(self) -> str:
        return f"Eager({self.elements!r})"

    def __dlpack__(self, **options: Any) -> Any:
        return self.elements.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.elements.__dlpack_device__()

    def __getitem__(self, key: Any) -> Eager:
        return run(lambda x, *k: x[_rebuilt(key, k)], self, *_arrays(key))  # type: ignore[no-any-return]


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _arrays(key: Any) -> list[Any]:
    return [part for part in _parts(key) if isinstance(part, Eager)]


def _rebuilt(key: Any, traced: Any) -> Any:
    rest = iter(traced)
    parts = tuple(next(rest) if isinstance(part, Eager) else part for part in _parts(key))
    return parts if isinstance(key, tuple) else parts[0]


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function of traced arrays on elements."""
    leaves, structure = tree.flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Eager)]

    def of_arrays(*arrays: Any) -> Any:
        mine = list(leaves)
        for i, x in zip(at, arrays, strict=True):
            mine[i] = x
        given, named = tree.unflatten(structure, mine)
        return function(*given, **named)

    result = cutback.compile(of_arrays, argnums=None)(*(leaves[i].elements for i in at))
    return tree.map(lambda x: Eager(x) if isinstance(x, (np.ndarray, np.generic)) else x, result)


def _method(name: str) -> Callable[..., Any]:
    def call(self: Eager, *args: Any) -> Any:
        return run(lambda x, *rest: getattr(x, name)(*rest), self, *args)

    call.__name__ = name
    return call


_PLAIN = ("__init__", "__bool__", "__int__", "__float__", "__index__", "__getitem__", "__iter__",
          "__array_namespace__", "__array_ufunc__", "__array_function__", "__array__", "__len__",
          "__repr__", "__format__", "__new__", "__getattribute__", "__setattr__", "__class__",
          "__init_subclass__", "__subclasshook__", "__delattr__", "__dir__", "__doc__", "__hash__",
          "__reduce__", "__reduce_ex__", "__sizeof__", "__str__", "__getstate__", "__module__",
          "__slots__", "__getattr__", "__setitem__", "__contains__", "__annotations__")  # fmt: skip
for _name in dir(tracer.Array):
    if _name.startswith("__") and _name not in _PLAIN:
        setattr(Eager, _name, _method(_name))
for _name in ("T", "mT"):
    setattr(Eager, _name, property(partial(lambda n, x: run(lambda y: getattr(y, n), x), _name)))

_HOST = ("can_cast", "finfo", "iinfo", "isdtype", "result_type")


def _on_host(name: str) -> Callable[..., Any]:
    function = getattr(namespace, name)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*(x.dtype if isinstance(x, Eager) else x for x in args), **kwargs)

    return call


def _of_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(function, *args, **kwargs)

    return call


def __getattr__(name: str) -> Any:
    if name == "__array_namespace_info__":
        return namespace.__array_namespace_info__
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "linalg":
        return _Linalg("linalg")
    if name == "asarray":
        return asarray
    found = getattr(namespace, name)
    if name in _HOST:
        return _on_host(name)
    if callable(found) and not isinstance(found, type(namespace.float32)):
        return _of_steps(found)
    return found


class _Linalg(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _of_steps(getattr(cutback.linalg, name))


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """Returns elements as an array, without a step. The suite makes its examples with it."""
    if isinstance(obj, Eager):
        obj = obj.elements
    array = np.array(obj, dtype=None if dtype is None else cutback.dtypes.to_numpy(str(dtype)))
    if array.dtype == object or array.dtype.kind not in "biufc":
        raise TypeError(f"asarray: {obj!r}")
    return Eager(array)
