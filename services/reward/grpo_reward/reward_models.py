"""What `--reward-model` names: `[NAME=]MODEL`, once or several times. Each model is a reward of its own."""

import re
from collections.abc import Sequence

MODELS_VARIABLE = "GRPO_REWARD_REWARD_MODEL"
UNNAMED = "reward_model"
"""The reward of a model without a name."""
_NAMED = re.compile(r"([\w.-]+)=(.+)")
_URL = re.compile(r"https?://")


def named_models(given: Sequence[str]) -> dict[str, str]:
    """Reward → folder, Hub name or URL of its model. Raises ValueError."""
    models: dict[str, str] = {}
    for text in given:
        found = _NAMED.fullmatch(text)
        name, model = found.groups() if found else (UNNAMED, text)
        if is_url(model) and name == UNNAMED:
            raise ValueError(f"{model} needs a name: NAME={model}, or leave it to the param url of reward_model")
        if name in models:
            what = "has no name" if name == UNNAMED and not found else f"is a second {name}"
            raise ValueError(f"{text} {what}: each model of several needs a name of its own, NAME=MODEL")
        models[name] = model
    return models


def is_url(model: str) -> bool:
    return _URL.match(model) is not None
