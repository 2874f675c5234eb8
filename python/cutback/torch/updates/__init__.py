"""Updates inside the backward: an optimizer steps each parameter when its gradient is complete.

``inside`` decides whether that is possible, ``formulas`` steps one parameter with its gradient's
memory as scratch, ``consumed`` replaces ``.grad`` afterwards, ``stepped`` records what has been
stepped until ``optimizer.step()``, and ``reasons`` says when the step stays separate.
"""

from .inside import Inside
from .reasons import SeparateStepError

__all__ = ["Inside", "SeparateStepError"]
