"""Compares optimizers of matrices with their papers in NumPy, in f64."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

SHAPES = ((8, 8), (3, 20), (20, 3), (1, 7), (7, 1), (0, 4), (65, 130), (65, 130), (65, 130))


def orthogonal(u, o):
    a, b, c = o["ns_coefficients"]
    x = u / max(np.linalg.norm(u), o["eps"])
    for _ in range(o["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon_twin(p, g, m, v, o):
    mu, (h, w) = o["momentum"], p.shape
    m[:] = mu * m + (1 - mu) * g
    x = orthogonal(mu * m + (1 - mu) * g if o["nesterov"] else m, o)
    p *= 1 - o["lr"] * o["weight_decay"]
    if "beta2" in o:
        v[:] = o["beta2"] * v + (1 - o["beta2"]) * np.square(x).mean(axis=1)
        x = x / (np.sqrt(v) + o["row_eps"])[:, None]
        p -= 0.2 * o["lr"] * np.sqrt(p.size) / np.linalg.norm(x) * x
    elif o["adjust_lr_fn"] == "match_rms_adamw":
        p -= o["lr"] * 0.2 * np.sqrt(max(h, w)) * x
    else:
        p -= o["lr"] * np.sqrt(max(1, h / w)) * x


COMMON = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "eps": 1e-7,
          "ns_coefficients": (3.4445, -4.775, 2.0315), "ns_steps": 5}  # fmt: skip
CASES = [
    (optim.Muon, COMMON | {"nesterov": True, "adjust_lr_fn": None}),
    (optim.Muon, COMMON | {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
    (optim.NorMuon, COMMON | {"nesterov": False, "beta2": 0.9, "row_eps": 1e-8}),
    (optim.NorMuon, COMMON | {"nesterov": True, "beta2": 0.5, "row_eps": 1e-2}),
]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_steps_are_the_paper_s(kind, options, dtype):
    """In f64 the agreement is to the last digits. In f32, products of up to 130 numbers round, and
    the iteration, whose slope is 3.4 per turn, makes a small singular value's error up to 500 times
    as large."""
    rng = np.random.default_rng(0)
    params = [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]
    wholes = [p.astype("f8") for p in params]
    m, v = [np.zeros(s) for s in SHAPES], [np.zeros(s[0]) for s in SHAPES]
    optimizer = kind(**options)
    for _ in range(10):
        grads = [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]
        optimizer.step(params, grads)
        for i, p in enumerate(wholes):
            if p.size:
                muon_twin(p, grads[i].astype("f8"), m[i], v[i], options)
    most = 1e-12 if dtype == "f8" else 1e-4
    for p, whole in zip(params, wholes, strict=True):
        assert p.size == 0 or np.abs(p - whole).max() <= most
    for i, held in enumerate(optimizer.states["m"]):
        assert held.dtype == dtype
        np.testing.assert_allclose(held, m[i], rtol=1e-5, atol=1e-6)
    if kind is optim.NorMuon:
        assert [x.shape for x in optimizer.states["v"]] == [s[:1] for s in SHAPES]
    again = kind(**options)
    again.load_state_dict(optimizer.state_dict())
    others, grads = [p.copy() for p in params], [np.ones(s, dtype) for s in SHAPES]
    optimizer.step(params, grads)
    again.step(others, grads)
    assert [p.tobytes() for p in params] == [p.tobytes() for p in others]


def test_a_step_s_matrix_is_nearly_orthogonal():
    rng = np.random.default_rng(1)
    p, g = np.zeros((40, 90), "f4"), rng.standard_normal((40, 90)).astype("f4")
    optim.Muon(lr=1.0, weight_decay=0.0).step([p], [g])
    values = np.linalg.svd(p, compute_uv=False)
    assert 0.6 < values.min() < values.max() < 1.3


def test_zeros_missing_gradients_and_groups():
    params = {"a": np.ones((3, 4), "f4"), "b": np.ones((3, 4), "f4"), "c": np.ones((4, 3), "f4")}
    grads = {"a": np.zeros((3, 4), "f4"), "b": None, "c": np.ones((4, 3), "f4")}
    for kind in (optim.Muon, optim.NorMuon):
        optimizer = kind(lr=0.1, weight_decay=0.5, groups=[{"names": "*c*", "lr": 0.0}])
        given = {name: p.copy() for name, p in params.items()}
        optimizer.step(given, grads)
        assert (given["a"] == np.float32(0.95)).all()  # decayed
        assert (given["b"] == 1).all()
        assert (given["c"] == 1).all()


def test_the_same_bits_for_any_threads():
    rng = np.random.default_rng(0)
    shapes = [(300, 500)] * 3 + [(64, 64)] * 20
    params, grads = ([rng.standard_normal(s).astype("f4") for s in shapes] for _ in range(2))
    seen = []
    before = cutback.get_num_threads()
    for threads in (1, 2, 3):
        cutback.set_num_threads(threads)
        given = [p.copy() for p in params]
        optim.NorMuon().step(given, grads)
        seen.append(b"".join(p.tobytes() for p in given))
    cutback.set_num_threads(before)
    assert len(set(seen)) == 1


def test_extras_are_there():
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal((30, 700)).astype("f4") for _ in range(2))
    twin, average = p.copy(), np.zeros_like(p)
    optim.Muon().step([twin], [g * np.float32(0.5)])
    given = g.copy()
    outcome = optim.Muon().step([p], [given], grad_scale=2.0, averages=[average],
                                average_decay=0.0, zero_grads=True)  # fmt: skip
    assert p.tobytes() == twin.tobytes() == average.tobytes()
    assert not given.any()
    assert outcome.grad_norm == pytest.approx(np.linalg.norm(g) / 2, rel=1e-6)


def test_what_cannot_be_is_said():
    with pytest.raises(
        ValueError, match=r"params\[0\] has 1 axes, but muon supports only matrices"
    ):
        optim.Muon().step([np.ones(3, "f4")], [np.ones(3, "f4")])
    with pytest.raises(ValueError, match=r"adjust_lr_fn='none' is not one of"):
        optim.Muon(adjust_lr_fn="none")
    with pytest.raises(ValueError, match=r"ns_coefficients=\(1,\) must be three"):
        optim.NorMuon(ns_coefficients=(1,))
    with pytest.raises(ValueError, match="ns_steps"):
        optim.Muon(ns_steps=100)
    with pytest.raises(ValueError, match="lr=nan must be finite"):
        optim.Muon(lr=float("nan"))


OTHERS = {
    "adafactor": optim.Adafactor,
    "8bit": optim.AdamW8bit,
    "muon": optim.Muon,
    "normuon": optim.NorMuon,
    "soap": lambda: optim.SOAP(precondition_frequency=1),
}


@pytest.mark.parametrize("updates", ["after", "inside"])
@pytest.mark.parametrize("name", OTHERS)
def test_compiled_steps_have_the_bits_of_steps_on_arrays(name, updates):
    rng = np.random.default_rng(4)
    first = {"u": rng.standard_normal((9, 20), "f4"), "v": rng.standard_normal((20, 4), "f4")}
    x, made = rng.standard_normal((3, 9), "f4"), (OTHERS[name](), OTHERS[name]())

    def loss(p, x):
        return ((x @ p["u"] @ p["v"]) ** 2).mean()

    step = cutback.compile(loss, optimizer=made[0], updates=updates)
    gradients = cutback.value_and_grad(loss)
    params, others = ({k: v.copy() for k, v in first.items()} for _ in range(2))
    for _ in range(3):
        step(params, x)
        made[1].step(others, gradients(others, x)[1])
    held = [[*p.values(), *o.state_dict().values()] for p, o in zip((params, others), made)]  # noqa: B905
    assert [np.asarray(a).tobytes() for a in held[0]] == [np.asarray(a).tobytes() for a in held[1]]
    assert (params["u"] != first["u"]).any()


def test_compiled_steps_of_matrices_refuse_other_parameters():
    params = {"w": np.ones((3, 3), "f4"), "b": np.ones(3, "f4")}
    step = cutback.compile(lambda p: (p["w"] * p["b"]).sum(), optimizer=optim.Muon())
    with pytest.raises(ValueError, match=r"has 1 axes; only matrices are stepped"):
        step(params)
    assert (params["w"] == 1).all()
