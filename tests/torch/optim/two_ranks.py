"""One of two processes that train a model together over gloo; test_two_ranks.py starts it.

python two_ranks.py RANK DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import cutback.torch.optim as ours

OPTIONS = {"SGD": {"momentum": 0.9}, "Muon": {}}
NAMES = ("AdamW", "SGD", "NAdam", "Adafactor")
WAYS = ("whole", "apart", "in the backward", "clipped", "half of it")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))


def optimizers(module, name, params, way):
    make = getattr(module, name)
    options = {"lr": 0.05, **OPTIONS.get(name, {})}
    if way in ("apart", "in the backward"):
        return {p: make([p], **options) for p in params}
    if way == "half of it":  # the rest is added later
        return {None: make(params[:2], **options)}
    return {None: make(params, **options)}


def step_in_the_backward(own):
    """Steps in DDP's communication hook, because gradients of a rank are summed after the hooks of
    parameters."""

    def hook(state, bucket):
        future = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()

        def then(done):
            for p, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
                kept, p.grad = p.grad, grad / 2
                own[p].step()
                p.grad = kept
            return done.value()[0]

        return future.then(then)

    return hook


def train(module, name, rank, way, directory):
    """Returns the parameters after eight steps, with different rows on each rank."""
    net = model()
    params = list(net.parameters())
    run = DistributedDataParallel(net)
    own = optimizers(module, name, params, way)
    if way == "in the backward":
        run.register_comm_hook(None, step_in_the_backward(own))
    generator = torch.Generator().manual_seed(rank)
    for t in range(8):
        x = torch.randn(8, 6, generator=generator)
        run.zero_grad()
        run(x).square().mean().backward()
        if way == "clipped":
            nn.utils.clip_grad_norm_(params, 0.1)
        if way == "half of it" and t == 3:
            own[None].add_param_group({"params": params[2:], "lr": 0.01})
        for optimizer in own.values() if way != "in the backward" else ():
            optimizer.step()
        if way == "half of it" and t == 5:  # rank 0 saves, and all continue from that
            file = directory / f"{name}-{module.__name__}.pt"
            if rank == 0:
                torch.save(own[None].state_dict(), file)
            distributed.barrier()
            other = torch.optim if module is ours else ours
            own = optimizers(other, name, params, way)
            own[None].add_param_group({"params": params[2:]})
            own[None].load_state_dict(torch.load(file))
    assert all(getattr(optimizer, "why_torch", None) is None for optimizer in own.values())
    return [p.detach().clone() for p in params]


def main() -> None:
    rank, directory = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'meeting'}", rank=rank, world_size=2
    )
    found = {
        (way, name, kind): train(module, name, rank, way, directory)
        for way in WAYS
        for name in NAMES
        for kind, module in (("ours", ours), ("torch", torch.optim))
    }
    torch.save(found, directory / f"rank{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
