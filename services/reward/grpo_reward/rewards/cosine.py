"""Accuracy, scaled by length."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from ..answers.gold_text import GoldText
from ..author import Score, reward
from .accuracy import accuracy

Unit = Literal["tokens", "characters"]
PresetName = Literal["ms_swift", "ms_swift_docs", "trl", "r1_zero"]


@dataclass(frozen=True)
class Preset:
    """Scores at length 0 and at `max_len`, for right and for wrong answers."""

    correct: tuple[float, float]
    wrong: tuple[float, float]
    unit: Unit = "tokens"
    max_len: int | None = None


PRESETS: dict[PresetName, Preset] = {
    "ms_swift": Preset(correct=(1.0, 0.5), wrong=(-0.5, 0.0)),
    "ms_swift_docs": Preset(correct=(1.0, 0.5), wrong=(0.0, -0.5)),
    "trl": Preset(correct=(1.0, 0.5), wrong=(-1.0, -0.5)),
    "r1_zero": Preset(correct=(1.0, 0.8), wrong=(-0.5, -0.1), unit="characters", max_len=1000),
}


def _with_max_len(preset: PresetName, info: ValidationInfo) -> PresetName:
    """Refuses the request as a whole, before anything is scored, when nobody says what the greatest length is."""
    if PRESETS[preset].max_len is None and info.data.get("max_len", 1) is None:
        raise ValueError(f"set max_len: the preset {preset} has none of its own")
    return preset


@reward(columns=["solution"])
def cosine(
    completion: str,
    *,
    solution: GoldText,
    max_len: Annotated[int, Field(ge=1)] | None = None,
    preset: Annotated[PresetName, AfterValidator(_with_max_len), Field(validate_default=True)] = "ms_swift",
    unit: Unit | None = None,
    min_len_value_correct: float | None = None,
    max_len_value_correct: float | None = None,
    min_len_value_wrong: float | None = None,
    max_len_value_wrong: float | None = None,
    prefix: str = "",
    completion_token_ids: list[int] | None = None,
) -> Score:
    """A right answer earns more when it is short, a wrong one loses less when it is long. Most presets need `max_len`.

    With a = value at length 0, b = value at `max_len` and x = min(length / `max_len`, 1):
    b + (a − b) · (1 + cos(π·x)) / 2. Beyond `max_len` it stays at b. Right or wrong is what `accuracy` says; where
    that is unscorable, so is this.

    | preset | right a → b | wrong a → b | unit | `max_len` |
    |---|---|---|---|---|
    | `ms_swift` | 1.0 → 0.5 | −0.5 → 0.0 | tokens | set it |
    | `ms_swift_docs` | 1.0 → 0.5 | 0.0 → −0.5 | tokens | set it |
    | `trl` | 1.0 → 0.5 | −1.0 → −0.5 | tokens | set it |
    | `r1_zero` | 1.0 → 0.8 | −0.5 → −0.1 | characters | 1000 |

    `prefix` is for `accuracy`: text the prompt has written already, such as `<think>`. Its length does not count.

    Every value given beside `preset` takes the place of the preset's. `ms_swift_docs` is what ms-swift's documentation
    says instead of its code: a long wrong answer loses more, so that wrong answers become short as well.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373); names as in ms-swift, whose own falls and
    rises again beyond `max_len`, as the one of the R1-Zero walk-through does.
    """
    chosen = PRESETS[preset]
    limit = max_len if max_len is not None else chosen.max_len
    if limit is None:
        raise ValueError(f"set max_len: the preset {preset} has none of its own")
    correct = accuracy(completion, solution=solution, prefix=prefix)
    if correct.score is None:
        return correct
    if (unit or chosen.unit) == "characters":
        length = len(completion)
    elif completion_token_ids is not None:
        length = len(completion_token_ids)
    else:
        raise ValueError('no completion_token_ids came with the sample: send them or set unit to "characters"')
    if correct.score >= 1:
        shortest, longest = _replaced(chosen.correct, min_len_value_correct, max_len_value_correct)
    else:
        shortest, longest = _replaced(chosen.wrong, min_len_value_wrong, max_len_value_wrong)
    progress = min(length / limit, 1.0)
    return Score(longest + (shortest - longest) * (1 + math.cos(math.pi * progress)) / 2)


def _replaced(pair: tuple[float, float], first: float | None, second: float | None) -> tuple[float, float]:
    return pair[0] if first is None else first, pair[1] if second is None else second
