"""Twelve models with a loss, and inputs, whose training steps take a fraction of a second on two
cores: eight of `transformers` from configurations with random weights, and four defined here. As in
real training, every model has several equal blocks, and its activations are many times as large as
its parameters.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Case(NamedTuple):
    """A model whose forward returns a loss."""

    model: nn.Module
    inputs: tuple[Any, ...]
    blocks: list[nn.Module]
    """What people put into a checkpoint each."""


class Loss(nn.Module):
    """A model of `transformers` that is called with keywords and returns its loss."""

    def __init__(self, model: nn.Module, *names: str, **options: Any) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch."""
        given = dict(zip(self.names, inputs, strict=True))
        return self.model(**given, **self.options).loss


def _words(batch: int, time: int, words: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(words, (batch, time)), torch.randint(words, (batch, time))


def _images(batch: int, size: int, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))


# ---- transformers -------------------------------------------------------------------------------


def bert() -> Case:
    """Six layers, dropout 0.1."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(
            vocab_size=1000,
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=128,
        )
    )
    return Case(Loss(model, "input_ids", "labels"), _words(8, 96), list(model.bert.encoder.layer))


def gpt2() -> Case:
    """Returns GPT-2 with six layers, dropout 0.1 and tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=1000,
            n_embd=128,
            n_layer=6,
            n_head=4,
            n_positions=128,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    model.loss_type = "ForCausalLM"  # otherwise a warning, which breaks the graph
    return Case(
        Loss(model, "input_ids", "labels", use_cache=False),
        _words(8, 96),
        list(model.transformer.h),
    )


def llama() -> Case:
    """Returns Llama with six layers and no dropout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=352,
            max_position_embeddings=128,
        )
    )
    return Case(
        Loss(model, "input_ids", "labels", use_cache=False), _words(8, 96), list(model.model.layers)
    )


def t5() -> Case:
    """Returns T5 with two encoder layers, two decoder layers and dropout 0.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=1000,
            d_model=128,
            d_kv=32,
            d_ff=512,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    )
    return Case(
        Loss(model, "input_ids", "labels", use_cache=False),
        _words(8, 64),
        [*model.encoder.block, *model.decoder.block],
    )


def vit() -> Case:
    """Returns ViT with six layers, on 64 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=512,
            image_size=64,
            patch_size=8,
            num_labels=10,
        )
    )
    return Case(
        Loss(model, "pixel_values", "labels"), _images(16, 64), list(_named(model, "ViTLayer"))
    )


def swin() -> Case:
    """Returns Swin with three stages of two layers and stochastic depth 0.1."""
    from transformers import SwinConfig, SwinForImageClassification

    model = SwinForImageClassification(
        SwinConfig(
            image_size=64,
            patch_size=2,
            embed_dim=32,
            depths=[2, 2, 2],
            num_heads=[2, 4, 8],
            window_size=8,
            num_labels=10,
        )
    )
    return Case(
        Loss(model, "pixel_values", "labels"), _images(8, 64), list(_named(model, "SwinLayer"))
    )


def qwen3_moe() -> Case:
    """Returns Qwen3-MoE with four layers of eight experts, two for each token."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.integrations import moe

    # the kernel used when compiled; the other one does not support f64
    moe._can_use_grouped_mm = lambda *tensors: False
    config = Qwen3MoeConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=352,
        moe_intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    )
    # the default loop over experts depends on data and breaks the graph
    model = Qwen3MoeForCausalLM._from_config(config, experts_implementation="grouped_mm")
    return Case(
        Loss(model, "input_ids", "labels", use_cache=False), _words(8, 96), list(model.model.layers)
    )


def mamba() -> Case:
    """Returns Mamba with two layers; the scan runs step by step, as it does without CUDA."""
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(
        MambaConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, state_size=8)
    )
    return Case(
        Loss(model, "input_ids", "labels", use_cache=False),
        _words(8, 24),
        list(model.backbone.layers),
    )


def _named(model: nn.Module, name: str) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ == name]


# ---- models defined here -------------------------------------------------------------------------


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a mean square as loss."""

    def __init__(self, layers: int = 6, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a scalar."""
        return self.layers(x).square().mean()


def encoder() -> Case:
    """Six layers, dropout 0.1."""
    model = Encoder()
    return Case(model, (torch.randn(8, 96, 128),), list(model.layers.layers))


class EvoNorm(nn.Module):
    """EvoNorm-S0: `x * sigmoid(v x) / group_std(x)`, scaled (arXiv 2004.02967)."""

    def __init__(self, channels: int, groups: int = 8, act: bool = True) -> None:
        super().__init__()
        self.groups, self.act = groups, act
        shape = (1, channels, 1, 1)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.v = nn.Parameter(torch.ones(shape)) if act else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x``, normalised and activated."""
        if self.v is None:
            return x * self.weight + self.bias
        b, c, h, w = x.shape
        grouped = x.reshape(b, self.groups, c // self.groups, h, w)
        std = (grouped.var(dim=(2, 3, 4), unbiased=False, keepdim=True) + 1e-5).sqrt()
        y = (x * torch.sigmoid(self.v * x)).reshape_as(grouped) / std
        return y.reshape(b, c, h, w) * self.weight + self.bias


class BatchNormAct(nn.Module):
    """Batch norm, optionally followed by ReLU in place."""

    def __init__(self, channels: int, act: bool = True) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm2d(channels), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x``, normalised and optionally activated."""
        x = self.norm(x)
        return F.relu(x, inplace=True) if self.act else x


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inner: int, width: int, stride: int, norm: Callable[..., Any]) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = norm(width), norm(width), norm(out, act=False)
        self.short: nn.Module = nn.Identity()
        if inner != out or stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(inner, out, 1, stride, bias=False), norm(out, act=False)
            )
        self.plain = norm is not EvoNorm  # EvoNorm includes the activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inner, h, w] to [batch, 4 width, h / stride, w / stride]."""
        y = self.norm3(self.conv3(self.norm2(self.conv2(self.norm1(self.conv1(x))))))
        x = y + self.short(x)
        return F.relu(x, inplace=True) if self.plain else x


class ResNet50(nn.Module):
    """ResNet-50 with all sixteen blocks, at an eighth of the width."""

    def __init__(self, norm: Callable[..., Any], width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = norm(width)
        blocks: list[nn.Module] = []
        inner = width
        for stage, depth in enumerate((3, 4, 6, 3)):
            for i in range(depth):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(inner, width << stage, stride, norm))
                inner = 4 * (width << stage)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inner, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the cross entropy."""
        x = F.max_pool2d(self.norm(self.stem(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def resnet50() -> Case:
    """Returns ResNet-50 with batch norm and ReLU in place."""
    model = ResNet50(BatchNormAct)
    return Case(model, _images(16, 96), list(model.blocks))


def evonorm() -> Case:
    """Returns ResNet-50 with EvoNorm-S0."""
    model = ResNet50(EvoNorm)
    return Case(model, _images(8, 96), list(model.blocks))


class Double(nn.Module):
    """Two convolutions with group norm."""

    def __init__(self, inner: int, out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inner, out, 3, padding=1),
            nn.GroupNorm(4, out),
            nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.GroupNorm(4, out),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a result of the same height and width."""
        return self.layers(x)


class UNet(nn.Module):
    """A U-Net that halves the image three times; skips are concatenated."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width << i for i in range(4)]
        pairs = list(itertools.pairwise(sizes))
        self.first = Double(3, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.wide = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(Double(2 * a, a) for a, _ in reversed(pairs))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the mean square error."""
        y = self.first(x)
        skips = []
        for down in self.down:
            skips.append(y)
            y = down(F.max_pool2d(y, 2))
        for wide, up in zip(self.wide, self.up, strict=True):
            y = up(torch.cat([skips.pop(), wide(y)], 1))
        return (self.out(y) - target).square().mean()


def unet() -> Case:
    """Returns a U-Net with group norm and no dropout."""
    model = UNet()
    return Case(
        model,
        (torch.randn(2, 3, 64, 64), torch.randn(2, 3, 64, 64)),
        [model.first, *model.down, *model.up],
    )


MODELS: dict[str, Callable[[], Case]] = {
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "T5": t5,
    "ViT": vit,
    "ResNet-50": resnet50,
    "Swin": swin,
    "U-Net": unet,
    "EvoNorm-ResNet": evonorm,
    "TransformerEncoder": encoder,
    "Qwen3-MoE": qwen3_moe,
    "Mamba": mamba,
}


def large_encoder() -> tuple[nn.Module, tuple[Any, ...]]:
    """Returns `nn.TransformerEncoder` with six layers."""
    return Encoder(6, 512, 8), (torch.randn(32, 128, 512),)


def large_bert() -> tuple[nn.Module, tuple[Any, ...]]:
    """Returns BERT-base."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig())
    return Loss(model, "input_ids", "labels"), _words(16, 256)


def large_llama() -> tuple[nn.Module, tuple[Any, ...]]:
    """Returns Llama with 32 layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=1024,
            num_hidden_layers=32,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=2816,
        )
    )
    return Loss(model, "input_ids", "labels", use_cache=False), _words(4, 1024)


LARGE: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "TransformerEncoder, 6 layers": large_encoder,
    "BERT-base": large_bert,
    "Llama, 32 layers": large_llama,
}
"""Made under fake tensors, traced and never run."""


def make(name: str) -> Case:
    """Returns the model and its inputs, the same each time."""
    torch.manual_seed(0)
    case = MODELS[name]()
    case.model.train()
    return case


def checkpointed(case: Case) -> nn.Module:
    """Returns the model with each block in a `torch.utils.checkpoint`, in place."""
    for block in case.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return case.model
