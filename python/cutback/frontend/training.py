"""The functions with which users compile gradients and whole training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ..budgets import Budget
from ..policies import Policy, resolve
from ..run.compiling import CompileOptions
from .program_cache import DEFAULT as DEFAULT_CACHE
from .step import (
    ArgNums,
    Loss,
    OnlyGradients,
    Options,
    Step,
    StepOptions,
    WithGradients,
    argnums_of,
)
from .tracing import Call, Traced

if TYPE_CHECKING:
    from ..devices import Device
    from ..optim import Optimizer
    from ..planner.plan import Plan
    from ..planner.search import Progress
    from ..run.compiling import Groups
    from ..run.memory import Memory


@overload
def compile(
    loss: Callable[..., Any],
    *,
    optimizer: Optimizer,
    argnums: ArgNums = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[Options],
) -> Step[Loss]: ...
@overload
def compile(
    loss: Callable[..., Any],
    *,
    optimizer: Optimizer,
    argnums: ArgNums = 0,
    has_aux: Literal[True],
    **options: Unpack[Options],
) -> Step[tuple[Loss, Any]]: ...
@overload
def compile(
    loss: Callable[..., Any],
    *,
    optimizer: None = None,
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[Options],
) -> Step[WithGradients[Loss]]: ...
@overload
def compile(
    loss: Callable[..., Any],
    *,
    optimizer: None = None,
    argnums: Literal[0] = 0,
    has_aux: Literal[True],
    **options: Unpack[Options],
) -> Step[WithGradients[tuple[Loss, Any]]]: ...
@overload
def compile(
    loss: Callable[..., Any],
    *,
    optimizer: Optimizer | None = None,
    argnums: ArgNums,
    has_aux: bool = False,
    **options: Unpack[Options],
) -> Step[Any]: ...
def compile(
    loss: Callable[..., Any],
    *,
    budget: Budget = None,
    measure: str = "arena",
    policy: Policy | None = None,
    preset: str | None = None,
    optimizer: Optimizer | None = None,
    updates: str = "after",
    slices: bool = False,
    packed: bool = False,
    argnums: ArgNums = 0,
    has_aux: bool = False,
    backend: str = "cpu",
    device: Device | None = None,
    plan: Plan | str | None = None,
    groups: Groups = None,
    seed: int = 0,
    on_infeasible: str = "error",
    time_limit: float = 0.0,
    progress: Progress | None = None,
    program_cache: int | str = DEFAULT_CACHE,
    memory: Memory | None = None,
) -> Step[Any]:
    """Returns a training step of ``loss(params, *data)`` under a memory budget.

    With ``optimizer``, a call updates the arrays of argument ``argnums`` **in place** and returns
    the loss. Without one, it returns (loss, gradients). With ``argnums=None``, it returns the
    results of the function, without gradients.

    The function is traced once for each set of shapes and dtypes. Values that it reads besides its
    arguments (outer variables, ``np.random``) are read only then, and are the same in every later
    call. If Cutback sees that such a value changes, a ``RuntimeWarning`` names the line
    (docs/compile.md lists what is watched). Pass values that change as arguments, and draw random
    numbers with :func:`cutback.uniform` or ``functional.dropout``.

    Dicts are passed to the function with sorted keys, as in JAX, not in insertion order. Name
    layers so that they sort in the order in which they run, or keep them in a list.

    Args:
        loss: function of pytrees of arrays that returns a scalar, or with ``has_aux`` a pair
            (scalar, more results).
        budget: how much memory the step may take:

            - a number from 0 to 1: a position between the smallest plan that costs at most 40 %
              more time (0) and no budget (1). It can always be met, and ``print(step.plan)`` begins
              with the result: ``0.5: 812 MiB, 63 % of 1.26 GiB; smallest 340 MiB``;
            - ``"6GiB"``, ``"500MB"``, or any other int: bytes;
            - ``"0.4x"`` or ``"40%"``: a share, in (0, 1], of the bytes of saving everything with
              each op run separately (with ``groups=True``, in groups);
            - ``"min"``: the smallest peak that costs at most 40 % more time by the cost model; if
              constraints alone cost more, the smallest peak, however slow;
            - ``"smallest"``: the smallest peak, however slow;
            - None: no budget; everything that the backward reads is saved.
        measure: the quantity that the budget bounds: ``"arena"`` (bytes allocated for the step),
            ``"live"`` (peak of live bytes), ``"saved"`` (bytes alive between forward and backward)
            or ``"total"`` (live bytes, parameters, gradients and optimizer states). Arguments and
            results belong to the caller and only count in "total".
        policy: what to save, see :mod:`cutback.policies`.
        preset: what to save without a budget: ``"autograd"`` (default), ``"conservative"``,
            ``"aggressive"``, ``"shape-aware"`` or ``"recompute_all"``; see :func:`cutback.plan`.
        optimizer: an optimizer of :mod:`cutback.optim`, such as :class:`cutback.optim.AdamW`.
        updates: when the optimizer steps a parameter: ``"after"`` the backward, or ``"inside"`` it,
            as soon as nothing reads the parameter any more and nothing can fail. Each gradient then
            takes memory only until its update, and the results are bitwise equal. Calls with
            ``extras`` compile a second program, which updates after the backward. If updates inside
            are not possible, they run after it, and :attr:`Step.updates_reason` says why
            (docs/optim.md). If no plan meets the budget with ``"after"``, updates run inside where
            possible.
        slices: if true, chains of row-wise operations run in up to eight pieces. Examples are the
            last product of a language model with its cross entropy and their gradients, or a
            perceptron over tokens. Wide values inside a chain, such as the logits, then never exist
            as a whole. The pieces depend only on shapes, so results are bitwise equal under every
            budget, but may differ from those without slices. :attr:`Step.slices` lists the chains
            that run in pieces (docs/slices.md).
        packed: if true, bools that the backward reads may be saved as bits, and so may the result
            of a ``relu`` that the backward reads only for its sign. Indices of ``argmax`` and of
            max poolings may be saved in one, two or four bytes each. The step is planned without
            packed values and with them, and the better plan runs: the faster one within the budget
            or, for ``"min"`` and ``"smallest"``, the smaller one. Results are bitwise equal
            (docs/planner.md).
        argnums: position or positions of the arguments to differentiate by.
        has_aux: the function returns a pair (scalar, more results).
        backend, device, plan, groups: as for :class:`cutback.run.executable.Executable`.
        on_infeasible: what to do if no plan meets the budget: ``"error"`` raises; ``"min"`` and
            ``"smallest"`` warn, and use the plan of that budget; ``"warn"`` warns, and saves
            everything.
        time_limit, progress: limits on the search for a plan, see :func:`cutback.plan`. They apply
            to each set of shapes.
        program_cache: limit on the bytes of compiled programs that the step keeps, as an int or a
            string such as ``"1GiB"``. The least recently used programs are dropped; a call that
            needs a dropped one traces and compiles again, with the same results. The latest program
            is always kept.
        memory: a :class:`cutback.Memory` that the step shares with other steps, which run in it one
            at a time. None gives the step its own block. In either case, all shapes of the step
            share one block.
        seed: an integer of 64 bits. Together with the number of the call it determines every random
            value, so the same seed repeats a run bit for bit, under any budget and with any number
            of threads.

    Raises:
        ValueError, TypeError: if ``budget``, ``preset`` or ``policy`` is invalid.

    >>> step = cutback.compile(loss, budget=0.5, optimizer=cutback.optim.AdamW(lr=1e-3))
    >>> value = step(params, x, y)  # parameters are updated in place
    """
    if optimizer is not None and argnums is None:
        raise ValueError("an optimizer needs argnums, the arguments that hold parameters")
    returns = "value" if optimizer is not None or argnums is None else "both"
    return Step(
        loss,
        StepOptions(argnums, has_aux, returns, policy, optimizer, seed, program_cache),
        CompileOptions(
            budget=budget,
            measure=measure,
            preset=preset,
            backend=backend,
            device=device,
            plan=plan,
            groups=groups,
            on_infeasible=on_infeasible,
            time_limit=time_limit,
            progress=progress,
            memory=memory,
            updates=updates,
            slices=slices,
            packed=packed,
        ),
    )


@overload
def value_and_grad(
    f: Callable[..., Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[Options],
) -> Step[WithGradients[Loss]]: ...
@overload
def value_and_grad(
    f: Callable[..., Any],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    **options: Unpack[Options],
) -> Step[WithGradients[tuple[Loss, Any]]]: ...
@overload
def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Unpack[Options],
) -> Step[Any]: ...
def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Step[Any]:
    """Returns a function that returns ``(f(*args), gradients)``; gradients are nested like argument
    ``argnums``.

    If ``argnums`` is a sequence, gradients are a tuple. With ``has_aux``, ``f`` returns (loss, aux)
    and the value is that pair. The ``options`` (``budget``, ``policy``, ``preset``, ``seed``, ...)
    are those of :func:`compile`; without a budget or preset, everything that the backward reads is
    saved.

    Raises:
        ValueError, TypeError: as for :func:`compile`, or if the options contain an optimizer, which
            only :func:`compile` accepts. Calls raise the errors of a :class:`Step`.

    >>> value, grads = cutback.value_and_grad(loss)(params, x, y)
    >>> grads["w1"].shape == params["w1"].shape
    True
    """
    if options.get("optimizer") is not None:
        raise ValueError(
            "an optimizer belongs to cutback.compile, which steps the parameters itself"
        )
    return compile(f, argnums=argnums, has_aux=has_aux, **options)


@overload
def grad(
    f: Callable[..., Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[Options],
) -> Step[OnlyGradients]: ...
@overload
def grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Unpack[Options],
) -> Step[Any]: ...
def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Step[Any]:
    """Returns a function that returns only the gradients of ``f``, or, with ``has_aux``,
    (gradients, aux).

    ``argnums``, ``options`` and errors are those of :func:`value_and_grad`.

    >>> grads = cutback.grad(loss)(params, x, y)
    >>> sorted(grads)
    ['w1', 'w2']
    """
    step = value_and_grad(f, argnums, has_aux, **options)
    step.returns = "gradients"
    return step


def trace(
    f: Callable[..., Any], *args: Any, argnums: ArgNums = None, policy: Policy | None = None
) -> Traced:
    """Traces ``f`` for arguments like ``args``, whose elements are not read, and returns its graph.

    ``f`` may return any pytree of arrays. ``print(traced)`` shows the forward graph;
    ``traced.joint()`` returns forward and backward, for which the first result must be a scalar.
    ``argnums`` marks arguments as parameters, and ``policy`` says what to save, as in
    :func:`compile`.

    Raises:
        TypeError, ValueError: if an argument cannot be traced, ``f`` returns something that is
            neither an array nor a number, or ``argnums`` or ``policy`` is invalid.

    >>> traced = cutback.trace(loss, params, x, y)
    >>> print(traced)  # the forward graph
    >>> print(traced.joint())  # forward and backward
    """
    traced = Traced(
        Call(f, args, {}), argnums_of(argnums), None if policy is None else resolve(policy)
    )
    traced.finish(with_loss=False)
    return traced
