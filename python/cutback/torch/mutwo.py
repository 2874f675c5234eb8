"""The mu-TWO pipeline: profile a PyTorch step, select what to recompute or swap, rewrite, run.

>>> selection = cutback.torch.mutwo.select(cutback.torch.profile(model, *inputs), saved=0.5)
>>> print(selection)
>>> step = cutback.torch.compile(model, policy=selection)

:func:`mu_two` does all of it in one call. See docs/torch.md, "Profiling".

Source: S. Purandare, A. Wasay, S. Idreos, mu-TWO: 3x faster multi-model training with orchestration
and memory optimization, MLSys 2023.
"""

from .profiler.mutwo import Pipeline, Selection, mu_two, select

__all__ = ["Pipeline", "Selection", "mu_two", "select"]
