"""Updates inside the backward: an optimizer steps each parameter when its gradient is complete.

``inside`` decides, ``formulas`` steps one parameter with its gradient's memory as scratch,
``consumed`` is what ``.grad`` holds afterwards, ``stepped`` records what is stepped until
``optimizer.step()``, and ``reasons`` says where the step stays separate.
"""

from .inside import Inside
from .reasons import SeparateStepError

__all__ = ["Inside", "SeparateStepError"]
