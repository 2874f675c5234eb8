"""Generated programs with odd things that users do in regions and compiled functions.

A program is text. It defines ``program(x, w, n)`` for a matrix ``x`` [4, 4], a weight ``w`` [4, 4]
that needs a gradient and a buffer ``n`` [4]. ``verdict`` compares the results of an entry point
with those of eager PyTorch, and of PyTorch's own checkpoint or ``aot_eager``."""

# ruff: noqa: E501  (a statement of a program is one line)
from __future__ import annotations

import copy
import linecache
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves

HEADER = """\
import copy, contextlib, dataclasses, collections
import torch
import torch.nn.functional as F
import cutback.torch as ct
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

@dataclasses.dataclass
class Result:
    value: object
    rest: object = None

Pair = collections.namedtuple("Pair", "value rest")

class Tagged(torch.Tensor):
    pass

class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.mark_non_differentiable(k)
        return x * 2, k
    @staticmethod
    def backward(ctx, g, _):
        return None, None

class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, d):
        ctx.x, ctx.d = x, d
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        return g + ctx.x.detach() * 0, None

class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.sin(), x.cos()
        ctx.save_for_backward(a, b, None)
        ctx.set_materialize_grads(False)
        return a, b, None
    @staticmethod
    def backward(ctx, g, h, _):
        a, b, none = ctx.saved_tensors
        assert none is None
        return (0 if g is None else g * b) - (0 if h is None else h * a)

class Both(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x * w, w * 2
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.needed = ctx.needs_input_grad
    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        return g * w if ctx.needed[0] else None, g * x + 2 * h

class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, g):
        return g * 2

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.x, ctx.name = x, "late"
        return x @ w
    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            w = ctx.saved_tensors[1].detach().requires_grad_()
            return torch.autograd.grad(x @ w, (x, w), g)

lin = torch.nn.Linear(4, 4)
norm = torch.nn.BatchNorm1d(4)
gru = torch.nn.GRU(4, 4)
"""

STATEMENTS = (
    "h = h.sin() * w",
    "h = h @ w",
    "h = torch.relu(h)",
    "h = F.dropout(h, 0.5)",
    "h = F.gelu(h).clone()",
    "h = torch.utils.checkpoint.checkpoint(torch.sin, h, use_reentrant=False)",
    "h = checkpoint(lambda a: a.cos().exp(), h, use_reentrant=True)",
    "h = checkpoint(lambda a: checkpoint(torch.sin, a, use_reentrant=False) * 2, h, use_reentrant=False)",
    "h = h * torch.autograd.grad((w * w).sum(), w, create_graph=True)[0]",
    "h = h + torch.autograd.grad(h.sin().sum(), h, create_graph=True)[0] if h.requires_grad else h",
    "h = h + torch.autograd.grad(h.sum(), w, retain_graph=True, allow_unused=True)[0].detach()",
    "h = h.as_subclass(Tagged).sin()",
    "h = h.as_subclass(Logged) * 2",
    "h = h.as_subclass(torch.nn.Parameter) * 2",
    "h = TwoTensor(h, h * 2).sin().a",
    "h = TwoTensor(h.detach(), h.detach()).mul(2).b + h",
    "h.register_hook(lambda g: g * 2) if h.requires_grad else None",
    "h.register_hook(lambda g: None) if h.requires_grad else None",
    "h.retain_grad() if h.requires_grad else None",
    "h.grad_fn.register_hook(lambda a, b: None) if h.grad_fn else None",
    "h.grad_fn.register_prehook(lambda a: None) if h.grad_fn else None",
    "with torch.no_grad(): h = h.cos()",
    "with torch.no_grad(): h2 = h.cos(); h = h + h2",
    "with torch.inference_mode(): h = h.cos()",
    "with torch.inference_mode(): k = n.cos()",
    "with torch.enable_grad(): h = h * 2",
    "with torch.set_grad_enabled(False): h = h.exp()",
    "h = h.detach()",
    "h = h.detach().requires_grad_() * 3",
    "h = h.view(2, 8).t().reshape(4, 4)",
    "h = h.clone(); h[0].mul_(2)",
    "h = h.clone(); h[:, 1:3] = 0",
    "h = h.clone(); h.t_()",
    "h = h.clone(); h.unsqueeze_(0); h.squeeze_(0)",
    "h = h.clone(); h.detach_()",
    "h = h.clone(); h.resize_(4, 4) if not h.requires_grad else None",
    "h = h.clone(); h.requires_grad_()",
    "h = h.mul_(2)",
    "n.add_(1)",
    "n.data = n.data * 2",
    "n.data.mul_(2)",
    "n.set_(torch.ones(4))",
    "w.data.mul_(1.0)",
    "w.grad = torch.zeros_like(w)",
    "x.mul_(2)",
    "h = Square.apply(h)",
    "h, _ = Nothing.apply(h, n)",
    "h = Keep.apply(h, {'a': h, 'b': [n]})",
    "h = copy.deepcopy(n) + h",
    "h = h + copy.deepcopy(w.detach())",
    "h = copy.deepcopy(lin)(h)",
    "h = copy.copy(h)",
    "h = torch.func.functional_call(lin, dict(lin.named_parameters()), h)",
    "h = torch.func.functional_call(lin, {'weight': w, 'bias': n}, (h,))",
    "h = torch.vmap(lambda a: a.sin() * n)(h)",
    "h = torch.vmap(torch.vmap(torch.cos))(h)",
    "h = torch.vmap(lambda a: F.dropout(a, 0.5), randomness='different')(h)",
    "h = torch.func.jvp(torch.sin, (h,), (torch.ones_like(h),))[1]",
    "h = torch.func.grad(lambda a: a.sin().sum())(h)",
    "h = torch.func.vjp(torch.sin, h)[1](torch.ones_like(h))[0]",
    "h = torch.func.jacrev(lambda a: a.sin().sum(0))(h).sum(1).t()[:4, :4]",
    "h = torch.func.hessian(lambda a: (a * a).sum())(n).diag() * h",
    "h = torch.func.functionalize(lambda a: a.clone().mul_(2))(h)",
    "with torch.autocast('cpu', torch.bfloat16): h = (h @ w).float()",
    "with torch.autocast('cpu', enabled=False): h = h @ w",
    "h = h.bfloat16().float()",
    "h = h.double().float()",
    "h = h.half().float()",
    "h = h + torch.empty(4, 4, device='meta').shape[0]",
    "k = torch.ones(4, device='meta') * 2",
    "h = h + torch.ones(4, device='meta')",
    "h = torch.view_as_real(torch.complex(h, h)).sum(-1)",
    "h = (h.to(torch.complex64) * 1j).imag",
    "h = torch.complex(h, h).conj().real",
    "h = torch.complex(h, h).conj().imag",
    "h = torch.fft.ifft(torch.fft.fft(h)).real",
    "h = torch.cat([h, h[:0]])",
    "h = h + h[:0].sum()",
    "k = torch.empty(0, 4).sum(); h = h + k",
    "h = h[:, :0].sum(1, keepdim=True) + h",
    "h = torch.sparse.mm(torch.eye(4).to_sparse(), h)",
    "h = (h.to_sparse() * 2).to_dense()",
    "h = h.to_sparse_csr().to_dense()",
    "h = h.to_mkldnn().to_dense()",
    "h = torch.nested.nested_tensor([n, n]).to_padded_tensor(0.0).sum() + h",
    "h = torch.nested.as_nested_tensor([h[0], h[1]]).to_padded_tensor(0.0).sum() + h",
    "h = torch.quantize_per_tensor(h.detach(), 0.1, 0, torch.quint8).dequantize() + h",
    "h = h * h.max().item()",
    "h = h if h.sum() > 0 else h * 2",
    "h = h[h > 0].sum() + h",
    "h = h + len(h.nonzero())",
    "h = h + torch.from_numpy(h.detach().numpy().copy())",
    "h = h + float(h.detach().numpy().sum())",
    "h = h + torch.tensor(h.tolist())",
    "h = lin(h)",
    "h = norm(h)",
    "h = gru(h)[0]",
    "h = F.embedding(torch.tensor([0, 1, 2, 3]), h)",
    "h = F.embedding(torch.tensor([0, 1, 2, 3]), w, sparse=True) + h",
    "h = F.scaled_dot_product_attention(h[None], h[None], h[None])[0]",
    "h = F.batch_norm(h, n, n.abs() + 1, training=True)",
    "h = torch.linalg.svd(h)[1] + h",
    "h = torch.linalg.inv(h + 5 * torch.eye(4))",
    "h = torch.einsum('ij,jk->ik', h, w)",
    "h = torch.stack(h.unbind(0))",
    "h = torch.cat(h.split(1))",
    "h = torch.cat(list(torch.chunk(h, 3)))",
    "h = h.as_strided((4, 4), (1, 4))",
    "h = h.unfold(0, 2, 2).reshape(4, 4)",
    "h = h.to('cpu')",
    "h = h.new_zeros(4, 4) + h",
    "h = torch.zeros_like(h).copy_(h)",
    "h = torch.empty_like(h).fill_(1).mul_(h)",
    "torch.manual_seed(0)",
    "h = h + torch.rand(4, 4)",
    "h = h + torch.randn(4, generator=torch.Generator().manual_seed(1))",
    "h = torch.where(h > 0, h, n)",
    "h.backward(torch.ones_like(h), retain_graph=True) if h.requires_grad else None",
    "torch.autograd.backward([h.sum()], inputs=[w], retain_graph=True) if h.requires_grad else None",
    "w.requires_grad_(True)",
    "n.requires_grad_()",
    "with torch.autograd.graph.save_on_cpu(): h = h.sin()",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t): h = h.sin()",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda t: t[0]): h = h * h",
    "with torch.autograd.graph.disable_saved_tensors_hooks('none'): h = h.sin()",
    "with torch.autograd.graph.allow_mutation_on_saved_tensors(): h = h.sin()",
    "with torch.autograd.detect_anomaly(check_nan=False): h = h.sin()",
    "with torch.autograd.profiler.record_function('a'): h = h.sin()",
    "with torch.device('meta'): k = torch.ones(3)",
    "with torch.autograd.forward_ad.dual_level(): h = torch.autograd.forward_ad.unpack_dual(torch.autograd.forward_ad.make_dual(h, h)).primal",
    "torch._assert(h.shape[0] == 4, 'shape')",
    "raise ValueError('of the user')",
    "assert h.shape[0] == 4",
    "h.nothing",
    "assert h.shape[0] == 5, 'of the user'",
    "del x; x = h",
    "h = torch.utils.dlpack.from_dlpack(h.detach()) + h",
    "h = torch.jit.script(torch.nn.Linear(4, 4))(h)",
    "h.untyped_storage().resize_(h.untyped_storage().nbytes())",
    "h = torch.ops.aten.sin.default(h)",
    "h = torch._foreach_mul([h, h], 2)[0]",
    "h = h.numpy(force=True).sum() + h",
    "h = torch.cond(h.shape[0] > 2, torch.sin, torch.cos, (h,))",
    "h.foo = 3",
    "h = h.share_memory_() if not h.requires_grad else h",
    "h = h.__torch_function__(torch.add, (torch.Tensor,), (h, h))",
    "with torch.set_default_device('cpu') or contextlib.nullcontext(): h = h + 1",
    "h = TwoTensor(h, h.clone()).matmul(TwoTensor(w, w.clone())).a",
    "t = TwoTensor(h, h * 3); t = t * 2; h = t.b + t.a",
    "k = TwoTensor(n.clone(), n.clone()); k.mul_(2); h = h + k.a",
    "k = x.new_empty(0); h = h + k.sum()",
    "k = h.new_empty(0, 4); h = torch.cat([k, h]) * 2",
    "h = h * h.new_tensor(2.0).sin()",
    "h = h * w.sum().exp().log()",
    "h = h.sum() * h.new_ones(())",
    "h = h.mean(0).sum().expand(4, 4) + h",
    "h = (h.bfloat16() @ w.bfloat16()).float()",
    "h = F.linear(h.bfloat16(), w.bfloat16()).relu()",
    "h = torch.complex(h, w).exp().abs()",
    "h = torch.view_as_complex(torch.stack([h, w], -1)).mul(1j).real",
    "h = torch.complex(h, h).conj().resolve_conj().imag.neg()",
    "h = torch.view_as_real(torch.complex(h, w).conj())[..., 1]",
    "h = torch.cond(h.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (h,))",
    "h = torch.cond(h.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: a * b, (h, w))",
    "torch._dynamo.graph_break(); h = h.sin()",
    "h = h.sin(); torch._dynamo.graph_break(); h = h * w",
    "k = h.shape[0] * h.stride(0); h = h * k",
    "h = h.reshape(h.shape[0] * 2, -1).sin().reshape(4, 4)",
    "h = h[: h.shape[0] // 2].repeat(2, 1)",
    "h = torch.arange(h.shape[0]).float()[:, None] * h",
    "h = h.masked_select(h > h.min()).sum() + h",
    "h = torch.unique(n).sum() + h",
    "k = torch.nonzero(n > 0); h = h * (k.shape[0] + 1)",
    "with torch.no_grad(): w.mul_(1.0)",
    "with torch.no_grad(): n.copy_(h[0])",
    "with torch.no_grad(): h.clone().mul_(2)",
    "with torch.no_grad(): k = h.detach(); h = h * k.sigmoid()",
    "h = Halves.apply(h)[0] + h",
    "h, k = Both.apply(h, w); h = h + k",
    "h = Both.apply(h, w)[0]",
    "h = Dirty.apply(h.clone())",
    "h = Twice.apply(h)",
    "h = Late.apply(h, w)",
    "h = torch.func.vmap(lambda a, b: (a * b).sum())(h, w)[:, None] * h",
    "h = torch.func.grad(lambda a: (a @ w).sum())(h)",
    "h = h * torch.func.grad(lambda a: (a * a).sum())(w.detach())",
    "h = F.layer_norm(h, (4,), w[0], n)",
    "h = F.rms_norm(h, (4,), w[0])",
    "h = F.cross_entropy(h, torch.tensor([0, 1, 2, 3])) * h",
    "h = F.conv1d(h[None], w[:, :, None])[0]",
    "h = F.max_pool1d(h[None], 2)[0].repeat(1, 2)",
    "h = F.embedding_bag(torch.tensor([[0, 1], [2, 3]]), w).repeat(2, 1) * h",
    "h = torch.nn.utils.parametrizations.weight_norm(copy.deepcopy(lin))(h)",
    "h = checkpoint(lin, h, use_reentrant=False)",
    "h = ct.checkpoint(lambda a: a.sin().cos(), h)",
    "h = ct.checkpoint(lambda a, b: (a @ b).sin(), h, w, policy_fn=[torch.ops.aten.mm])",
    "h = h.index_put((torch.tensor([0, 1]),), w[:2])",
    "h = h.scatter_add(0, torch.zeros(4, 4, dtype=torch.int64), w)",
    "h = h.sort(0)[0]",
    "h = h.topk(4)[0]",
    "h = h.cumsum(0).diff(dim=0, prepend=n[None])",
    "h = h.unbind(0)[0].expand_as(h)",
    "h = h.clone(); h.diagonal().zero_()",
    "h = h.clone(); h.t().mul_(n)",
    "h = torch.utils.checkpoint.checkpoint_sequential([torch.sin, torch.cos], 2, h, use_reentrant=False)",
    "h = torch.func.linearize(torch.sin, h)[1](h)",
    "h = [h, {'a': h * 2}, None][1]['a']",
    "h = sum(h for _ in range(3))",
    "print(end='')",
    "h = h * int(h.shape[0] == 4)",
    "h = h.__getitem__((slice(None), None)).squeeze(1)",
    "h = h[..., [0, 2, 1, 3]]",
    "h = torch.Tensor.backward and h",
    "k = torch.randint(0, 4, (4,)); h = h[k]",
    "h = F.dropout(h, 0.5) + F.dropout(w, 0.1)",
    "h = F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.5)[0]",
    "h = h.bernoulli().detach() * h",
    "h = torch.nn.MultiheadAttention(4, 2)(h, h, h)[0]",
    "h = torch.nn.LSTM(4, 4)(h)[0]",
    "h = torch.jit.trace(torch.sin, h.detach())(h)",
    "h = h.to_sparse().coalesce().values().sum() * h",
    "h = torch.sparse.mm((w * 2).to_sparse(), h)",
    "h = (w.to_sparse_csr() @ h)",
)
RETURNS = (
    "h", "h", "h", "h", "h, n", "[h, h * 2]", "{'a': h, 'b': 3}", "Result(h, n)", "Pair(h, None)",
    "h, None", "h, 'text', 4", "None", "h.shape", "h, lambda: 1", "()", "{'a': {'b': [h]}}", "x",
    "h, x, w", "h, h", "h, h.view(-1)", "h.sum()", "h.sum().item()", "h.detach()", "h[0], h[1]",
    "torch.Size([4])", "(v for v in [h])", "set([h])", "h.grad_fn", "h.to_sparse()",
    "h.as_subclass(Tagged)", "torch.nn.Parameter(h.detach())", "TwoTensor(h, h)", "n.dtype",
    "torch.empty(0)", "h.to(torch.int64)", "torch.complex(h, h)", "h.to('meta')",
    "None, h, None, h * 2", "h, h.shape[0], h.numel() * 2", "h, float(h.shape[0])", "h.sum(), None",
    "h[:0], h", "h.bfloat16()", "h.t(), h.unbind(0)", "h, h.detach(), h.sum().detach()", "w, n",
    "h, TwoTensor(h * 2, h)", "h, torch.complex(h, h).conj()", "h, n.view(2, 2)", "h, w.t()",
)  # fmt: skip
AFTER = (
    "first", "first", "first", "first", "twice", "double", "copy", "none", "write", "inputs",
    "thread", "retained", "resized", "unused", "in between",
)  # fmt: skip
GIVEN = (
    "plain", "plain", "plain", "plain", "plain", "plain", "plain", "bf16", "double", "complex",
    "strided", "expanded", "leaf", "subclass", "shared", "parameter", "negative",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program, its result's use, and its arguments."""

    seed: int
    text: str
    after: str
    given: str

    def function(self) -> Callable[..., Any]:
        """Returns the program as a function of ``x, w, n``."""
        name = f"<odd program {self.seed}>"
        linecache.cache[name] = len(self.text), None, self.text.splitlines(True), name
        module = sys.modules[f"odd_program_{self.seed}"] = ModuleType(f"odd_program_{self.seed}")
        torch.manual_seed(self.seed)
        exec(compile(self.text, name, "exec"), module.__dict__)
        return module.program  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return f"# seed {self.seed}, after: {self.after}, given: {self.given}\n{self.text}"


def generate(seed: int) -> Program:
    """Returns the program for a seed."""
    pick = random.Random(seed)
    body = ["h = x * w"]
    for _ in range(pick.randint(1, 5)):
        statement = pick.choice(STATEMENTS)
        body += [statement] if statement.startswith("with") else statement.split("; ")
    lines = [HEADER, "def program(x, w, n):", *(f"    {line}" for line in body)]
    text = "\n".join([*lines, f"    return {pick.choice(RETURNS)}", ""])
    return Program(seed, text, pick.choice(AFTER), pick.choice(GIVEN))


# ---- running -------------------------------------------------------------------------------


def arguments(given: str, rows: int = 4) -> list[torch.Tensor]:
    """Returns ``x``, ``w`` and ``n``."""
    dtypes = {"bf16": torch.bfloat16, "double": torch.float64, "complex": torch.complex64}
    dtype = dtypes.get(given, torch.float32)
    x, w, n = (torch.randn(*s, dtype=dtype) for s in ((rows, 4), (4, 4), (4,)))
    if given == "strided":
        x, w = torch.randn(4, rows).t(), torch.randn(4, 8)[:, ::2]
    if given == "expanded":
        x = torch.randn(1, 4).expand(rows, 4)
    if given == "subclass":
        x = TwoTensor(x, x.clone())
    if given == "shared":
        x = (n := torch.randn(4 * rows)[:4])._base.view(rows, 4)
    if given == "negative":
        x = torch.complex(x, x).conj().imag
    x.requires_grad_(given == "leaf")
    n.requires_grad_(given == "parameter")
    return [x, w.requires_grad_(), n]


def _sum(out: Any) -> Any:
    values = [getattr(out, "value", out)]
    tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
    tensors = [t for t in tensors if t.requires_grad]
    return sum(t.to_dense().abs().sum() for t in tensors) if tensors else None


def _first(out: Any) -> Any:
    tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    return tensors[-1].to_dense().abs().sum() if tensors else None


def _backward(total: Any, after: str, leaves: list[torch.Tensor]) -> None:
    x, w, _ = leaves
    if after == "double":
        (g,) = torch.autograd.grad(total, w, create_graph=True, allow_unused=True)
        if g is not None and g.requires_grad:
            g.sum().backward()
    elif after == "inputs":
        torch.autograd.grad(total, [x, w], allow_unused=True)
    elif after == "thread":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(total.backward).result()
    else:
        total.backward(retain_graph=after in ("twice", "retained"))
        if after in ("twice", "retained"):
            total.backward()


def _seen(values: Any) -> list[Any]:
    """Returns the tensors among values, with their present content."""
    found = []
    for t in tree_leaves(values):
        if isinstance(t, TwoTensor):
            found += _seen([t.a, t.b])
        elif isinstance(t, torch.Tensor) and t.device.type != "meta":
            plain = t.detach().as_subclass(torch.Tensor)
            found.append(plain.to_dense().clone().resolve_neg().resolve_conj())
    return found


def run(call: Callable[..., Any], after: str, given: str) -> list[Any]:
    """Calls a program and takes gradients; returns everything visible."""
    torch.manual_seed(3)
    leaves = arguments(given)
    if after == "inputs":
        leaves[0].requires_grad_()
    seen: list[Any] = []
    for k in range(1 + (after in ("twice", "resized"))):
        if after == "resized" and k:
            leaves = arguments(given, 6)
        out = call(*leaves)
        seen += _seen([getattr(out, "value", out), leaves])
        total = _first(out) if after == "unused" else _sum(out)
        if after == "write" and isinstance(out, torch.Tensor):
            out.detach().mul_(2)
        if after == "in between":
            with torch.no_grad():
                leaves[2].mul_(1.5)
        if after == "copy":
            copy.deepcopy([t.detach() for t in tree_leaves(out) if isinstance(t, torch.Tensor)])
        if total is None or after == "none":
            continue
        _backward(total, after, leaves)
        grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
        seen += _seen([leaves, grads])
    return seen


def outcome(program: Program, door: Callable[..., Any]) -> list[Any] | BaseException:
    """Returns everything visible of a run, or its error."""
    try:
        torch._dynamo.reset()
        with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
            warnings.simplefilter("ignore")
            return run(door(program.function()), program.after, program.given)
    except Exception as error:
        return error
    finally:  # a program that ends in an error may leave it set
        torch.set_default_device(None)


# ---- judging -------------------------------------------------------------------------------

INTERNAL = (
    AssertionError, AttributeError, LookupError, NameError, RecursionError, SystemError,
)  # fmt: skip


def chain(error: BaseException) -> list[BaseException]:
    """Returns an error, and those that it was raised from."""
    links: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in links:
        links.append(at)
        at = getattr(at, "inner_exception", None) or at.__cause__
    return links


def _is_internal(link: BaseException) -> bool:
    return isinstance(link, INTERNAL) or "INTERNAL ASSERT" in str(link)


def ours(error: BaseException) -> bool:
    """True if the bridge's own code raised a bare AssertionError, AttributeError or the like."""
    for link in chain(error):
        if _is_internal(link) or type(link) in (TypeError, ValueError):
            at = traceback.extract_tb(link.__traceback__)
            if at and "/cutback/" in at[-1].filename:
                return _is_internal(link)
    return False


def same(a: list[Any], b: list[Any]) -> bool:
    """True if all tensors are equal up to rounding."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        rtol = 2e-2 if x.dtype == torch.bfloat16 else 1e-4
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if not torch.allclose(x, y, rtol=rtol, atol=1e-4, equal_nan=True):
            return False
    return True


def verdict(program: Program, door: Callable[..., Any], reference: Callable[..., Any]) -> str:
    """Returns ``""``, or what is wrong: ``"internal ..."`` is an error from inside the bridge,
    ``"wrong"`` a value that neither eager PyTorch nor the reference gives, ``"refused ..."`` an
    error where the reference has none, ``"other error ..."`` an error of another type than the
    reference's."""
    got = outcome(program, door)
    if isinstance(got, BaseException):
        cause = chain(got)[-1]
        if ours(got):
            return f"internal {cause!r}"
        expected = outcome(program, reference)
        if not isinstance(expected, BaseException):
            return f"refused {cause!r}"
        other = chain(expected)[-1]
        if isinstance(cause, type(other)):
            return ""
        kind = "internal" if _is_internal(cause) and not _is_internal(other) else "other error"
        return f"{kind} {cause!r}, not {other!r}"
    plain = outcome(program, lambda f: f)
    if isinstance(plain, BaseException) or same(got, plain):
        return ""
    again = outcome(program, lambda f: f)
    if isinstance(again, BaseException) or not same(again, plain):
        return ""  # it reads uninitialized memory
    expected = outcome(program, reference)
    agrees = not isinstance(expected, BaseException) and same(got, expected)
    return "" if agrees else "wrong"
