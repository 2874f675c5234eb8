"""The predicted time of a kernel on a card, from the card's measured rates (docs/cuda.md):

    time = max(bytes / memory rate, sum of operations / their rate) + launches * launch gap

The memory rate is the higher one of our copy and of two reads and one write; products have the rate
of products of their dtype, all other operations that of f32 products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Rates:
    """Rates of a card, from the item of stage card.

    Raises:
        KeyError: if the measurement is incomplete.
    """

    def __init__(self, card: Mapping[str, Any]) -> None:
        rates = [card.get(key) for key in ("copy GB/s", "two reads, one write GB/s")]
        known = [float(rate) for rate in rates if rate]
        if not known:
            raise KeyError("copy GB/s")
        self.bytes_per_us = max(known) * 1e3
        self.gap_us = float(card["launch gap us"])
        self.flops_per_us: dict[str, float] = {}
        for dtype in ("f32", "bf16"):
            found = [card.get(f"{who}{dtype} products TFLOP/s") for who in ("", "torch ")]
            if fastest := max((float(rate) for rate in found if rate), default=0.0):
                self.flops_per_us[f"products {dtype}"] = fastest * 1e6
        self.flops_per_us["points"] = self.flops_per_us["products f32"]

    def us(self, size: float, flops: Mapping[str, float], launches: int) -> float:
        """Returns the microseconds for `size` bytes, operations by kind and a number of
        launches."""
        points = self.flops_per_us["points"]
        arithmetic = sum(n / self.flops_per_us.get(kind, points) for kind, n in flops.items())
        return max(size / self.bytes_per_us, arithmetic) + launches * self.gap_us

    def group_us(self, group: Mapping[str, Any]) -> float:
        """Returns the microseconds for a group of launches.py."""
        return self.us(group["bytes"], group["flops"], len(group["launches"]))
