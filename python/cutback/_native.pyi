"""The extension module, which only this package uses. The modules that use it document it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, final

import numpy as np
from typing_extensions import disjoint_base

from . import problem, schedule
from .errors import BudgetError

_T = TypeVar("_T")

__version__: str

_ValueRow = tuple[int, str, tuple[int, ...]]  # (id, dtype, shape)
_ArgumentRow = tuple[
    str, str, tuple[int, ...], int, int, int, bool
]  # (name, dtype, shape, bytes, role or kind, input, inside)
# (kind, bytes, share, measure), and perhaps (..., offload, pinned bytes, exact)
_Budget = tuple[int, int, float, int] | tuple[int, int, float, int, int, int, bool]

_Progress = Callable[[float, tuple[int, float, float, int] | None], object]

@final
class Problem:
    """A checked, immutable problem in the core. See cutback.problem."""

    @classmethod
    def read(cls, text: str, /) -> Problem: ...
    @classmethod
    def of(cls, problem: problem.Problem, /) -> Problem: ...
    def parts(self) -> problem.Problem: ...
    def to_json(self) -> str: ...
    def plan(
        self,
        *,
        preset: int = 0,
        budget: _Budget | None = None,
        device: str | None = None,
        time_limit: float = 0.0,
        progress: _Progress | None = None,
    ) -> Plan: ...
    def plans(
        self,
        budgets: Sequence[_Budget | None],
        /,
        *,
        preset: int = 0,
        device: str | None = None,
        time_limit: float = 0.0,
        progress: _Progress | None = None,
        until_met: bool = False,
    ) -> list[Plan | BudgetError]: ...
    def ends(self, measure: int, preset: int = 0, device: str | None = None) -> tuple[int, int]: ...
    def read_plan(self, text: str, device: str | None = None, /) -> Plan: ...
    def evaluate(
        self, schedule: tuple[Sequence[schedule.Step | int], int], device: str | None = None, /
    ) -> schedule.Evaluated: ...
    def evaluate_json(self, text: str, device: str | None = None, /) -> str: ...
    def mutwo(self, budget: _Budget, device: str | None = None, /) -> Problem: ...
    def cut_json(self, preset: int, with_network: bool, /) -> tuple[str, str | None]: ...
    def frontier_json(self, preset: int, device: str | None = None, /) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def wants_moves(self) -> bool: ...

@final
class Plan:
    """An immutable plan in the core, with its problem. See cutback.schedule."""

    def to_json(self) -> str: ...
    def explain_json(self) -> str: ...
    def explain_text(self, problem: Problem, /) -> str: ...
    def asked(self, measure: int, budget_bytes: int, /) -> Plan: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def steps(self) -> list[schedule.Step]: ...
    @property
    def times_ps(self) -> list[int]: ...
    @property
    def backward_starts(self) -> int: ...
    @property
    def lives(self) -> list[schedule.Life]: ...
    @property
    def decisions(self) -> list[schedule.Decision]: ...
    @property
    def numbers(self) -> schedule.Numbers: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def position(self) -> tuple[float, int, int] | None: ...
    @property
    def device(self) -> str: ...

@final
class _Decisions:
    """The decisions of a plan without its sizes. Opaque."""

@final
class Graph:
    def __new__(cls) -> Graph: ...
    def input(self, name: str, shape: Sequence[int], dtype: str, role: int, /) -> int: ...
    def op(
        self,
        name: str,
        ins: Sequence[int],
        attrs: Mapping[str, Any] | None,
        location: str | None,
        constraint: int,
        region: int | None,
        /,
    ) -> tuple[_ValueRow, ...]: ...
    def gradients(
        self, of: Sequence[int], given: Sequence[int], wrt: Sequence[int], region: int | None, /
    ) -> tuple[_ValueRow | None, ...]: ...
    def output(self, name: str, value: int, /) -> None: ...
    def state(self, input: int, value: int, /) -> None: ...
    def region(self, name: str, parent: int | None, saved_limit: int | None, /) -> int: ...
    def constrain(self, value: int, constraint: int, /) -> None: ...
    def info(self, value: int, /) -> _ValueRow: ...
    def inputs(self) -> tuple[tuple[str, int], ...]: ...
    def text(self) -> str: ...
    def json(self) -> str: ...
    def nbytes(self) -> int: ...
    @classmethod
    def from_text(cls, text: str, /) -> Graph: ...
    @classmethod
    def from_json(cls, text: str, /) -> Graph: ...
    def compile(
        self,
        wrt: Sequence[int],
        *,
        preset: int = 0,
        budget: _Budget | None = None,
        backend: str | None = None,
        device: str | None = None,
        keep_gradients: bool = False,
        static_bytes: int = 0,
        plan_json: str | None = None,
        groups: str | None = None,
        dump: Callable[[str, str], object] | None = None,
        time_limit: float = 0.0,
        progress: _Progress | None = None,
        memory: RunMemory | None = None,
        decisions: _Decisions | None = None,
        updates_inside: bool = False,
        slices: bool = False,
        packed: bool = False,
        brief: bool = False,
    ) -> Step: ...
    def decide(
        self,
        wrt: Sequence[int],
        *,
        preset: int = 0,
        budget: _Budget | None = None,
        backend: str | None = None,
        device: str | None = None,
        keep_gradients: bool = False,
        static_bytes: int = 0,
        plan_json: str | None = None,
        groups: str | None = None,
        dump: Callable[[str, str], object] | None = None,
        time_limit: float = 0.0,
        progress: _Progress | None = None,
        updates_inside: bool = False,
        slices: bool = False,
        packed: bool = False,
        brief: bool = False,
    ) -> tuple[_Decisions, int]: ...
    def compile_text(
        self,
        what: str,
        wrt: Sequence[int],
        /,
        *,
        preset: int = 0,
        budget: _Budget | None = None,
        backend: str | None = None,
        device: str | None = None,
        keep_gradients: bool = False,
        static_bytes: int = 0,
        plan_json: str | None = None,
        groups: str | None = None,
        updates_inside: bool = False,
        slices: bool = False,
        packed: bool = False,
        brief: bool = False,
    ) -> str: ...

@disjoint_base
class DeviceMemory:
    """Contiguous elements in a GPU's memory; see cutback.DeviceArray."""

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], dtype: str, device: int, stream: int | None, /
    ) -> Self: ...
    @classmethod
    def over(
        cls,
        shape: tuple[int, ...],
        dtype: str,
        device: int,
        address: int,
        writable: bool,
        owner: object,
        /,
    ) -> Self: ...
    def read(self, array: np.ndarray[Any, Any], /) -> None: ...
    def write(self, array: np.ndarray[Any, Any], /) -> None: ...
    def order(self, stream: int, /) -> None: ...
    def lend(self, stream: int | None, /) -> None: ...
    def to_dlpack(self, versioned: bool, /) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def core_dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def writable(self) -> bool: ...

@final
class Signature:
    def __new__(cls, rows: tuple[tuple[Any, ...], ...], /) -> Signature: ...
    def match(self, leaves: list[Any], /) -> tuple[list[Any], list[tuple[int, int]]] | None: ...

class _Asked(Protocol):
    """See :class:`cutback.optim.extras.Asked`."""

    @property
    def grad_factor(self) -> float: ...
    @property
    def max_norm(self) -> float: ...
    @property
    def average_keep(self) -> float: ...
    @property
    def skips(self) -> bool: ...
    @property
    def zeroes(self) -> bool: ...
    @property
    def averages(self) -> tuple[np.ndarray[Any, Any] | DeviceMemory | None, ...]: ...
    @property
    def copies(self) -> tuple[np.ndarray[Any, Any] | DeviceMemory | None, ...]: ...

@final
class RunMemory:
    """A block of memory that several steps share. They run in it one at a time, and it is as large
    as the largest of them needs."""

    def __new__(
        cls,
        like: RunMemory | None = None,
        admit: Callable[[RunMemory, int], object] | None = None,
        refused: Callable[[RunMemory, list[int]], object] | None = None,
        own: bool = False,
    ) -> Self: ...
    @property
    def bytes(self) -> int: ...
    def release(self) -> int: ...
    def reserve(self, more: int, /) -> None: ...
    def results(self) -> dict[str, int]: ...
    def limit_results(self, bytes: int | None, /) -> None: ...
    def release_results(self) -> int: ...

@final
class Step:
    @property
    def inputs(self) -> tuple[_ArgumentRow, ...]: ...
    @property
    def outputs(self) -> tuple[_ArgumentRow, ...]: ...
    @property
    def numbers(self) -> dict[str, Any]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def run_bytes(self) -> int: ...
    @property
    def follows(self) -> bool: ...
    @property
    def is_left(self) -> bool: ...
    @property
    def updates(self) -> tuple[bool, str]: ...
    def text(self, what: str, /) -> str: ...
    def call(self, *addresses_and_seed: int) -> None: ...
    def plan(self) -> Plan: ...
    def empty_outputs(self, gradients: bool, /) -> list[Any]: ...
    def wait(self) -> float: ...
    def update_seconds(self) -> float: ...
    def run(
        self,
        *,
        inputs: Sequence[np.ndarray[Any, Any] | DeviceMemory],
        outputs: Sequence[np.ndarray[Any, Any] | DeviceMemory | None],
        seed: int,
        random_step: int,
        count: np.ndarray[Any, Any] | None = None,
        next: int = 0,
        stream: int | None = None,
    ) -> tuple[int, int, float]: ...
    def profile(
        self,
        inputs: Sequence[np.ndarray[Any, Any] | DeviceMemory],
        outputs: Sequence[np.ndarray[Any, Any] | DeviceMemory | None],
        seed: int,
        random_step: int,
        /,
    ) -> tuple[tuple[tuple[int, ...], float, int], ...]: ...
    def train(
        self,
        *,
        inputs: Sequence[np.ndarray[Any, Any] | DeviceMemory],
        outputs: Sequence[np.ndarray[Any, Any] | DeviceMemory | None],
        seed: int,
        random_step: int,
        optimizer: str | Expression,
        states: Sequence[Sequence[np.ndarray[Any, Any] | DeviceMemory | None]],
        group_of: Sequence[int],
        groups: Sequence[tuple[float, ...]],
        t: np.ndarray[Any, Any],
        numbers: np.ndarray[Any, Any],
        extras: _Asked | None = None,
        count: np.ndarray[Any, Any] | None = None,
        next: int = 0,
        stream: int | None = None,
    ) -> tuple[tuple[int, int, float], tuple[float, bool]]: ...
    def capture(
        self,
        *,
        inputs: Sequence[DeviceMemory],
        outputs: Sequence[DeviceMemory | None],
        seed: int,
        random_step: int,
        copied: Sequence[int],
        made: Sequence[int],
        optimizer: str | Expression | None = None,
        states: Sequence[Sequence[DeviceMemory | None]] | None = None,
        group_of: Sequence[int] | None = None,
        groups: Sequence[tuple[float, ...]] | None = None,
        t: np.ndarray[Any, Any] | None = None,
        numbers: np.ndarray[Any, Any] | None = None,
    ) -> Captured: ...

@final
class Captured:
    def replay(
        self,
        *,
        inputs: Sequence[np.ndarray[Any, Any] | DeviceMemory],
        outputs: Sequence[DeviceMemory],
        random_step: int,
        count: np.ndarray[Any, Any] | None = None,
        next: int = 0,
        stream: int | None = None,
        groups: Sequence[tuple[float, ...]] | None = None,
        t: np.ndarray[Any, Any] | None = None,
        numbers: np.ndarray[Any, Any] | None = None,
    ) -> float: ...
    def counts(self, t: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any], /) -> None: ...
    def resident(self, group: int, /) -> tuple[int, int, int, int]: ...

def device_order(before: int | None, after: int | None, /) -> None: ...
def device_ordinal() -> int: ...
def has_cuda() -> bool: ...
def on_device(arrays: list[Any], /) -> bytes: ...
def device_release() -> int: ...
def device_stats(resets_peak: bool, /) -> dict[str, int]: ...
def dlpack_parts(
    tensor: Any, name: str, stream: int, /
) -> tuple[
    str, tuple[int, ...], tuple[int, ...] | None, int, int, int, bool, object, int | None
]: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int, /) -> None: ...
def join_team(library: str | None, /) -> bool: ...
def memory() -> dict[str, int]: ...
def fail_alloc(n: int, /) -> int: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any], /) -> np.ndarray[Any, Any]: ...
def kept_memory() -> dict[str, int]: ...
def backends() -> tuple[str, ...]:
    """Returns the names of the backends that steps can run on."""

@final
class Expression:
    """An optimizer as a list of nodes ``(op, operands, value)``. ``out`` lists the nodes that are
    the new parameter and the new states."""

    def __new__(
        cls,
        name: str,
        states: tuple[str, ...],
        hyper: tuple[str, ...],
        nodes: tuple[tuple[str, tuple[int, ...], float], ...],
        out: tuple[int, ...],
        /,
    ) -> Expression: ...

@final
class BusyWord:
    """A lock that is held while an optimizer steps. Copies and unpickled objects are new locks."""

    def hold(self, function: Callable[..., _T], /, *arguments: Any) -> _T:
        """Calls the function while holding the lock. Raises RuntimeError if another thread, or a
        caller of this thread, holds it. A lock that was held across a fork counts as free."""

@final
class OptimizerTable:
    def __new__(
        cls,
        optimizer: str | Expression,
        names: tuple[str, ...],
        half: str | None = None,
        seed: int = 0,
        first_row: int = 0,
        /,
    ) -> OptimizerTable:
        """Makes a table. ``half`` says how float16 and bfloat16 rows keep their precision
        ("master", "remainder", "stochastic"); None refuses such rows. ``seed`` is that of the
        rounding noise, in which row i has the number ``first_row + i``."""

    def step(
        self,
        *,
        params: tuple[np.ndarray[Any, Any], ...],
        grads: tuple[np.ndarray[Any, Any] | None, ...],
        states: tuple[tuple[np.ndarray[Any, Any] | None, ...], ...],
        group_of: Sequence[int],
        groups: Sequence[tuple[float, ...]],
        t: np.ndarray[Any, Any],
        missed: np.ndarray[Any, Any],
        numbers: np.ndarray[Any, Any],
        rest: tuple[np.ndarray[Any, Any] | None, ...] | None = None,
    ) -> None:
        """Updates all parameters. ``rest`` holds the master copies (f32) or remainders (uint16) of
        f16 and bf16 rows."""

    def ask(self, asked: _Asked | None, /) -> None:
        """Sets what later steps do in addition to the update; None: nothing. Averages and f16 or
        bf16 copies have as many elements as their parameter, and averages have its type."""

    def outcome(self) -> tuple[float, bool]:
        """Returns the norm of all gradients (-1 if it was not requested), and whether the last step
        was skipped."""

    def step_tensors(
        self,
        *,
        exchange: Any,
        kinds: tuple[type, ...],
        params: tuple[Any, ...],
        states: tuple[dict[str, Any], ...],
        keys: tuple[str, ...],
        count_key: str,
        number_keys: tuple[str, ...],
        grads: dict[int, Any] | None,
        group_of: Sequence[int],
        groups: Sequence[tuple[float, ...]],
        kept: list[tuple[dict[str, Any], dict[str, Any]]],
    ) -> tuple[list[tuple[int, int, str]], int]:
        """Takes one step of the parameters that have a gradient, in the memory of their tensors.

        Each row's dict holds its states under ``keys`` (the last one is the master copy or
        remainder of halves, if they have one), the count of its steps under ``count_key`` and its
        numbers under ``number_keys``. ``exchange`` is the capsule of DLPack's exchange functions
        for tensors of the types ``kinds``. ``grads`` replaces ``.grad``. If the step is taken, the
        second dict of each pair in ``kept`` is merged into the first one in the same call.

        Returns a list of tensors that do not fit, as (row, column, reason), and the number of rows
        without gradient. Column -1 is the count, -2 the first number and so on, 0 the parameter, 1
        the gradient, 2 the first state and so on. The step is taken only if the list is empty."""

def optimizer_table() -> tuple[
    tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...
]:
    """Returns for each optimizer its name, the names of its states, hyper-parameters and numbers,
    and the kind of each state: "alike" (like the parameter), "codes" or "scales"
    (``cb_state_kind``)."""

def optimizer_states(optimizer: str | Expression, row: tuple[float, ...], /) -> tuple[str, ...]:
    """Returns the names of the states that a group with these hyper-parameters has."""

def ask_for_large_pages(address: int, bytes: int, /) -> None:
    """Asks the system to back this memory with large pages. Nothing must have been written to it
    yet. Does nothing where the system does not support such requests."""

def same_objects(objects: dict[Any, Any] | list[Any], known: list[Any], /) -> bool:
    """Returns True if the values of a dict, or the items of a list, are exactly the objects in
    ``known``, in this order."""

def op_table() -> tuple[tuple[str, int, int, int, int, str, str, bool], ...]: ...
def machine() -> dict[str, Any]: ...
def check_device(text: str, /) -> None: ...
def find_duplicates(
    keys: Sequence[int], starts: Sequence[int], inputs: Sequence[int], /
) -> list[int]: ...
def place(
    lives: Sequence[tuple[int, int, int]], capacity: int, effort: int = ..., /
) -> tuple[str, list[int], int, int, int]: ...
def draw(
    array: np.ndarray[Any, Any], law: str, seed: int, stream: int, p: float = 0.0, /
) -> None: ...
def pack_bits(bools: np.ndarray[Any, Any], packed: np.ndarray[Any, Any], /) -> None: ...
def unpack_bits(packed: np.ndarray[Any, Any], bools: np.ndarray[Any, Any], /) -> None: ...
def pack_signs(
    floats: np.ndarray[Any, Any], width: int, infinity: int, packed: np.ndarray[Any, Any], /
) -> None: ...
def keep_by_bits(
    floats: np.ndarray[Any, Any],
    packed: np.ndarray[Any, Any],
    width: int,
    out: np.ndarray[Any, Any],
    /,
) -> None: ...
def pack_windows(
    indices: np.ndarray[Any, Any],
    packed: np.ndarray[Any, Any],
    windows: tuple[int, int, int],
    plane: tuple[int, int, int],
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int],
    pad: tuple[int, int, int],
    dilation: tuple[int, int, int],
    /,
) -> None: ...
def unpack_windows(
    packed: np.ndarray[Any, Any],
    indices: np.ndarray[Any, Any],
    windows: tuple[int, int, int],
    plane: tuple[int, int, int],
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int],
    pad: tuple[int, int, int],
    dilation: tuple[int, int, int],
    /,
) -> None: ...
def cuda_driver(path: str | os.PathLike[str], /) -> tuple[int, list[tuple[str, int, int]]]: ...
def cuda_nvrtc(path: str | os.PathLike[str], /) -> tuple[int, int, int]: ...
def cuda_blaslt(path: str | os.PathLike[str], /) -> int: ...
def set_cuda(
    driver: str,
    nvrtc: str,
    blaslt: str | None,
    cache: str | None,
    device: int,
    as_ptx: bool,
    keep_sources: bool,
    /,
) -> None: ...
def from_dlpack(tensor: Any, name: str, /) -> tuple[np.ndarray[Any, Any], str]: ...
def to_dlpack(array: np.ndarray[Any, Any], dtype: str, versioned: bool = False, /) -> Any: ...
