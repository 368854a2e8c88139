"""docs/rewards.md has every built-in reward, with the params and columns it really has."""

import re
from pathlib import Path

from grpo_reward.registry import load_rewards
from grpo_reward.rewards.cosine import PRESETS

PAGE = (Path(__file__).parents[2] / "docs/rewards.md").read_text()
ROWS = {cells[1].strip(" `"): cells for line in PAGE.splitlines() if len(cells := line.split("|")) == 7}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_reward_has_a_row_with_its_params_and_columns():
    rewards = load_rewards([])
    assert set(rewards) <= set(ROWS)
    for name, reward in rewards.items():
        _, _, _, params, columns, _, _ = ROWS[name]
        assert names(params) - {name} == set(reward.params.model_fields), name
        assert names(columns) == set(reward.columns), name
        assert ("optional" in columns) == (set(reward.columns) > set(reward.required_columns)), name


def test_defaults_that_are_numbers_or_flags_are_the_real_ones():
    for name, reward in load_rewards([]).items():
        written = dict(re.findall(r"`(\w+)` \((true|false|−?[\d.]+)\)", ROWS[name][3]))
        for param, field in reward.params.model_fields.items():
            if isinstance(field.default, bool):
                assert written[param] == str(field.default).lower(), (name, param)
            elif isinstance(field.default, int | float):
                assert float(written[param].replace("−", "-")) == field.default, (name, param)


def test_the_presets_of_cosine():
    for name, preset in PRESETS.items():
        (row,) = re.findall(rf"\| `{name}` [^|]*\|(.*)\|", PAGE)
        values = [float(number) for number in re.findall(r"-?\d+\.\d", row.replace("−", "-"))]
        assert values == [*preset.correct, *preset.wrong]
        assert preset.unit in row
        assert (str(preset.max_len) if preset.max_len else "set it") in row
