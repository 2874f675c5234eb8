"""Runs models of ``transformers`` with random weights at position 0.5. The position is never
refused, and measured peaks are within the planned bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn

import cutback.torch as ct

pytestmark = [pytest.mark.torch, pytest.mark.very_slow]

BATCH, TIME, WORDS = 4, 24, 64

TEXT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": WORDS, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
GPT = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": WORDS, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip

LANGUAGE: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gptj": {**GPT, "rotary_dim": 4},
    "gpt_neox": {**TEXT, "use_cache": False},
    "bloom": {
        "hidden_size": 32,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": WORDS,
        "use_cache": False,
    },
    "opt": {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False},
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "gemma": {**GROUPED, "head_dim": 8},
    "phi": GROUPED,
    "stablelm": GROUPED,
    "olmo": GROUPED,
}
MASKED: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "roberta": TEXT,
    "electra": {**TEXT, "embedding_size": 32},
    "albert": {**TEXT, "embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "vocab_size": WORDS},
    "mpnet": TEXT,
}
IMAGES: dict[str, dict[str, Any]] = {
    "vit": IMAGE,
    "deit": IMAGE,
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "patch_size": 2},
    "mobilenet_v2": {"depth_multiplier": 0.25, "min_depth": 4, "depth_divisible_by": 4},
}  # fmt: skip


class Step(nn.Module):
    """A model and its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Any) -> Any:
        if data.is_floating_point():
            return self.model(pixel_values=data).last_hidden_state.square().mean()
        return self.model(input_ids=data, labels=data).loss


def _model(name: str) -> tuple[nn.Module, Any]:
    auto, options = next(
        (auto, table[name])
        for auto, table in (
            (transformers.AutoModelForCausalLM, LANGUAGE),
            (transformers.AutoModelForMaskedLM, MASKED),
            (transformers.AutoModel, IMAGES),
        )
        if name in table
    )
    torch.manual_seed(0)
    model = auto.from_config(transformers.AutoConfig.for_model(name, **options))
    data = (
        torch.randn(BATCH, 3, 16, 16) if name in IMAGES else torch.randint(3, WORDS, (BATCH, TIME))
    )
    return Step(model.train()), data


@pytest.mark.parametrize("name", [*LANGUAGE, *MASKED, *IMAGES])
def test_in_the_middle(name: str, train_step: Callable[..., Any]) -> None:
    model, data = _model(name)
    compiled = ct.compile(model, budget=0.5)
    for _ in range(2):
        found = train_step(compiled, data)
    (plan,) = compiled.plans
    assert plan.position.position == 0.5
    assert found.peak_bytes <= plan.numbers["budget_bytes"]
    assert plan.position.smallest < plan.numbers["budget_bytes"] < plan.position.everything


@pytest.mark.parametrize("name", [*LANGUAGE, *MASKED, *IMAGES])
def test_position_zero_is_near_min(name: str) -> None:
    """The quick search's smallest plan is at most 2 % (of the bytes without a budget) above
    ``"min"``."""
    model, data = _model(name)
    if name == "gpt2":  # otherwise a warning about its loss breaks the graph
        model.model.loss_type = "ForCausalLM"
    traced = ct.trace(model, data)
    position = traced.plan(budget=0.0).position
    least = traced.plan(budget="min").numbers["live_bytes"]
    assert least <= position.smallest <= least + 0.02 * position.everything
