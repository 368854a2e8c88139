"""`python -m grpo_reward.openapi > services/reward/openapi.json`: the committed description of the routes."""

import json
from typing import Any

from .app import create_app
from .config import Settings
from .executors.inline import InlineExecutor
from .metrics import Metrics
from .scoring import Scoring


def document() -> dict[str, Any]:
    settings = Settings()
    executor, metrics = InlineExecutor(), Metrics()
    return create_app(settings, executor, metrics, Scoring(executor, metrics), tokens=()).openapi()


if __name__ == "__main__":
    print(json.dumps(document(), indent=2, sort_keys=True))
