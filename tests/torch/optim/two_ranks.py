"""One process of two that train a model together over gloo; test_two_ranks.py starts it.

python two_ranks.py RANK DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import cutback.torch.optim as ours


def train(module, rank, apart):
    """Parameters after six steps, each rank on rows of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
    run = DistributedDataParallel(model)
    if apart:
        own = {p: module.AdamW([p], lr=0.05) for p in model.parameters()}
    else:
        own = {None: module.AdamW(model.parameters(), lr=0.05)}
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        x = torch.randn(8, 6, generator=generator)
        run.zero_grad()
        run(x).square().mean().backward()
        for optimizer in own.values():
            optimizer.step()
    assert all(getattr(optimizer, "why_torch", None) is None for optimizer in own.values())
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    rank, directory = int(sys.argv[1]), Path(sys.argv[2])
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'meeting'}", rank=rank, world_size=2
    )
    for apart in (False, True):
        found = {name: train(module, rank, apart) for name, module in
                 (("ours", ours), ("torch", torch.optim))}  # fmt: skip
        torch.save(found, directory / f"rank{rank}-{apart}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
