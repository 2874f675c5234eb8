"""Generated programs of odd things that users do in a region or in what they compile.

A program is text. It defines ``program(x, w, n)`` for a matrix ``x`` [4, 4], a weight ``w`` [4, 4]
that needs a gradient and a buffer ``n`` [4]. It is called as it is, and the reference is what
PyTorch does with it: the kind of error that it ends in does not matter here, only that no
AssertionError or AttributeError comes from inside the bridge."""

# ruff: noqa: E501  (a statement of a program is one line)
from __future__ import annotations

import linecache
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

HEADER = """\
import copy, contextlib, dataclasses, collections
import torch
import torch.nn.functional as F
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
)
RETURNS = (
    "h", "h", "h", "h, n", "[h, h * 2]", "{'a': h, 'b': 3}", "Result(h, n)", "Pair(h, None)",
    "h, None", "h, 'text', 4", "None", "h.shape", "h, lambda: 1", "()", "{'a': {'b': [h]}}", "x",
    "h, x, w", "h, h", "h, h.view(-1)", "h.sum()", "h.sum().item()", "h.detach()", "h[0], h[1]",
    "torch.Size([4])", "(v for v in [h])", "set([h])", "h.grad_fn", "h.to_sparse()",
    "h.as_subclass(Tagged)", "torch.nn.Parameter(h.detach())", "TwoTensor(h, h)", "n.dtype",
    "torch.empty(0)", "h.to(torch.int64)", "torch.complex(h, h)", "h.to('meta')",
)  # fmt: skip
AFTER = (
    "first", "first", "first", "twice", "double", "copy", "none", "write", "inputs", "thread",
)  # fmt: skip


def generate(seed: int) -> tuple[str, str]:
    """The text of a program, and what is done with its result."""
    pick = random.Random(seed)
    body = ["h = x * w"]
    for _ in range(pick.randint(1, 5)):
        statement = pick.choice(STATEMENTS)
        body += [statement] if statement.startswith("with") else statement.split("; ")
    lines = [HEADER, "def program(x, w, n):", *(f"    {line}" for line in body)]
    return "\n".join([*lines, f"    return {pick.choice(RETURNS)}", ""]), pick.choice(AFTER)


def function(seed: int, text: str) -> Callable[..., Any]:
    """The program as a function."""
    name = f"<odd program {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    module = sys.modules[f"odd_program_{seed}"] = ModuleType(f"odd_program_{seed}")
    scope = module.__dict__
    torch.manual_seed(seed)
    exec(compile(text, name, "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


def _sum(out: Any) -> Any:
    values = [getattr(out, "value", out)]
    tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
    tensors = [t for t in tensors if t.requires_grad]
    return sum(t.to_dense().abs().sum() for t in tensors) if tensors else None


def run(call: Callable[..., Any], after: str) -> None:
    """Calls a program and takes gradients."""
    import copy

    torch.manual_seed(3)
    x = torch.randn(4, 4)
    w, n = torch.randn(4, 4).requires_grad_(), torch.randn(4)
    if after == "inputs":
        x.requires_grad_()
    for _ in range(1 + (after == "twice")):
        out = call(x, w, n)
        total = _sum(out)
        if after == "write" and isinstance(out, torch.Tensor):
            out.detach().mul_(2)
        if after == "copy":
            copy.deepcopy([t.detach() for t in tree_leaves(out) if isinstance(t, torch.Tensor)])
        if total is None or after == "none":
            continue
        if after == "double":
            (g,) = torch.autograd.grad(total, w, create_graph=True, allow_unused=True)
            if g is not None and g.requires_grad:
                g.sum().backward()
        elif after == "inputs":
            torch.autograd.grad(total, [x, w], allow_unused=True)
        else:
            total.backward(retain_graph=after == "twice")
            if after == "twice":
                total.backward()


def failure(call: Callable[..., Any], after: str) -> BaseException | None:
    """What a run ends in."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(call, after)
    except Exception as error:
        return error
    return None


def ours(error: BaseException) -> bool:
    """Does a bare AssertionError, AttributeError or the like come from the bridge's own code?"""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = getattr(at, "inner_exception", None) or at.__cause__
    for link in chain:
        internal = (AssertionError, AttributeError, KeyError, IndexError, UnboundLocalError)
        if isinstance(link, internal) or type(link) in (TypeError, ValueError):
            frames = traceback.extract_tb(link.__traceback__)
            if frames and "/cutback/" in frames[-1].filename:
                return isinstance(link, internal)
    return False
