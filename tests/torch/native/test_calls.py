"""Memory and random numbers of single calls of native groups."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx

from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native.lowering import lower


def flags_of(address: int) -> set[str]:
    """Returns the flags of the mapping of this process that contains an address."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first:
                begin, end = (int(n, 16) for n in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "VmFlags:":
                return set(rest)
    return set()


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="needs huge pages"
)
def test_large_results_are_in_huge_pages() -> None:
    for count, large in ((1 << 21, True), (1 << 15, False)):
        x = torch.ones(count)
        made, _ = lower(make_fx(lambda x: x.exp().tanh(), tracing_mode="fake")(x), "forward")
        y = compile_boxed(made)([x])
        assert ("hg" in flags_of(y.data_ptr() + y.nbytes // 2)) is large
        assert torch.equal(y, y[:1].expand(count))
