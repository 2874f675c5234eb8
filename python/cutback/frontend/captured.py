"""Steps whose calls replay a CUDA graph."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..device_arrays import DeviceArray, handle
from ..integers import index
from ..run.captured import CapturedRun, OnDevice
from ..run.compiling import on_gpu
from ..run.executable import Draws, check_random_step
from ..source import place
from .tracing import Call, Signature, with_first

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_GRAPHS = 64  # limit for one captured step; each graph has its own arrays


class _Graph(Signature):
    """One captured graph, the program that it was captured from, and the signature of its
    arguments."""

    def __init__(self, rest: Call, spec: Any, run: CapturedRun) -> None:
        super().__init__(rest, rest.names())
        self.key = rest.key
        self.spec, self.run = spec, run  # a _Specialisation of the step


class CapturedStep:
    """A step whose forward, backward and update are one CUDA graph; made by
    :meth:`cutback.Step.capture`.

    A call takes the arguments that follow those given to :meth:`cutback.Step.capture`, and returns
    the same as a call of the step. It also takes ``rng_step=`` and ``stream=``, which work as for a
    :class:`cutback.Step`. On the host, a call is one launch and a copy for each of its arrays and
    results, regardless of the number of parameters. New shapes, dtypes or constants, or a new
    optimizer state, cause another capture.

    Hyper-parameters, the count of steps and the step number of random operations are data on the
    GPU. If you set ``optimizer.lr`` or ``step.rng_step``, the next replay uses the new value.

    Raises on a call:
        ValueError, TypeError: as for a call of the step, or if an array that the step updates was
            not given to :meth:`cutback.Step.capture`.

    >>> captured = step.capture(params)  # doctest: +SKIP
    >>> value = captured(x, y)  # doctest: +SKIP
    """

    def __init__(self, step: Any, bound: tuple[Any, ...]) -> None:
        backend, _ = on_gpu(step._options.backend, step._options.device)
        if backend != "cuda":
            raise ValueError(
                f"capture: this step runs on {backend!r}, which cannot capture graphs; compile it "
                'with device="cuda"'
            )
        self._step = step
        known = Call(step.function, bound, {})
        for name, array in zip(known.names(), known.arrays, strict=True):
            if array is not None and not isinstance(array, DeviceArray):
                raise ValueError(
                    f"{name} is a NumPy array, but a captured step updates its arguments on the "
                    "GPU; convert it with cutback.cuda.to_device(x) and pass the result each time"
                )
        if not known.given:
            raise ValueError("capture: pass at least the first argument, with arrays on the GPU")
        self._bound, self._n_leaves = bound, len(known.leaves)
        self._arrays: Sequence[DeviceArray] = list(known.given)
        # Call takes the names of leaves from the parameters of this function.
        code = getattr(step.function, "__code__", None)
        named = code.co_varnames[: code.co_argcount] if code is not None else ()
        names = tuple(named[len(bound) :])
        self._rest = SimpleNamespace(
            __code__=SimpleNamespace(co_varnames=names, co_argcount=len(names))
        )
        self._graphs: dict[Any, _Graph] = {}
        self._recent: list[_Graph] = []  # the graphs used last, latest first
        self._latest: _Graph | None = None
        self._n_captured = 0

    @property
    def n_captured(self) -> int:
        """Number of captures: one for each combination of shapes, dtypes and constants."""
        return self._n_captured

    def __call__(
        self,
        *args: Any,
        rng_step: int | None = None,
        stream: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one step and returns the same as a call of the step; the class describes the
        arguments and errors."""
        step, begin = self._step, time.perf_counter()
        with step._lock:
            on = handle(stream)
            try:
                rest = Call(self._rest, args, kwargs, on, self._recent)  # type: ignore[arg-type]
                graph, rows = self._graph(rest, args, kwargs, on)
                number = step.rng_step if rng_step is None else check_random_step(rng_step)
                draws = Draws(step.seed, number, step._draws)
                results, gradients = graph.run.replay(rest.given, draws, rows, on)
            except (ValueError, TypeError) as error:
                place(error)
                raise
            self._latest = graph
            single = isinstance(step.argnums, int)
            result = step._result(graph.spec, results, gradients, single)
            graph.spec.run.count_call(time.perf_counter() - begin)
        return result

    def wait(self) -> None:
        """Waits for the latest call with a ``stream``. If updates were skipped on the GPU
        (:meth:`on_device`), this corrects the optimizer's count.

        Raises:
            ValueError: if the call failed, for example at an index out of range. It has changed
                nothing then.
        """
        with self._step._lock:
            self._captured.run.wait()

    def on_device(self, group: int = 0) -> OnDevice:
        """Returns the addresses at which the latest graph reads the numbers of an optimizer's
        group.

        Raises:
            ValueError: if nothing was captured yet, or the group does not exist.
        """
        with self._step._lock:
            return OnDevice(*self._captured.run.native.resident(index(group)))

    @property
    def _captured(self) -> _Graph:
        if self._latest is None:
            raise ValueError("the step has not been captured yet: call it with its arguments")
        return self._latest

    def _graph(
        self, rest: Call, args: tuple[Any, ...], kwargs: dict[str, Any], stream: int | None
    ) -> tuple[_Graph, Any]:
        """Returns the graph for these arguments, and the hyper-parameters of its next replay."""
        step = self._step
        known = rest.fitting
        if not isinstance(known, _Graph):
            known = self._graphs.get(rest.key)
        if known is not None and known.run.seed == step.seed and not known.spec.is_outdated():
            known.spec.traced.surroundings.look()
            rows = known.run.rows()
            if rows is not None:
                self._use(known)
                return known, rows
        del known
        rest.read()
        self._make_room(rest.key)  # before the capture, which needs memory
        made = self._capture(rest, args, kwargs, stream)
        self._graphs[rest.key] = made
        self._use(made)
        self._n_captured += 1
        return made, made.run.first_rows()

    def _use(self, graph: _Graph) -> None:
        """Marks a graph as the one used last, so that it is compared first and dropped last."""
        if self._recent and self._recent[0] is graph:
            return
        self._graphs[graph.key] = self._graphs.pop(graph.key)
        self._recent = with_first(self._recent, graph)

    def _make_room(self, key: Any) -> None:
        """Drops the graph of this key, and the least recently used ones above the limit."""
        self._graphs.pop(key, None)
        while len(self._graphs) >= _MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._recent = [one for one in self._recent if self._graphs.get(one.key) is one]
        if self._latest not in self._graphs.values():
            self._latest = None

    def clear(self) -> None:
        """Drops all graphs and their arrays. Waits for the GPU."""
        with self._step._lock:
            self._graphs.clear()
            self._recent.clear()
            self._latest = None

    def _capture(
        self, rest: Call, args: tuple[Any, ...], kwargs: dict[str, Any], stream: int | None
    ) -> _Graph:
        step = self._step
        call = step._read((*self._bound, *args), kwargs, stream)
        spec = step._specialise(call)
        late = next((i for i in sorted(spec.written) if i >= self._n_leaves), None)
        if late is not None:
            raise ValueError(
                f"{spec.traced.names[late]} is updated by the step, so it cannot change between "
                "calls of a captured step; pass it, and all arguments before it, to capture()"
            )
        draws = Draws(step.seed, step.rng_step)
        return _Graph(rest, spec, CapturedRun(spec.run, self._arrays, draws, step.optimizer))

    def __repr__(self) -> str:
        return f"<cutback.CapturedStep of {self._step!r}, {self._n_captured} captured>"
