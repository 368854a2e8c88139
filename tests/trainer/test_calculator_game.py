"""The demo of episodes: its game, its data and its tokens. The agent and the class for TRL play the same game."""

import importlib
import json
from pathlib import Path

import pytest
import yaml
from examples.agent.trl_game import Calculator, right
from examples.calculator import make_data, make_model
from examples.calculator.game import Game, calc
from transformers import AutoTokenizer

from grpo_trainer.config.cold_start import ColdStartConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.data.demonstrations import load_examples
from grpo_trainer.data.sources import read_rows

GAME = Path(__file__).parents[2] / "examples/calculator"
FILES = ("train.jsonl", "held_out.jsonl", "cold_start.jsonl")
FEW = ["--cold-start-games", "200"]
CALL = '<tool_call>{"name": "calc", "arguments": {"expr": "37*52"}}</tool_call>'


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data.main([str(folder), *FEW])
    return folder


def test_the_answer_ends_the_game_and_its_reward_is_whether_it_is_right():
    game = Game()
    assert game.reset({"a": 37, "b": 52}, 0) == "What is 37*52?"
    assert [calc(expr) for expr in ("37*52", "7-9", "7+9", "7/9", "__import__('os')")] == [
        "1924",
        "-2",
        "16",
        *["error"] * 2,
    ]
    for said, reward in ((" 1924", 1.0), ("1925", 0.0), (None, 0.0)):
        assert game.step({"role": "assistant", "content": said}) == ("", reward, True)


def test_the_class_for_trl_plays_the_same_game():
    game = Calculator()
    assert game.reset(a=37, b=52, difficulty=1) == "What is 37*52?"
    assert game.calc("37*52") == "1924"
    said = [{"role": "assistant", "content": "1924"}]
    out_of_turns = [{"role": "assistant", "content": ""}, {"role": "tool", "content": "1924"}]
    assert right([said, out_of_turns], a=[37, 37], b=[52, 52], task=[0, 1]) == [1.0, 0.0]


def test_held_out_rows_are_nowhere_else_and_the_seed_decides(data: Path, tmp_path: Path):
    make_data.main([str(tmp_path / "same"), *FEW])
    make_data.main([str(tmp_path / "other"), *FEW, "--seed", "1"])
    for file in FILES:
        assert (data / file).read_bytes() == (tmp_path / "same" / file).read_bytes()
        assert (data / file).read_bytes() != (tmp_path / "other" / file).read_bytes()
    train, held_out = (set((data / file).read_text().splitlines()) for file in FILES[:2])
    assert len(held_out) == 500
    assert not held_out & train
    asked = {row["messages"][0]["content"] for row in read_rows(str(data / FILES[2]), "train")}
    assert not asked & {Game().reset(json.loads(row), 0) for row in held_out}


def test_a_turn_of_the_cold_start_goes_on_where_the_one_before_ended(data: Path, tmp_path: Path):
    """As turns do in a session, token by token: what is learned is what is sampled."""
    make_model.make_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode(f"{CALL} {{}} ünïcode")) == f"{CALL} {{}} ünïcode"
    assert len(tokenizer.encode(CALL)) == 9
    flags = [str(GAME / "cold_start.yaml"), "--data.dataset", str(data / FILES[2])]
    config = read_config(ColdStartConfig, flags, program="test", env_prefix="TEST_COLD_START__")
    examples = load_examples(config.data, tokenizer)
    assert max(len(example["input_ids"]) for example in examples) <= 33
    calls = [
        number for number, example in enumerate(examples) if tokenizer.encode("<tool_call>")[0] in example["input_ids"]
    ]
    pairs = list(zip(calls[::2], calls[1::2], strict=True))
    assert 40 <= len(pairs) <= 80, "a call in 30 % of the games"
    for call, answer in pairs:
        first, second = examples[call]["input_ids"], examples[answer]["input_ids"]
        assert second[: len(first)] == first
        assert tokenizer.decode(second[len(first) :]).startswith("<|im_start|>tool\n")
        assert sum(examples[call]["completion_mask"][-10:]) == 10, "the call and its end are learned, and nothing twice"
        assert not any(examples[answer]["completion_mask"][: len(first)])


def test_the_flags_of_the_server_fit_the_run():
    run = yaml.safe_load((GAME / "run.yaml").read_text())
    (server,) = (line for line in (GAME / "Procfile").read_text().splitlines() if line.startswith("rollout:"))
    assert f"serve {run['model']['name_or_path']} " in server
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in server
    assert run["episodes"]["max_turns"] == importlib.import_module("examples.calculator.play").MAX_TURNS
