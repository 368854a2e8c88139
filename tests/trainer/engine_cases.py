"""Names the cases that `test_engine.py` asks for and `engine_worker.py` runs, without the import of DeepSpeed."""

SHARED = [(0, 0.3, 0.01), (3, 1.0, 0.0)]
"""ZeRO stage, `top_entropy_quantile` and `entropy_coef` of updates with shared prefixes."""
