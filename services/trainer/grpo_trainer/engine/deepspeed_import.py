"""Import DeepSpeed without MLflow: its autotuner imports it where it is installed, a second of every start.

It has to be the first import of DeepSpeed in a process.
"""

import sys

_ABSENT = object()
_mlflow = sys.modules.get("mlflow", _ABSENT)
sys.modules["mlflow"] = None  # type: ignore[assignment]  # an import of it raises ImportError
try:
    import deepspeed
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.utils import logger
finally:
    if _mlflow is _ABSENT:
        del sys.modules["mlflow"]
    else:
        sys.modules["mlflow"] = _mlflow  # type: ignore[assignment]

__all__ = ["DeepSpeedEngine", "deepspeed", "logger"]
