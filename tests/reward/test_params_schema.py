"""What a client is told of params whose defaults JSON has no word for."""

import json
import math
import warnings

from grpo_reward import reward
from grpo_reward.params_schema import params_schema


def test_a_default_that_is_no_finite_number_is_a_text():
    @reward
    def bounded(completion: str, *, high: float = math.inf, low: float = -math.inf, usual: float = math.nan):
        return 1.0

    schema = params_schema(bounded.__reward__.params)
    defaults = {name: value["default"] for name, value in schema["properties"].items()}
    assert defaults == {"high": "inf", "low": "-inf", "usual": "nan"}
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema


def test_a_default_that_is_no_json_is_left_out_without_a_warning():
    @reward
    def odd(completion: str, *, marker=object(), words=b"\xff"):  # noqa: B008
        return 1.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = params_schema(odd.__reward__.params)
    assert set(schema["properties"]) == {"marker", "words"}
    assert not any("default" in value for value in schema["properties"].values())
