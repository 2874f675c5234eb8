"""Which ops of other libraries may run again in the backward pass.

>>> cutback.torch.rerun.why_once(torch.ops.mylib.fused_norm)
'it has no fake kernel'
>>> cutback.torch.rerun.declare(torch.ops.mylib.fused_norm, rerunnable=True)

An op that may not run again has its results saved. See docs/torch.md, "Ops of other libraries".
"""

from .graph.rerunnable import declare, why_once

__all__ = ["declare", "why_once"]
