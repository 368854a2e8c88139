"""How rewards, params and flags are written."""

import pytest

from grpo_reward.cli.options import CommandParser, own_params, reward_specs
from grpo_reward.config import ConfigError


def test_rewards_with_and_without_weights():
    specs = reward_specs("accuracy, format:0.1,cosine:-2", [])
    assert [(spec.name, spec.weight) for spec in specs] == [("accuracy", 1.0), ("format", 0.1), ("cosine", -2.0)]


def test_params_go_to_their_reward_as_json_or_text():
    params = ["cosine.max_len=64", "cosine.unit=characters", "regex.pattern=a=b", "regex.full=true", "regex.x=NaN"]
    specs = reward_specs("cosine,regex", params)
    assert specs[0].params == {"max_len": 64, "unit": "characters"}
    assert specs[1].params == {"pattern": "a=b", "full": True, "x": "NaN"}


def test_the_params_of_one_reward_need_no_name():
    assert own_params("cosine", ["max_len=64", "cosine.unit=tokens"]) == {"max_len": 64, "unit": "tokens"}


@pytest.mark.parametrize(
    ("rewards", "params", "message"),
    [
        ("", [], "write names with commas"),
        ("a,,b", [], "write names with commas"),
        (":1", [], "write names with commas"),
        ("a,a:2", [], "a is there twice"),
        ("a:heavy", [], "the weight of a must be a number, not 'heavy'"),
        ("a:nan", [], "the weight of a must be a number"),
        ("format", ["formt.strict=1"], "formt is none of --rewards; did you mean format"),
        ("format", ["strict=1"], "strict is none of --rewards"),
        ("format", ["format.strict"], "write NAME=VALUE"),
    ],
)
def test_what_is_written_wrong_is_said(rewards, params, message):
    with pytest.raises(ConfigError, match=message):
        reward_specs(rewards, params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jsno"], "unknown option --jsno: did you mean --json"),
        (["extra"], "too much: extra"),
        (["--url", "localhost:1"], "--url: 'localhost:1' is no URL of a server, such as http"),
        (["--url", "http://h/v1/score"], "--url is the server's, without its route: http://h$"),
        (["--url", "http://h", "--workers", "1"], "--workers is for rewards that run here"),
        (["--url", "http://h", "--plugin", "a.py"], "--plugin is for rewards that run here"),
    ],
)
def test_flags_that_are_wrong(arguments, message):
    parser = CommandParser("list", "")
    parser.add_place()
    with pytest.raises(ConfigError, match=message):
        parser.parse(arguments)
