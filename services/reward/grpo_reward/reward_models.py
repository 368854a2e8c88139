"""What `--reward-model` names: `[NAME=]MODEL`, once or several times. Each model is a reward of its own."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .reward_names import refused_name

MODELS_VARIABLE = "GRPO_REWARD_REWARD_MODEL"
UNNAMED = "reward_model"
"""The reward of a model without a name."""
_URL = re.compile(r"https?://")


def named_models(given: Sequence[str]) -> dict[str, str]:
    """Reward → folder, Hub name or URL of its model. Raises ValueError."""
    models: dict[str, str] = {}
    for text in given:
        name, model = _split(text)
        if is_url(model) and name in (None, UNNAMED):
            raise ValueError(f"{model} needs a name: NAME={model}, or leave it to the param url of reward_model")
        if (name or UNNAMED) in models:
            what = "has no name" if name is None else f"is a second {name}"
            raise ValueError(f"{text} {what}: each model of several needs a name of its own, NAME=MODEL")
        models[name or UNNAMED] = model
    return models


def models_in(variable: str) -> list[str]:
    """Return the models in the text of MODELS_VARIABLE: a JSON list, or divided by ','. Raises ValueError."""
    if not variable.lstrip().startswith("["):
        return [part.strip() for part in variable.split(",") if part.strip()]
    models = json.loads(variable)
    if not all(isinstance(model, str) for model in models):
        raise ValueError(f"{variable} is no list of texts")
    return list(models)


def as_variable(models: Sequence[str]) -> str:
    """Write `models` for `models_in`. As JSON, since a folder's name may have a comma."""
    return json.dumps(list(models))


def is_url(model: str) -> bool:
    return _URL.match(model) is not None


def _split(text: str) -> tuple[str | None, str]:
    """Return name and model of `[NAME=]MODEL`. A folder may have `=` in its own name, or further down its path."""
    name, equals, model = text.partition("=")
    if not equals or "/" in name or Path(text).is_dir():
        return None, text
    if problem := refused_name(name):
        raise ValueError(f"{text}: {problem}")
    if not model:
        raise ValueError(f"{text} names no model: NAME=MODEL")
    return name, model
