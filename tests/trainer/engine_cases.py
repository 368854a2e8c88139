"""Names the cases that `test_engine.py` asks for and `engine_worker.py` runs, without the import of DeepSpeed."""

SHARED = [(0, 0.3, 0.01), (3, 1.0, 0.0)]
"""ZeRO stage, `top_entropy_quantile` and `entropy_coef` of updates with shared prefixes."""
TOGETHER = [(2, 0.3, 0.01), (3, 1.0, 0.0)]
"""The same of updates whose rows two ranks compute together."""
EXPORTED = {
    "0 float32": "untied",
    "2 bfloat16": "tied",
    "3 float32": "tied",
    "3 bfloat16": "untied",
    "2 float32 experts": "experts",
    "3 float32 experts": "experts",
}
"""ZeRO stage and dtype of an export, and its model."""
BALANCED = [0, 3]
"""ZeRO stage of updates that balance experts."""
SEEN = [(0, "mixed"), (2, "mixed"), (3, "mixed"), (3, "one rank sees"), (3, "together")]
"""ZeRO stage, and which ranks have images; `together`: two ranks compute each row."""
LEARNT = [(0, "mixed"), (1, "one rank sees"), (2, "mixed"), (3, "one rank sees"), (3, "together"), (3, "text")]
"""The same of updates that train the vision tower, too."""
IN_A_ROW = [(0, ""), (1, ""), (2, ""), (2, "offload"), (3, ""), (3, "offload"), (3, "coalesce")]
"""ZeRO stage and setting of several such updates, one after the other."""
