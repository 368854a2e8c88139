"""Import DeepSpeed without MLflow: its autotuner imports it where it is installed, a second of every start.

It has to be the first import of DeepSpeed in a process.
"""

import sys

sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type]  # an import of it raises ImportError
try:
    import deepspeed
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.utils import logger
finally:
    if sys.modules["mlflow"] is None:
        del sys.modules["mlflow"]

__all__ = ["DeepSpeedEngine", "deepspeed", "logger"]
