import sys
from pathlib import Path

import pytest

from grpo_reward.plugin import PluginError
from grpo_reward.registry import load_rewards

EXAMPLE = Path(__file__).parents[2] / "examples/rewards/my_rewards.py"
BUILT_IN = {
    "accuracy", "code", "cosine", "countdown", "exact_match", "format", "gsm8k", "json_schema", "judge", "length",
    "math_boxed", "min_length", "multiple_choice", "react_format", "reasoning_steps", "regex", "repetition",
    "reward_model", "soft_overlong", "tag_count", "think_language", "tool_call",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("fresh_modules")


def test_every_built_in_reward_is_found_and_says_what_it_is():
    rewards = load_rewards([])
    assert set(rewards) == BUILT_IN
    for reward in rewards.values():
        assert reward.documentation
        reward.params.model_json_schema()


def test_the_example_is_a_plugin():
    rewards = load_rewards([EXAMPLE])
    assert set(rewards) - BUILT_IN == {"last_number", "polite", "rank_by_length"}
    example = {name: reward.function for name, reward in rewards.items()}
    assert example["last_number"]("3 + 4 = 7", answer=7).score == 1.0
    assert example["last_number"]("none", answer=7).score == 0.0
    assert example["polite"]("Please", truncated=False) == 1.0
    assert example["polite"]("Please", truncated=True) is None
    assert example["rank_by_length"](["aaa", "a", "aa"]) == [0.0, 1.0, 0.5]


def test_a_plugin_can_import_its_neighbour_but_not_replace_a_library(tmp_path, monkeypatch):
    (tmp_path / "neighbour.py").write_text("value = 7.0\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('not this one')\n")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import colorsys\nfrom neighbour import value\nfrom grpo_reward import reward\n"
        "@reward\ndef seven(completion: str) -> float:\n    return value\n"
    )
    assert load_rewards([plugin])["seven"].function("") == 7.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_it", r"plugin.py, line 1: ModuleNotFoundError: .*nothing_like_it"),
        ("x = 1\ndef broken(:", r"plugin.py, line 2: SyntaxError: invalid syntax$"),
        ("x = 1", "defines no reward"),
        ("raise ValueError('one\\ntwo')", r"plugin.py, line 1: ValueError: one two$"),
        (
            "class Mute(Exception):\n    def __str__(self): raise self\nraise Mute",
            r"plugin.py, line 3: Mute: its text cannot be printed$",
        ),
        ("import sys\nsys.exit(3)", r"plugin.py, line 2: SystemExit: 3"),
        (
            "from grpo_reward import reward\n@reward\ndef countdown(completion: str) -> float:\n    return 1.0",
            "the reward countdown, and so does the built-in countdown.py: rename it",
        ),
        (
            "from grpo_reward import reward\n@reward\ndef f(text: str) -> float:\n    return 1.0",
            r"line 2: TypeError: reward f: a parameter must be called",
        ),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(tmp_path, text, message):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(text + "\n")
    with pytest.raises(PluginError, match=message):
        load_rewards([plugin])


def test_a_missing_plugin_is_said(tmp_path):
    with pytest.raises(PluginError, match=r"no plugin file .*gone\.py"):
        load_rewards([tmp_path / "gone.py"])


def test_a_folder_is_no_plugin_and_that_is_said(tmp_path):
    with pytest.raises(PluginError, match=r"is a folder: name a Python file"):
        load_rewards([tmp_path])


def test_rewards_that_a_plugin_imports_stay_where_they_are(tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from grpo_reward import reward\nfrom grpo_reward.rewards.countdown import countdown\n"
        "@reward\ndef double(completion: str, *, nums: list[int], target: int) -> float:\n"
        "    return 2 * countdown(completion, nums=nums, target=target).score\nalias = double\n"
    )
    assert set(load_rewards([plugin])) - BUILT_IN == {"double"}
