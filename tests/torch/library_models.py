"""Small models of timm, diffusers and torch_geometric, with random weights: (model, inputs, keyword
inputs) from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

# ---- timm: an image classifier by name ----------------------------------

_SIDE = 32
TIMM: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "resnet10t": {},
    "densenet121": {"block_config": (2, 2, 2, 2)},
    "mobilenetv3_small_050": {},
    "regnetx_002": {},
    "convnext_atto": {"drop_path_rate": 0.1},
    "efficientnet_b0": {"drop_path_rate": 0.1},
    "vit_tiny_patch16_224": {"img_size": _SIDE, "depth": 3},
    "beit_base_patch16_224": {
        "img_size": _SIDE, "depth": 2, "embed_dim": 48, "num_heads": 4,
    },
    "swin_tiny_patch4_window7_224": {
        "img_size": _SIDE, "window_size": 4, "depths": (1, 1, 2, 1), "embed_dim": 48,
        "num_heads": (2, 4, 8, 8),
    },
    "xcit_nano_12_p16_224": {"img_size": _SIDE, "depth": 2},
    "legacy_seresnet18": {},
}  # fmt: skip


def of_timm(name: str) -> Case:
    import timm

    model = timm.create_model(name, num_classes=5, **TIMM[name])
    return model, (torch.randn(4, 3, _SIDE, _SIDE),), {}


# ---- diffusers: what predicts noise, and autoencoders ----------------------------------

_LEVELS = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1}
_CODER = {
    **_LEVELS, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
_HEADS = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8}
_LATENTS = {**_HEADS, "in_channels": 4, "out_channels": 4}

DIFFUSERS: dict[str, dict[str, Any]] = {
    "UNet2DModel": {
        **_LEVELS, "sample_size": 16, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    },
    "UNet2DConditionModel": {
        **_LEVELS, "sample_size": 16, "cross_attention_dim": 32, "attention_head_dim": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
    "AutoencoderKL": _CODER,
    "VQModel": {**_CODER, "num_vq_embeddings": 32},
    "DiTTransformer2DModel": {**_LATENTS, "norm_num_groups": 8, "num_embeds_ada_norm": 10},
    "PixArtTransformer2DModel": {
        **_LATENTS, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": 16,
        "use_additional_conditions": False,
    },
    "SD3Transformer2DModel": {
        **_LATENTS, "joint_attention_dim": 32, "caption_projection_dim": 32,
        "pooled_projection_dim": 16, "pos_embed_max_size": 16,
    },
    "FluxTransformer2DModel": {
        "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
        "pooled_projection_dim": 32, "axes_dims_rope": [4, 4, 8],
    },
    "WanTransformer3DModel": {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12,
        "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 16, "ffn_dim": 32,
        "num_layers": 2, "rope_max_seq_len": 32,
    },
}  # fmt: skip


def _to_denoise(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    times, words = torch.tensor([3, 7]), torch.randn(2, 6, 32)
    image, latents = torch.randn(2, 3, 16, 16), torch.randn(2, 4, 8, 8)
    said = {"encoder_hidden_states": words, "timestep": times}
    inputs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "UNet2DModel": ((image, times), {}),
        "UNet2DConditionModel": ((torch.randn(2, 4, 16, 16), times, words), {}),
        "AutoencoderKL": ((image,), {}),
        "VQModel": ((image,), {}),
        "DiTTransformer2DModel": (
            (latents,), {"timestep": times, "class_labels": torch.tensor([1, 2])},
        ),
        "PixArtTransformer2DModel": (
            (latents,), {
                "encoder_hidden_states": torch.randn(2, 6, 16), "timestep": times,
                "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            },
        ),
        "SD3Transformer2DModel": ((latents,), {**said, "pooled_projections": torch.randn(2, 16)}),
        "FluxTransformer2DModel": (
            (torch.randn(2, 16, 4),), {
                **said, "timestep": torch.tensor([0.3, 0.7]),
                "pooled_projections": torch.randn(2, 32), "img_ids": torch.randn(16, 3),
                "txt_ids": torch.randn(6, 3),
            },
        ),
        "WanTransformer3DModel": ((torch.randn(2, 4, 2, 8, 8),), said),
    }  # fmt: skip
    return inputs[name]


def of_diffusers(name: str) -> Case:
    import diffusers

    options = DIFFUSERS[name]
    return getattr(diffusers, name)(**options), *_to_denoise(name)


# ---- torch_geometric: nets on one graph ----------------------------------

_NODES, _EDGES, _WIDTH = 40, 160, 32

GRAPHS: dict[str, dict[str, Any]] = {
    "GCN": {"dropout": 0.1},
    "GraphSAGE": {},
    "GIN": {"norm": "batch_norm"},
    "GAT": {"heads": 4},
    "EdgeCNN": {},
    "PNA": {
        "aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"],
        "deg": torch.tensor([2, 2, 2, 2, 2]),
    },
}  # fmt: skip
CONVOLUTIONS: dict[str, Callable[[Any], nn.Module]] = {
    "TransformerConv": lambda g: g.TransformerConv(_WIDTH, _WIDTH // 4, 4),
    "GATv2Conv": lambda g: g.GATv2Conv(_WIDTH, _WIDTH // 4, 4),
    "GatedGraphConv": lambda g: g.GatedGraphConv(_WIDTH, 2),
    "NNConv": lambda g: g.NNConv(_WIDTH, _WIDTH, nn.Linear(3, _WIDTH * _WIDTH)),
    "CGConv": lambda g: g.CGConv(_WIDTH, 3),
    "GENConv": lambda g: g.GENConv(_WIDTH, _WIDTH),
    "GPSConv": lambda g: g.GPSConv(_WIDTH, g.GINConv(g.MLP([_WIDTH] * 3)), heads=4),
    "ChebConv": lambda g: g.ChebConv(_WIDTH, _WIDTH, 3),
    "APPNP": lambda g: g.APPNP(3, 0.1),
    "RGCNConv": lambda g: g.RGCNConv(_WIDTH, _WIDTH, 3),
}
_WITH_EDGES, _WITH_BATCH, _WITH_KINDS = ("NNConv", "CGConv"), ("GPSConv",), ("RGCNConv",)

SIZES_FROM_VALUES = ("ChebConv", "APPNP", "RGCNConv")
"""Models that choose edges by their values. PyTorch leaves that, and much around it, to eager mode,
which no plan bounds, unless it is told to capture it."""


class Convolved(nn.Module):
    """Three convolutions with norms, and a prediction for each of four graphs."""

    def __init__(self, name: str) -> None:
        import torch_geometric.nn as geometric

        super().__init__()
        self.name, self.pool = name, geometric.global_mean_pool
        self.first, self.last = nn.Linear(16, _WIDTH), nn.Linear(_WIDTH, 5)
        self.convs = nn.ModuleList(CONVOLUTIONS[name](geometric) for _ in range(3))
        self.norm = geometric.BatchNorm(_WIDTH)

    def forward(self, x: Any, edges: Any, batch: Any, features: Any) -> Any:
        x = self.first(x)
        more = (features,) if self.name in _WITH_EDGES else ()
        more = (batch,) if self.name in _WITH_BATCH else more
        more = (features[:, 0].abs().long() % 3,) if self.name in _WITH_KINDS else more
        for conv in self.convs:
            x = self.norm(torch.relu(conv(x, edges, *more)))
        return self.last(self.pool(x, batch, 4))


def of_graphs(name: str) -> Case:
    import torch_geometric.nn as geometric

    x, edges = torch.randn(_NODES, 16), torch.randint(0, _NODES, (2, _EDGES))
    if name in GRAPHS:
        return getattr(geometric, name)(16, _WIDTH, 3, 5, **GRAPHS[name]), (x, edges), {}
    batch = torch.arange(_NODES) // 10
    return Convolved(name), (x, edges, batch, torch.randn(_EDGES, 3)), {}


CASES: dict[str, tuple[str, Callable[[str], Case]]] = {
    **{name: ("timm", of_timm) for name in TIMM},
    **{name: ("diffusers", of_diffusers) for name in DIFFUSERS},
    **{name: ("torch_geometric", of_graphs) for name in (*GRAPHS, *CONVOLUTIONS)},
}
"""The library of each model, and what makes it."""


class Step(nn.Module):
    """A model and its loss, computed from its first result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        result = self.model(*inputs, **options)
        if not isinstance(result, torch.Tensor):
            result = result[0] if isinstance(result, tuple) else result.sample
        return result.square().mean()


def make(name: str) -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    """Returns the model in training mode, and its inputs, which are the same each time."""
    torch.manual_seed(0)
    model, inputs, options = CASES[name][1](name)
    return Step(model.train()), inputs, options
