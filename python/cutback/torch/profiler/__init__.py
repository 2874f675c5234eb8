"""What a step takes: times and bytes of its ops, measured; the largest batch; mu-TWO.

Uses ``graph`` and ``compiler``. Start at ``profiling.py``, then ``stepping.py``.
"""
