"""Arrays on the device: steps take and return them without a copy, in stream order, with race
detection."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback as cb
import foreign
from client import Driver
from cutback import cuda, device_arrays
from cutback.nn import functional as F
from cutback.run.arrays import RawArray
from foreign import Exchanged, Interface, Tensor


def loss(params: dict[str, Any], x: Any, target: Any) -> Any:
    h = F.gelu(x @ params["w1"] + params["b1"])
    return ((h @ params["w2"] - target) ** 2).mean()


def arrays() -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(3)
    params = {
        "w1": rng.standard_normal((16, 32), np.float32) / 4,
        "b1": np.zeros(32, np.float32),
        "w2": rng.standard_normal((32, 3), np.float32) / 6,
    }
    x, y = rng.standard_normal((20, 16), np.float32), rng.standard_normal((20, 3), np.float32)
    return params, x, y


def test_results_lie_where_arguments_do(gpu: Driver) -> None:
    params, x, y = arrays()
    step = cb.value_and_grad(loss, device="cuda")
    value, grads = step(params, x, y)
    there, other = step(cuda.to_device(params), cuda.to_device(x), cuda.to_device(y))
    assert isinstance(there, cb.DeviceArray) and there.shape == ()
    assert float(there) == float(value)
    for key, grad in other.items():
        assert isinstance(grad, cb.DeviceArray) and grad.dtype == np.float32
        assert np.array_equal(grad, grads[key])
        assert grad.numpy().tobytes() == grads[key].tobytes()
    assert step.n_compiled == 1


OPTIMIZERS = {"none": None, "sgd": cb.optim.SGD(lr=1e-2), "adamw": cb.optim.AdamW(lr=1e-2)}


@pytest.mark.parametrize("trained", OPTIMIZERS)
def test_a_step_on_a_stream_neither_copies_nor_allocates_nor_waits(
    gpu: Driver, trained: str
) -> None:
    """Entries that would do so fail when called. The optimizer's table of tensors is on the device;
    if the optimizer counts its steps, the factors that follow from the count are copied, once for
    all tensors."""
    params, x, y = cuda.to_device(arrays())
    step = cb.compile(loss, optimizer=OPTIMIZERS[trained], device="cuda")
    result = step(params, x, y)  # allocates states and reusable memory
    stream = gpu.stream()
    result = step(params, x, y, stream=stream.value)
    del result
    entries = ["cuMemAlloc_v2", "cuStreamSynchronize", "cuMemcpyDtoHAsync_v2", "cuMemFree_v2"]
    for entry in entries:
        gpu.fail(entry, 1)
    gpu.fail("cuMemcpyHtoDAsync_v2", 2 if trained == "adamw" else 1)
    entries.append("cuMemcpyHtoDAsync_v2")
    try:
        step(params, x, y, stream=stream.value)
    finally:
        for entry in entries:
            gpu.fail(entry, 0)
    step.wait()


@pytest.mark.parametrize("seed", range(3))
def test_what_has_changed_since_the_last_step_reaches_the_device(gpu: Driver, seed: int) -> None:
    """After changes of rates and groups, moves of arrays and a failed copy, the bits are those of
    the host."""
    gpu.seed(seed)
    found = []
    for on_device in (False, True):
        params, x, y = arrays()
        other = {key: value + 1 for key, value in params.items()}
        if on_device:
            params, other, x, y = (cuda.to_device(a) for a in (params, other, x, y))
        optimizer = cb.optim.AdamW(lr=1e-2)
        step = cb.compile(loss, optimizer=optimizer, device="cuda")
        for k, given in enumerate((params, params, other, params, params, other)):
            optimizer.lr = 1e-2 * (1 + k // 2)
            if k == 3 and on_device:
                gpu.fail("cuMemcpyHtoDAsync_v2", 1)
                with pytest.raises(RuntimeError, match="cuMemcpyHtoDAsync"):
                    step(given, x, y)
            step(given, x, y)
        host = [cuda.to_host(a) for a in (params, other)]
        found.append([a[key].tobytes() for a in host for key in sorted(a)])
    assert found[0] == found[1]


@pytest.mark.parametrize("where", ["device", "mixed"])
@pytest.mark.parametrize("named", [False, True])
def test_training_has_the_bits_of_arrays_on_the_host(gpu: Driver, where: str, named: bool) -> None:
    results = []
    for place in ("host", where):
        params, x, y = arrays()
        if place != "host":
            params = cuda.to_device(params)
        if place == "device":
            x, y = cuda.to_device((x, y))
        optimizer = cb.optim.AdamW(lr=1e-2)
        step = cb.compile(loss, optimizer=optimizer, device="cuda")
        more = {"stream": gpu.stream().value} if named and place != "host" else {}
        losses = [step(params, x, y, **more) for _ in range(3)]
        values = [float(value) for value in losses]
        if more:
            step.wait()
        state = optimizer.state_dict()
        assert all(isinstance(a, (int, np.ndarray)) for a in state.values())
        results.append((values, cuda.to_host(params), state))
    (losses, params, state), (others, other, state2) = results
    assert losses == others
    for key, value in params.items():
        assert value.tobytes() == other[key].tobytes(), key
    for key, value in state.items():
        assert np.array_equal(value, state2[key]), key


def test_states_go_where_parameters_go(gpu: Driver) -> None:
    params, x, y = arrays()
    optimizer = cb.optim.SGD(lr=1e-2, momentum=0.9)
    step = cb.compile(loss, optimizer=optimizer, device="cuda")
    step(params, x, y)
    moved = cuda.to_device(params)
    step(moved, x, y)
    assert isinstance(optimizer.states["momentum_buffer"][0], cb.DeviceArray)
    step(cuda.to_host(moved), x, y)
    assert isinstance(optimizer.states["momentum_buffer"][0], np.ndarray)
    optimizer.load_state_dict(optimizer.state_dict())
    step(moved, x, y)
    assert isinstance(optimizer.states["momentum_buffer"][0], cb.DeviceArray)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("interface", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_tensors_of_others_in_the_order_of_their_streams(
    gpu: Driver, seed: int, interface: bool, named: bool
) -> None:
    """The other library fills its tensors on its own stream, which the step does not know."""
    gpu.seed(seed)
    x = Tensor(gpu, np.zeros(1000, np.float32))
    x.stream = gpu.stream()
    step = cb.compile(lambda x: (x * 2 + 1).sum(), argnums=None, device="cuda")
    given = Interface(x) if interface else x
    ours = gpu.stream()
    for value in (1.0, 3.0):
        bits = int(np.float32(value).view(np.uint32))
        gpu.call(
            "cuMemsetD32Async",
            ctypes.c_uint64(x.memory.address),
            bits,
            ctypes.c_size_t(1000),
            x.stream,
        )
        result = step(given, **({"stream": ours.value} if named else {}))
        assert float(result) == 1000 * (2 * value + 1)
        event = gpu.event()  # their library waits for the step, as usual
        gpu.call("cuEventRecord", event, ours)
        gpu.call("cuStreamWaitEvent", x.stream, event, 0)
    assert interface or x.asked == [ours.value if named else 1] * 2
    assert x.out == 0
    gpu.wait()


@pytest.mark.parametrize("table", ["known", "also newer"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("named", [False, True])
def test_tensors_of_types_with_a_table_of_functions(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch, seed: int, named: bool, table: str
) -> None:
    """The host does not wait: the step is ordered after their stream."""
    monkeypatch.setattr(Exchanged, "__dlpack_c_exchange_api__", foreign.offer(table))
    gpu.seed(seed)
    x, ours, theirs = Exchanged(gpu, np.zeros(1000, np.float32)), gpu.stream(), gpu.stream()
    step = cb.compile(lambda x: (x * 2 + 1).sum(), argnums=None, device="cuda")
    before = Exchanged.taken
    for value, on in ((1.0, theirs), (3.0, ours), (5.0, None)):
        monkeypatch.setattr(Exchanged, "works_on", on)
        fill = int(np.float32(value).view(np.uint32)), ctypes.c_size_t(1000), on
        gpu.call("cuMemsetD32Async", ctypes.c_uint64(x.memory.address), *fill)
        result = step(x, **({"stream": ours.value} if named else {}))
        assert float(result) == 1000 * (2 * value + 1)
        gpu.wait()
    assert Exchanged.taken >= before + 3 and x.out == 0 and x.asked == []


FIRST = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, cutback as cb, foreign
from client import Driver
gpu = Driver()
x = foreign.Exchanged(gpu, np.zeros(9, np.float32))
foreign.Exchanged.__dlpack_c_exchange_api__ = foreign.offer("known")
foreign.Exchanged.works_on = gpu.stream()
given = foreign.Interface(x, stream=foreign.Exchanged.works_on.value) if sys.argv[2] else x
assert (cb.compile(lambda x: x + 1, argnums=None, device="cuda")(given).numpy() == 1).all()
"""


@pytest.mark.parametrize("way", ["", "interface"])
def test_a_tensor_of_others_is_the_first_that_is_seen(gpu: Driver, way: str) -> None:
    """In a separate process, another library's tensor is the first use of the GPU."""
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", FIRST, here, way], check=True)


def test_tables_that_cannot_be_used(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    step = cb.compile(lambda x: x + 1, argnums=None, device="cuda")
    x = Exchanged(gpu, np.ones(5, np.float32))
    monkeypatch.setattr(Exchanged, "__dlpack_c_exchange_api__", foreign.offer("known"))
    for which, words in (("tensor", "where the tensor is"), ("stream", "its stream")):
        monkeypatch.setattr(Exchanged, "fails", which)
        with pytest.raises(ValueError, match=f"its library does not say {words}"):
            step(x)
        assert x.out == 0
    monkeypatch.setattr(Exchanged, "fails", "")
    read_only = Exchanged(gpu, np.ones(5, np.float32), read_only=True)
    assert (step(read_only).numpy() == 2).all()
    for odd in (foreign.offer("only newer"), 7, None):  # treated as having no table
        monkeypatch.setattr(Exchanged, "__dlpack_c_exchange_api__", odd)
        monkeypatch.setattr(Exchanged, "__dlpack__", Tensor.__dlpack__)
        assert (step(x).numpy() == 2).all()
    assert x.out == read_only.out == 0


def test_others_find_results_written(gpu: Driver) -> None:
    x = cuda.to_device(np.arange(5000, dtype=np.float32))
    step = cb.compile(lambda x: x * 2, argnums=None, device="cuda")
    for seed in range(4):
        gpu.seed(seed)
        ours, theirs = gpu.stream(), gpu.stream()
        y = step(x, stream=ours.value)
        capsule = y.__dlpack__(stream=theirs.value, max_version=(1, 0))
        assert "dltensor_versioned" in repr(capsule)
        target = gpu.allocate(4 * 5000)
        gpu.call(
            "cuMemcpyDtoDAsync",
            ctypes.c_uint64(target.address),
            ctypes.c_uint64(y.address),
            ctypes.c_size_t(4 * 5000),
            theirs,
        )
        gpu.call("cuStreamSynchronize", theirs)
        assert np.array_equal(gpu.get(target, np.float32, 5000), 2 * x.numpy())
        gpu.free(target)
    assert y.__dlpack_device__() == (2, 0)
    row = y.__cuda_array_interface__
    assert row["data"] == (y.address, False) and row["typestr"] == "<f4" and row["stream"] == 1
    again = step(y)  # and back in
    assert np.array_equal(again, 4 * x.numpy())
    step.wait()


def test_results_of_several_streams(gpu: Driver) -> None:
    """A result of one stream is read on another; blocks are reused only after their readers."""
    double = cb.compile(lambda x: x * 2, argnums=None, device="cuda")
    more = cb.compile(lambda x: x + 1, argnums=None, device="cuda")
    x = cuda.to_device(np.arange(3000, dtype=np.float32))
    for seed in range(6):
        gpu.seed(seed)
        a, b = gpu.stream().value, gpu.stream().value
        for _ in range(3):
            y = more(double(x, stream=a), stream=b)
            z = double(y, stream=a)
            del y
        assert np.array_equal(z, 2 * (2 * x.numpy() + 1))
        double.wait()
        more.wait()


def test_memory_goes_back(gpu: Driver) -> None:
    step = cb.compile(lambda x: x * 2, argnums=None, device="cuda")
    x = cuda.to_device(np.ones(100_000, np.float32))
    result = step(x)
    del result
    before = gpu.library.sim_allocated()
    for _ in range(5):
        result = step(x)
        address = result.address
        del result
    assert gpu.library.sim_allocated() == before
    result = step(x)
    assert result.address == address
    capsule = result.__dlpack__(stream=-1)
    del capsule, result
    assert gpu.library.sim_allocated() == before
    assert cuda.release_memory() >= 400_000
    assert gpu.library.sim_allocated() <= before - 400_000


def test_gradients_into_arrays_that_are_given(gpu: Driver) -> None:
    params, x, y = cuda.to_device(arrays())
    step = cb.value_and_grad(loss, device="cuda")
    _, fresh = step(params, x, y)
    out = cuda.to_device({key: np.zeros(a.shape, np.float32) for key, a in params.items()})
    given = {key: Tensor(gpu, np.zeros(a.shape, np.float32)) for key, a in params.items()}
    _, same = step(params, x, y, out=out)
    assert same["w1"] is out["w1"]
    step(params, x, y, out=given)
    for key, grad in fresh.items():
        assert np.array_equal(grad, out[key]) and np.array_equal(grad, given[key].get())


def test_types_and_ranks(gpu: Driver) -> None:
    step = cb.compile(lambda x, y: (x.astype("f32") * 2, y + 1), argnums=None, device="cuda")
    x = RawArray(np.array([[0x3F80, 0x4000]], np.uint16))  # bf16: 1, 2
    there = cuda.to_device(x)
    assert there.core_dtype == "bf16" and there.ndim == 2 and len(there) == 1
    with pytest.raises(AttributeError, match="bf16"):
        _ = there.__cuda_array_interface__
    doubled, count = step(there, cuda.to_device(np.array(4, np.int64)))
    assert np.array_equal(doubled, [[2, 4]]) and int(count) == 5 and count.item() == 5
    assert "DeviceArray(i64, shape=(), cuda:0)" in repr(count)
    with pytest.raises(TypeError, match="has no length"):
        len(count)
    empty = cuda.to_device(np.zeros((0, 3), np.float32))
    assert empty.numpy().shape == (0, 3)


def test_what_does_not_fit_is_named(gpu: Driver) -> None:
    step = cb.compile(lambda x: x * 2, argnums=None, device="cuda")
    a = np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match=r"x: a tensor of shape \(4, 4\).*not contiguous"):
        step(Tensor(gpu, a, strides=(1, 4)))
    with pytest.raises(TypeError, match=r"x: DLPack type \(code 5"):
        step(Tensor(gpu, a, kind=(5, 64)))
    with pytest.raises(TypeError, match="x: elements of type <c8"):
        step(Interface(Tensor(gpu, a), typestr="<c8"))
    with pytest.raises(ValueError, match="the step runs on the host"):
        cb.compile(lambda x: x * 2, argnums=None)(cuda.to_device(a))
    with pytest.raises(TypeError, match="is not a CUDA stream"):
        step(cuda.to_device(a), stream="main")
    with pytest.raises(ValueError, match="read-only"):
        trained = cb.compile(lambda w: (w * w).sum(), optimizer=cb.optim.SGD(lr=1), device="cuda")
        trained(Tensor(gpu, a, read_only=True))
    w = Tensor(gpu, a)
    with pytest.raises(ValueError, match="overlap"):
        trained = cb.compile(
            lambda p: (p[0] * p[1]).sum(), optimizer=cb.optim.SGD(lr=1), device="cuda"
        )
        trained([w, w])
    with pytest.raises(ValueError, match="copy"):
        np.asarray(cuda.to_device(a), copy=False)
    # Another dtype or shape compiles another program, as for NumPy arrays.
    assert np.array_equal(step(cuda.to_device(np.ones(3))), [2, 2, 2])


def test_copies_need_contiguous_arrays_of_the_same_size(gpu: Driver) -> None:
    there = cuda.to_device(np.arange(6, dtype=np.float32))
    read_only = np.zeros(6, np.float32)
    read_only.flags.writeable = False
    for array in (np.zeros(12, np.float32)[::2], np.zeros(5, np.float32), read_only):
        with pytest.raises(ValueError, match="a contiguous array of 24 bytes"):
            there.read(array)
        assert not array.any()
    for array in (np.ones(12, np.float32)[::2], np.ones(7, np.float32)):
        with pytest.raises(ValueError, match="a contiguous array of 24 bytes"):
            there.write(array)
    assert np.array_equal(there, np.arange(6))


def test_memory_and_streams_of_another_device(gpu: Driver) -> None:
    """Streams and memory of the second device, whose context another library made, are refused."""
    step = cb.compile(lambda x: x * 2, argnums=None, device="cuda")
    x = cuda.to_device(np.ones(8, np.float32))
    step(x)
    gpu.set(devices=2)
    context, mine = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuCtxGetCurrent", ctypes.byref(mine))
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    gpu.call("cuCtxSetCurrent", context)
    try:
        stream = gpu.stream()
        there = Tensor(gpu, np.ones(8, np.float32), device=1)
        with pytest.raises(ValueError, match="stream belongs to another device"):
            step(x, stream=stream.value)
        with pytest.raises(ValueError, match=r'"x"\) is on device 1.*runs on device 0'):
            step(there)
        assert np.array_equal(step(x), np.full(8, 2))  # nothing has changed
        with pytest.raises(
            NotImplementedError, match=r"device 1 was requested.*already uses device 0"
        ):
            cb.compile(lambda x: x * 3, argnums=None, device="cuda:1")(x)
    finally:
        gpu.call("cuCtxSetCurrent", mine)
        gpu.call("cuDevicePrimaryCtxRelease", 1)
        gpu.set(devices=1)


def test_an_index_out_of_range_on_a_stream(gpu: Driver) -> None:
    """The error comes when the step is waited for; parameters and states are unchanged."""
    table = np.ones((5, 3), np.float32)
    optimizer = cb.optim.SGD(lr=0.1, momentum=0.9)

    def lookup(table: Any, i: Any) -> Any:
        return (F.embedding(i, table) ** 2).sum()

    step = cb.compile(lookup, optimizer=optimizer, device="cuda")
    there = cuda.to_device(table)
    good, bad = cuda.to_device((np.array([0, 1], np.int32), np.array([0, 9], np.int32)))
    with pytest.raises(ValueError, match="index 9 out of range"):
        step(there, bad)
    assert optimizer.t == 0 and step.rng_step == 0
    stream = gpu.stream().value
    step(there, bad, stream=stream)
    with pytest.raises(ValueError, match="index 9 out of range"):
        step.wait()
    assert np.array_equal(there, table)
    step(there, good)
    assert not np.array_equal(there, table)


def test_read_only_arrays_are_handed_on_as_such(gpu: Driver) -> None:
    there = Tensor(gpu, np.ones(4, np.float32), read_only=True)
    array = device_arrays.of(there, "x", None)
    assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(1, 0)))
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()


def test_a_state_is_loaded_into_arrays_of_a_device(gpu: Driver) -> None:
    params, x, y = arrays()
    step = cb.compile(loss, optimizer=cb.optim.SGD(lr=1e-2, momentum=0.9), device="cuda")
    there = cuda.to_device(params)
    step(there, x, y)
    state, kept = step.state_dict(there), cuda.to_host(there)
    step(there, x, y)
    after = cuda.to_host(there)
    addresses = {name: array.address for name, array in there.items()}
    step.load_state_dict(state, there)
    assert {name: array.address for name, array in there.items()} == addresses
    for name, value in cuda.to_host(there).items():
        assert value.tobytes() == kept[name].tobytes()
    step(there, x, y)
    for name, value in cuda.to_host(there).items():
        assert value.tobytes() == after[name].tobytes()
