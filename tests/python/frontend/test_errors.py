"""Mistakes of users give the right exception, both values, the way out, and the line of the
program."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

A = np.ones((4, 3))
B = np.ones((5, 3))


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"\(4,3\).*\(5,3\).*\[test_errors.py:18\]"):
        cutback.trace(lambda a, b: a + b, A, B)


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (lambda a, b: a @ b, ValueError, r"matmul"),
        (lambda a, b: a.reshape(5), ValueError, r"\(4,3\)"),
        (lambda a, b: a.sum(axis=2), ValueError, "axis 2 is out of bounds"),
        (lambda a, b: a.sum(axis=(0, 0)), ValueError, "twice"),
        (lambda a, b: a.sum(axis=1.5), TypeError, "1.5"),
        (lambda a, b: a.transpose(0, 0), ValueError, r"axes \(0, 0\)"),
        (lambda a, b: a.squeeze(0), ValueError, "size 4, not 1"),
        (lambda a, b: cutback.concatenate([a, b], axis=1), ValueError, "concat"),
        (lambda a, b: cutback.stack([a, b]), ValueError, r"\(4, 3\), \(5, 3\)"),
        (lambda a, b: cutback.where(a, 1.0, 2.0), TypeError, "must be bool, not f64"),
        (lambda a, b: ~a, TypeError, "bool array, got f64"),
        (lambda a, b: a & a, TypeError, "two bool arrays"),
        (lambda a, b: a.astype("f8x"), TypeError, "f8x"),
        (lambda a, b: 1 if a.sum() > 0 else 2, TypeError, "truth value of a traced array"),
        (lambda a, b: float(a.sum()), TypeError, "float"),
        (lambda a, b: [1, 2][a.sum()], TypeError, "use as an index"),
        (lambda a, b: np.exp(a, out=np.ones((4, 4))), TypeError, "np.exp: out= is not supported"),
        (lambda a, b: np.mean(a, where=True), TypeError, "use cutback.where on the result"),
        (lambda a, b: np.maximum.accumulate(a), TypeError, "np.maximum.accumulate"),
        (
            lambda a, b: np.unique(a),
            TypeError,
            "the size of its result depends on the values of elements",
        ),
        (lambda a, b: np.spacing(a), TypeError, "cutback has no spacing"),
        (lambda a, b: a[:: a.sum()], TypeError, "use as an index"),
        (lambda a, b: cutback.arange(0, 5, 0), ValueError, "step must not be 0"),
        (lambda a, b: F.max_pool2d(a.reshape(1, 1, 4, 3), 1.5), TypeError, "kernel_size.*1.5"),
        (lambda a, b: np.asarray(a), TypeError, "conversion to NumPy"),
        (lambda a, b: a.__setitem__(0, 1), TypeError, "cannot be assigned"),
        (lambda a, b: cutback.exp("x"), TypeError, "str"),
    ],
)
def test_mistakes_in_a_traced_function(f, error, text):
    with pytest.raises(error, match=text) as caught:
        cutback.trace(f, A, B)
    if "str" not in text:
        assert "[test_errors.py:" in str(caught.value)


def test_operands_of_another_kind():
    for f in (lambda a: a + "x", lambda a: None * a, lambda a: a @ object(), lambda a: a < "x"):
        with pytest.raises(TypeError):
            cutback.trace(f, A)


def test_bf16_with_integers_says_what_to_do():
    ml = pytest.importorskip("ml_dtypes")
    with pytest.raises(
        TypeError, match=r"bf16 and i32 have no common type; convert.*\[test_errors.py:"
    ):
        cutback.trace(lambda a, b: a + b, np.ones(3, ml.bfloat16), np.ones(3, np.int32))


def test_outside_a_trace():
    with pytest.raises(TypeError, match=r"no function is being traced.*\[test_errors.py:"):
        cutback.exp(A)


def test_a_value_kept_from_another_trace():
    kept = []
    cutback.trace(lambda a: kept.append(a) or a * 2, A)
    with pytest.raises(ValueError, match="another trace"):
        cutback.trace(lambda a: a + kept[0], A)


def test_a_step_inside_a_trace_is_one_sentence():
    step = cutback.compile(lambda x: (x * 2).sum(), optimizer=cutback.optim.SGD(lr=0.1))
    with pytest.raises(TypeError, match="cannot be called inside a traced one") as refused:
        cutback.compile(lambda x: step(x) + 1, argnums=None)(A)
    assert str(refused.value).count("[test_errors.py:") == 1
    assert not any(word in str(refused.value) for word in ("_native", "NoneType", "object at"))


@pytest.mark.parametrize("argnums", [0, None])
def test_a_label_out_of_range_names_its_line_once(argnums):
    step = cutback.compile(lambda x, y: cutback.nn.functional.cross_entropy(x, y), argnums=argnums)
    with pytest.raises(ValueError, match="label 7 of row 2 is not one of 4 classes") as refused:
        step(np.zeros((3, 4), np.float32), np.array([0, 1, 7]))
    assert str(refused.value).count("test_errors.py:") == 1


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (lambda a: a, ValueError, r"f64\[4, 3\]; reduce it"),
        (lambda a: (a > 0).sum(), ValueError, r"i64\[\]"),
        (lambda a: (a.sum(), a), TypeError, "has_aux=True"),
        (lambda a: 3.0, TypeError, "float"),
        (lambda a: None, TypeError, "NoneType"),
    ],
)
def test_losses_that_have_no_gradient(loss, error, text):
    with pytest.raises(error, match=text):
        cutback.value_and_grad(loss)(A)


@pytest.mark.parametrize(
    ("args", "argnums", "error", "text"),
    [
        ((A, 1), 1, TypeError, "argnums=1: that argument holds no arrays"),
        ((A, np.arange(3)), 1, TypeError, "argnums=1: x is i64"),
        ((A, 1), 2, ValueError, "argnums=2"),
        ((np.ones(3, np.int16), 1), 0, TypeError, "dtype int16 is not supported"),
        ((np.ones(3, ">f8"), 1), 0, TypeError, "dtype >f8 is not supported"),
        ((object(), 1), 0, TypeError, "a: expected a NumPy array or a DLPack tensor, got object"),
        ((np.array(["x"]), 1), 0, TypeError, "<U1"),
    ],
)
def test_arguments(args, argnums, error, text):
    with pytest.raises(error, match=text):
        cutback.value_and_grad(lambda a, x: a.sum(), argnums=argnums)(*args)


def test_layouts_are_not_copied_silently():
    f = cutback.value_and_grad(lambda p, x: (p["w"] * x).sum())
    with pytest.raises(
        ValueError, match=r"p\['w'\].*strides \(8, 24\).*not contiguous.*ascontiguousarray"
    ):
        f({"w": A.T}, A.T.copy())
    with pytest.raises(ValueError, match=r"x: .*not contiguous"):
        f({"w": np.ones(2)}, np.ones(4)[::2])
    unaligned = np.frombuffer(bytearray(8 * 3 + 1), np.float64, 3, offset=1)
    with pytest.raises(ValueError, match="not aligned"):
        f({"w": unaligned}, np.ones(3))
    with pytest.raises(ValueError, match="9 dimensions"):
        f({"w": np.ones((1,) * 9)}, np.ones(3))


def test_what_is_written_must_not_overlap_or_be_read_only():
    step = cutback.compile(
        lambda p, x: (p["a"] * p["b"] * x).sum(), optimizer=cutback.optim.AdamW()
    )
    base = np.ones(6)
    with pytest.raises(ValueError, match="overlap"):
        step({"a": base[:3], "b": base[2:5]}, np.ones(3))
    np.testing.assert_array_equal(base, 1)
    with pytest.raises(ValueError, match=r"p\['a'\].*\"x\" overlap"):
        step({"a": base[:3], "b": np.ones(3)}, base[2:5])
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"p\['b'\]: the array is read-only.*copy"):
        step({"a": np.ones(3), "b": frozen}, np.ones(3))
    vg = cutback.value_and_grad(lambda p: (p * p).sum())
    with pytest.raises(ValueError, match="overlap"):
        vg(base, out=base)
    with pytest.raises(ValueError, match=r"expected f64 \(6,\), got f64 \(3,\)"):
        vg(base, out=np.ones(3))
    with pytest.raises(TypeError, match=r"expected f64 \(6,\), got f32 \(6,\)"):
        vg(base, out=np.ones(6, np.float32))
    # the error is about the array for the gradient, not about the parameter of the same name
    for out, text in (
        (np.frombuffer(bytearray(8 * 6 + 1), np.float64, 6, offset=1), "not aligned.*np.empty"),
        (np.ones(12)[::2], "not contiguous; pass one from np.empty"),
        (np.frombuffer(bytes(8 * 6), np.float64), "read-only, but the step writes to it"),
    ):
        with pytest.raises(ValueError, match=f"^out, for the gradient of p: .*{text}"):
            vg(base, out=out)


def test_mistakes_in_a_call_name_the_line_of_the_call():
    f = cutback.value_and_grad(lambda p, x: (p * x).sum())
    for args, options in (
        ((A, A[:, ::-1]), {}),
        ((A, object()), {}),
        ((A.astype(int), A), {}),
        ((A, A), {"out": A}),
        ((A, A), {"out": [A]}),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            f(*args, **options)
        assert "[test_errors.py:" in str(caught.value)
    run = f.prepare(A, A).executable
    with pytest.raises(ValueError, match=r"not contiguous.*\[test_errors.py:"):
        run(A, A[:, ::-1])
    with pytest.raises(ValueError, match=r"9 dimensions.*\[test_errors.py:"):
        cutback.trace(lambda a: a.reshape((1,) * 7 + (4, 3)), A)


@pytest.mark.parametrize(
    ("budget", "error", "text"),
    [
        ("0x", ValueError, r"\(0, 1\]"),
        ("150%", ValueError, r"\(0, 1\]"),
        ("1.5x", ValueError, r"\(0, 1\]"),
        ("x", ValueError, "not a share"),
        ("6 gigs", ValueError, "not a size"),
        (-1, ValueError, "-1 is negative; write a number of bytes"),
        ([1], TypeError, "write a position from 0 to 1 as"),
        (True, TypeError, "neither a position from 0 to 1 nor"),
        (np.True_, TypeError, "neither a position from 0 to 1 nor"),
        ("0.4", ValueError, r"a position as a number.*'0.4x'"),
        (1.5, ValueError, "a position must be from 0"),
        (float("nan"), ValueError, "a position must be from 0"),
        ("99999999999 TiB", ValueError, "more bytes"),
    ],
)
def test_budgets(budget, error, text):
    with pytest.raises(error, match=text):
        cutback.compile(lambda a: a.sum(), budget=budget)


def test_names_of_options():
    for options, text in (
        ({"measure": "peak"}, "measure='peak' is not one of arena, live, saved, total"),
        ({"preset": "best"}, "preset='best' is not one of autograd"),
    ):
        with pytest.raises(ValueError, match=text):
            cutback.compile(lambda a: a.sum(), **options)
    with pytest.raises(ValueError, match=r"backend|tpu"):
        cutback.compile(lambda a: a.sum(), backend="tpu")(A)
    with pytest.raises(ValueError, match="device"):
        cutback.compile(lambda a: a.sum(), device="abacus")(A)
    with pytest.raises(ValueError, match="needs argnums"):
        cutback.compile(lambda a: a.sum(), argnums=None, optimizer=cutback.optim.AdamW())


def test_an_optimizer_that_cannot_step_stops_the_run_before_it_starts():
    optimizer = cutback.optim.AdamW()
    step = cutback.compile(
        lambda p, x, m, v: F.batch_norm(x * p, m, v, training=True).sum(), optimizer=optimizer
    )
    p, x, mean, var = np.ones(2), np.arange(12.0).reshape(3, 2, 2), np.zeros(2), np.ones(2)
    optimizer.lr = float("inf")
    with pytest.raises(ValueError, match="lr=inf"):
        step(p, x, mean, var)
    np.testing.assert_array_equal((p, mean, var), ([1, 1], [0, 0], [1, 1]))
    assert optimizer.t == 0
    optimizer.lr = 0.1
    step(p, x, mean, var)
    assert mean.all() and optimizer.t == 1


def test_a_failed_step_leaves_everything_as_it_was():
    params = {"w": np.ones((4, 3))}
    optimizer = cutback.optim.AdamW(lr=0.1)
    step = cutback.compile(lambda p, i: p["w"][i].sum(), optimizer=optimizer)
    step(params, np.array([0, 3]))
    before = params["w"].copy()
    with pytest.raises(ValueError):
        step(params, np.array([0, 4]))
    np.testing.assert_array_equal(params["w"], before)
    assert optimizer.t == 1
    step(params, np.array([0, 3]))
    assert optimizer.t == 2


class Layer:
    """Has the attributes by which a PyTorch module is recognized."""

    def named_parameters(self):
        return []

    def forward(self, x):
        return x

    __call__ = forward


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda x: x.mean(dim=-1), "Array.mean has no dim=; write axis="),
        (lambda x: cutback.sum(x, dim=0), "cutback.sum has no dim=; write axis="),
        (lambda x: x.sum(axis=0, keepdim=True), "Array.sum has no keepdim=; write keepdims="),
        (lambda x: cutback.zeros(3, requires_grad=True), "has no requires_grad=; write argnums="),
        (lambda x: cutback.ones(3, device="cuda"), "has no device=; write device= of cutback.comp"),
        (lambda x: f"{x.sum():.3f}", "format '.3f' of a traced array"),
    ],
)
def test_words_of_other_libraries(f, text):
    with pytest.raises(TypeError, match=text) as caught:
        cutback.compile(f, argnums=None)(A)
    assert str(caught.value).count("[test_errors.py:") == 1


def test_words_of_the_users_own_functions():
    def mine(x):
        return x

    with pytest.raises(TypeError, match=r"mine\(\) got an unexpected keyword argument 'dim'$"):
        cutback.compile(lambda x: mine(x, dim=0), argnums=None)(A)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".requires_grad", "write argnums="),
        (".backward()", r"write cutback.grad\(f\)"),
        (".detach()", r"write cutback.stop_gradient\(x\)"),
    ],
)
def test_attributes_of_tensors(name, text):
    with pytest.raises(AttributeError, match=text) as caught:
        cutback.compile(lambda x: eval(f"x{name}", {"x": x}), argnums=None)(A)
    assert "[" in str(caught.value)


def test_modules_and_optimizers_of_pytorch():
    with pytest.raises(TypeError, match=r"Layer is a torch.nn.Module.*cutback.torch.compile\("):
        cutback.compile(Layer())
    for given, meant in (("adamw", "AdamW"), ("rmsprop", "RMSprop"), ("AdamW_8bit", "AdamW8bit"),
                         ("x", "AdamW")):  # fmt: skip
        with pytest.raises(
            TypeError, match=rf"optimizer='{given}': .*such as cutback.optim.{meant}\("
        ):
            cutback.compile(lambda x: x.sum(), optimizer=given)
    sgd = type("SGD", (), {"__module__": "torch.optim.sgd"})()
    with pytest.raises(TypeError, match=r"optimizer=a torch.SGD: .*cutback.optim.SGD\("):
        cutback.compile(lambda x: x.sum(), optimizer=sgd)


def test_one_array_in_two_places():
    w = np.ones((3, 3))
    step = cutback.compile(lambda p, x: (x @ p[0] @ p[1]).mean(), optimizer=cutback.optim.SGD(lr=1))
    with pytest.raises(
        ValueError, match=r"p\[0\] and p\[1\] overlap.*one array.*use it in both places"
    ):
        step([w, w], A)
    with pytest.raises(ValueError, match="overlap in memory"):
        step([w, w[:]], A)
    assert (w == 1).all()


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (lambda: cutback.relu, "cutback has no relu: write cutback.nn.functional.relu"),
        (lambda: cutback.cat, r"write cutback.concatenate\(\[x, y\], axis\)"),
        (lambda: cutback.nn.softmax, "cutback.nn has no softmax: write cutback.nn.functional.soft"),
        (lambda: cutback.nn.Linear, "layers are functions"),
        (lambda: cutback.random.PRNGKey, "cutback.random has no PRNGKey: .* seed= "),
        (lambda: cutback.random.split, "cutback.random has no split: .* seed= "),
        (lambda: cutback.linalg.logdet, "did you mean cutback.linalg.slogdet?"),
        (lambda: F.cat, "cutback.nn.functional has no cat: write cutback.concatenate"),
        (lambda: F.nothing_like_it, "has no attribute 'nothing_like_it'"),
        (lambda: cutback.nothing_like_it, "has no attribute 'nothing_like_it'"),
        (lambda: cutback.adamw, "write cutback.optim.AdamW"),
        (lambda: cutback.optim.lr_scheduler, "write cutback.optim.schedules"),
        (lambda: cutback.optim.chain, "optimizers have options instead"),
    ],
)
def test_names_of_other_libraries(find, text):
    with pytest.raises(AttributeError, match=text):
        find()


def test_a_from_import_says_what_to_write():
    with pytest.raises(ImportError, match=r"write cutback.nn.functional.relu"):
        exec("from cutback import relu")
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        exec("from cutback import nothing_like_it")


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (lambda a, b: a.size(0), TypeError, r"write x.shape, or x.shape\[0\]"),
        (lambda a, b: a.flatten(1), TypeError, r"write x.reshape\(x.shape\[0\], -1\)"),
        (lambda a, b: a[None].transpose(1, 2), ValueError, "swapaxes exchanges two axes"),
        (lambda a, b: a.mm(b), AttributeError, "has no .mm: write x @ y"),
        (
            lambda a, b: a.exp_(),
            AttributeError,
            r"no operation works in place; write x = cutback.exp\(x\)",
        ),
        (lambda a, b: cutback.random.normal(size=(2,)), TypeError, "no size=; write shape="),
        (lambda a, b: cutback.random.normal(0, 1, (2,)), TypeError, "the shape must come first"),
        (lambda a, b: np.heaviside(a, 0), TypeError, r"write cutback.where\(x > 0"),
        (lambda a, b: np.where(a > 0), TypeError, r"write cutback.where\(condition, x, y\)"),
        (lambda a, b: a.ravel(order="F"), TypeError, r"no order=; write x.T.reshape"),
        (lambda a, b: np.reshape(a, -1, order="F"), TypeError, r"order='F' is x.T.reshape"),
        (lambda a, b: a * (1, 2, 3), TypeError, r"got tuple; write np.array\(\[...\]\)"),
        (lambda a, b: np.average(a, weights=[1, 2]), TypeError, r"write np.array\(\[...\]\)"),
        (lambda a, b: np.fft.rfft(a), TypeError, "there are no complex numbers"),
        (lambda a, b: F.relu(None), TypeError, "expected a NumPy array .*, got NoneType"),
    ],
)
def test_calls_of_other_libraries(f, error, text):
    with pytest.raises(error, match=text) as caught:
        cutback.trace(f, A, B)
    assert "[test_errors.py:" in str(caught.value)


def test_a_function_of_pytorch():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"torch.exp takes no traced arrays; write cutback.exp"):
        cutback.trace(lambda a: torch.exp(a), A)


def test_round():
    assert cutback.compile(lambda a: round(a * 2.5), argnums=None)(A)[0, 0] == 2


def test_shapes_name_the_arguments_that_have_them():
    def loss(p, x):
        return (x @ p["w"] + p["b"]).sum()

    p = {"w": np.ones((3, 2)), "b": np.ones(2), "c": np.ones(5)}
    with pytest.raises(ValueError, match=r"second; x is \(4,5\), p\['w'\] is \(3,2\) \[test_err"):
        cutback.trace(loss, p, np.ones((4, 5)))
    many = [np.ones((3, 2)) for _ in range(4)]
    with pytest.raises(ValueError, match=r"; x is \(4,5\) \[test_err"):
        cutback.trace(lambda p, x: x @ p[0], many, np.ones((4, 5)))

    def own(p, x):
        raise ValueError("(4,5) [is the user's]")

    with pytest.raises(ValueError, match=r"^\(4,5\) \[is the user's\]"):
        cutback.trace(own, p, np.ones((4, 5)))
