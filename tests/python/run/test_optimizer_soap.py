"""Compares SOAP with its paper in NumPy, in f64."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

OPTIONS = {"lr": 0.02, "betas": (0.9, 0.95), "shampoo_beta": 0.8, "eps": 1e-6,
           "weight_decay": 0.1, "precondition_frequency": 3}  # fmt: skip


def folded(x):
    return x.reshape(x.shape[0], int(np.prod(x.shape[1:]))) if x.ndim > 1 else x


class Twin:
    """One parameter; bases as in the paper: columns, by LAPACK."""

    def __init__(self, p, most=50):
        self.p = folded(p).astype("f8")
        self.m, self.v = np.zeros_like(self.p), np.zeros_like(self.p)
        sides = self.p.shape if self.p.ndim > 1 else ()
        self.gram = [np.zeros((n, n)) if n <= most else None for n in sides]
        self.basis = [None] * len(sides)

    def turned(self, x, back=False):
        for axis, q in enumerate(self.basis):
            if q is not None:
                x = np.moveaxis(np.tensordot(q if back else q.T, x, (1, axis)), 0, axis)
        return x

    def mixed(self, g, beta):
        for axis, gram in enumerate(self.gram):
            if gram is not None:
                gram += (1 - beta) * (np.tensordot(g, g, ((1 - axis,), (1 - axis,))) - gram)

    def step(self, g, t, o):
        g, (b1, b2), k = folded(g).astype("f8"), o["betas"], t - 1
        if t == 1:
            self.mixed(g, o["shampoo_beta"])
            self.basis = [None if x is None else np.linalg.eigh(x)[1][:, ::-1] for x in self.gram]
            return
        self.m += (1 - b1) * (g - self.m)
        self.v += (1 - b2) * (self.turned(g) ** 2 - self.v)
        n = self.turned(self.turned(self.m) / (np.sqrt(self.v) + o["eps"]), back=True)
        self.p -= o["lr"] * np.sqrt(1 - b2**k) / (1 - b1**k) * n
        self.p *= 1 - o["lr"] * o["weight_decay"]
        self.mixed(g, o["shampoo_beta"])
        if k % o["precondition_frequency"] == 0:
            self.refresh()

    def refresh(self):
        for axis, (gram, q) in enumerate(zip(self.gram, self.basis, strict=True)):
            if gram is not None:
                order = np.argsort(-np.diag(q.T @ gram @ q), kind="stable")
                self.v = np.take(self.v, order, axis)
                self.basis[axis] = np.linalg.qr(gram @ q[:, order])[0]


def drawn(rng, shapes, dtype):
    return [np.array(rng.standard_normal(s) * 10.0 ** rng.integers(-2, 2), dtype) for s in shapes]


def test_thirty_steps_are_the_paper_s():
    """The bases are unique: no side is longer than the other, unless the longer one has no
    basis."""
    shapes = ((6, 6), (1, 1), (33, 33), (4, 60), (60, 4), (5, 3, 20), (7,), (), (60, 70), (0, 3))
    rng, optimizer = np.random.default_rng(0), optim.SOAP(**OPTIONS, max_precond_dim=50)
    params = drawn(rng, shapes, "f8")
    twins = [Twin(p) for p in params]
    for t in range(1, 31):
        grads = drawn(rng, shapes, "f8")
        optimizer.step(params, grads)
        for twin, g in zip(twins, grads, strict=True):
            if g.size:
                twin.step(g, t, OPTIONS)
    for i, (p, twin) in enumerate(zip(params, twins, strict=True)):
        np.testing.assert_allclose(folded(p), twin.p, rtol=1e-6, atol=1e-6, err_msg=str(shapes[i]))
        for state in ("m", "v"):
            mine = folded(optimizer.states[state][i])
            np.testing.assert_allclose(mine, getattr(twin, state), rtol=1e-5, atol=1e-12)
        names = [state for state in ("left", "right") if optimizer.states[state][i] is not None]
        wanted = [n for n, x in zip(("left", "right"), twin.gram, strict=False) if x is not None]
        assert names == (wanted if p.size else [])
        for axis, state in enumerate(("left", "right")):
            if state in names:
                gram, basis = optimizer.states[state][i]
                np.testing.assert_allclose(gram, twin.gram[axis], rtol=1e-9, atol=1e-12)
                along = np.abs(np.sum(basis.T * twin.basis[axis], axis=0))
                np.testing.assert_allclose(along, 1, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_each_step_from_its_own_bases(dtype):
    """The shapes include some with several panels in the decomposition."""
    shapes = ((6, 4), (4, 6), (40, 70), (130, 50), (3, 2, 5))
    rng, optimizer = np.random.default_rng(1), optim.SOAP(**OPTIONS)
    params = drawn(rng, shapes, dtype)
    units = 1000 * np.finfo(dtype).eps
    for t in range(1, 9):
        grads, before = drawn(rng, shapes, dtype), optimizer.state_dict()
        olds = [p.copy() for p in params]
        optimizer.step(params, grads)
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            twin = Twin(olds[i], most=1000)
            states = {n: optimizer.states[n][i] for n in ("m", "v", "left", "right")}
            if t > 1:
                held = {n: before[f"params[{i}].{n}"].astype("f8") for n in states}
                twin.m, twin.v = folded(held["m"]), folded(held["v"])
                twin.gram = [held[n][0].copy() for n in ("left", "right")]
                twin.basis = [held[n][1].T for n in ("left", "right")]
            first = twin.basis
            twin.step(g, t, OPTIONS | {"precondition_frequency": 1000})
            assert np.abs(folded(p) - twin.p).max() <= units
            np.testing.assert_allclose(folded(states["m"]), twin.m, rtol=units, atol=units)
            for k, n in enumerate(("left", "right")):
                gram, basis = states[n].astype("f8")
                near = units * np.abs(gram).max()
                assert np.abs(gram - twin.gram[k]).max() <= near
                assert np.abs(basis @ basis.T - np.eye(len(basis))).max() <= units
                if t == 1:
                    values = basis @ gram @ basis.T
                    assert np.abs(values - np.diag(np.diag(values))).max() <= near
                    assert (np.diff(np.diag(values)) <= near).all()
                elif (t - 1) % 3 == 0:
                    order = np.argsort(-np.diag(first[k].T @ gram @ first[k]), kind="stable")
                    if dtype == "f8":  # in f32, nearly equal values may change places
                        twin.v = np.take(twin.v, order, k)
                        ended = basis @ gram @ first[k][:, order]
                        assert np.abs(np.tril(ended, -1)).max() <= near
                else:
                    assert (basis == first[k].T).all()
            mine = folded(states["v"])
            if dtype == "f4":
                mine, twin.v = np.sort(mine, axis=None), np.sort(twin.v, axis=None)
            np.testing.assert_allclose(mine, twin.v, rtol=units, atol=units * twin.v.max())


@pytest.mark.parametrize("rank", [3, 400])
@pytest.mark.parametrize("n", [2, 31, 64, 256, 300])
def test_the_first_bases_are_eigenvectors(n, rank):
    rng = np.random.default_rng(0)
    p, g = np.zeros((n, rank)), rng.standard_normal((n, rank))
    optimizer = optim.SOAP(max_precond_dim=n)
    optimizer.step([p], [g])
    mean, basis = optimizer.states["left"][0]
    wanted = np.linalg.eigvalsh(mean)[::-1]
    np.testing.assert_allclose(basis @ basis.T, np.eye(n), atol=1e-13 * n)
    np.testing.assert_allclose(basis @ mean @ basis.T, np.diag(wanted), atol=1e-14 * n * wanted[0])


def test_the_same_bits_for_any_threads_and_instruction_set(monkeypatch):
    shapes, seen, before = ((70, 40), (200, 300), (5,), (64, 3, 3)), [], cutback.get_num_threads()
    for threads, isa in ((1, "avx512"), (2, "avx2"), (3, "baseline")):
        monkeypatch.setenv("CUTBACK_ISA", isa)
        cutback.set_num_threads(threads)
        rng = np.random.default_rng(0)
        params, optimizer = drawn(rng, shapes, "f4"), optim.SOAP(precondition_frequency=2)
        for _ in range(4):
            optimizer.step(params, drawn(rng, shapes, "f4"))
        state = optimizer.state_dict()
        seen.append(b"".join(p.tobytes() for p in (*params, *map(np.asarray, state.values()))))
    cutback.set_num_threads(before)
    assert len(set(seen)) == 1


@pytest.mark.parametrize("scale", [1e-18, 1e-12, 1.0, 1e9, 1e16])
@pytest.mark.parametrize("kind", ["ones", "dead rows", "one dead row", "once, then nothing"])
def test_gradients_without_full_rank(kind, scale):
    """In f32, at any scale with finite squares, bases stay orthonormal and parameters finite."""
    draw = np.random.default_rng(1)
    for shape in ((4, 4), (5, 3), (17, 33), (64, 40), (8, 3, 3, 3)):
        params = [draw.standard_normal(shape).astype(np.float32)]
        alive = np.ones((shape[0], *[1] * (len(shape) - 1)), np.float32)
        if "row" in kind:
            alive[1 : None if kind == "dead rows" else 2 : 2] = 0
        optimizer = cutback.optim.SOAP(precondition_frequency=3)
        for k in range(13):
            gradient = np.ones(shape) if kind == "ones" else draw.standard_normal(shape)
            gradient *= scale * alive * (k == 0 or kind != "once, then nothing")
            optimizer.step(params, [gradient.astype(np.float32)])
        assert np.isfinite(params[0]).all(), shape
        for side in ("left", "right"):
            if (state := optimizer.states[side][0]) is not None:
                q = state[1].astype(np.float64)  # q comes after the mean of products
                np.testing.assert_allclose(q @ q.T, np.eye(len(q)), atol=1e-5, err_msg=str(shape))


def test_it_learns_where_adam_is_slow():
    """The problem is a quadratic with rotated axes, where Adam uses the wrong basis."""
    rng = np.random.default_rng(0)
    turns = [np.linalg.qr(rng.standard_normal((16, 16)))[0] for _ in range(2)]
    scales = 10.0 ** np.linspace(0, -3, 16)
    curved = [(q * scales) @ q.T for q in turns]
    start = rng.standard_normal((16, 16))

    def left_of(optimizer):
        p = start.copy()
        for _ in range(300):
            optimizer.step([p], [curved[0] @ p @ curved[1]])
        return np.sum(p * (curved[0] @ p @ curved[1])) / np.sum(
            start * (curved[0] @ start @ curved[1])
        )

    soap = left_of(optim.SOAP(lr=0.03, weight_decay=0.0))
    adam = left_of(optim.Adam(lr=0.03, betas=(0.95, 0.95)))
    assert soap < adam / 3


def test_a_state_goes_on_elsewhere_with_groups_and_what_waits():
    shapes = ((6, 8), (8, 6), (5,))
    rng = np.random.default_rng(0)
    make = lambda: optim.SOAP(precondition_frequency=2, groups=[  # noqa: E731
        {"names": "*[1]*", "lr": 0.1, "precondition_frequency": 1}])  # fmt: skip
    params, optimizer = drawn(rng, shapes, "f4"), make()
    for t in range(3):
        grads = drawn(rng, shapes, "f4")
        optimizer.step(params, [None if i == t else g for i, g in enumerate(grads)])
    again, others = make(), [p.copy() for p in params]
    again.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        grads = drawn(rng, shapes, "f4")
        optimizer.step(params, grads)
        again.step(others, grads)
    assert [p.tobytes() for p in params] == [p.tobytes() for p in others]


def test_extras_zeros_and_what_is_no_number():
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal((30, 70)).astype("f4") for _ in range(2))
    plain, one = optim.SOAP(), optim.SOAP()
    twin, average = p.copy(), np.zeros_like(p)
    for _ in range(2):
        plain.step([twin], [g * np.float32(0.5)])
        given = g.copy()
        outcome = one.step([p], [given], grad_scale=2.0, averages=[average], average_decay=0.0,
                           zero_grads=True)  # fmt: skip
        assert p.tobytes() == twin.tobytes() == average.tobytes()
        assert not given.any()
    assert outcome.grad_norm == pytest.approx(np.linalg.norm(g) / 2, rel=1e-6)
    for value in (0.0, np.nan, np.inf):
        q, bad = np.ones((9, 9), "f4"), optim.SOAP(precondition_frequency=1, weight_decay=0.0)
        for _ in range(3):
            bad.step([q], [np.full_like(q, value)])
        assert (q == 1).all() if value == 0 else np.isnan(q).all()


def test_what_cannot_be_is_said():
    for options, text in (({"shampoo_beta": 2}, "shampoo_beta=2.0 must be in"),
                          ({"precondition_frequency": 0}, "precondition_frequency"),
                          ({"max_precond_dim": -1}, "max_precond_dim"),
                          ({"betas": (0.9, 1.0)}, "not in"),
                          ({"lr": -1}, "at least 0")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            optim.SOAP(**options)
    with pytest.raises(ValueError, match="a group needs"):
        optim.SOAP(groups=[{"names": "*", "max_precond_dim": 3}])
    half = optim.SOAP(half="master")
    with pytest.raises(NotImplementedError, match="steps only f32 and f64 parameters"):
        half.step([np.ones((3, 3), "f2")], [np.ones((3, 3), "f2")])
