"""Names the cases that `test_trained_parameters.py` asks for and `trained_worker.py` runs, without DeepSpeed."""

OPTIMIZED = {2: "float32", 3: "bfloat16"}
"""ZeRO stage and dtype of the updates of each optimizer; one rank makes them in stage 0, too."""
