"""A script that gives GRPOTrainer tools or environments: what plays its episodes, and what pays them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import imported, refused, setting

from grpo_trainer.config.run_config import RunConfig

TOOLS = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from other.search import search as look_up


def add(a: int, b: int) -> int:
    return a + b


def right(completions, **kwargs):
    return [0.0 for _ in completions]


TOOLS = [add, look_up, lambda a: a]
if __name__ == "__main__":
    GRPOTrainer(
        model="Qwen/Qwen2.5-7B-Instruct", train_dataset=load_dataset("openai/gsm8k", "main", split="train"),
        args=GRPOConfig("out", max_tool_calling_iterations=5), tools=TOOLS, reward_funcs=right,
    ).train()
"""
ENVIRONMENT = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class Game:
    def reset(self, **row):
        return "Begin."

    def move(self, to: str) -> str:
        return "moved"


def won(environments, **kwargs):
    return [environment.won for environment in environments]


def tidy(completions, **kwargs):
    return [float(environment.tidy) for environment in kwargs["environments"]]


def polite(completions, **kwargs):
    return [0.0 for _ in completions]


def main():
    Game.url = "http://127.0.0.1:9000"
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Play."}] for _ in range(1000)]})
    trainer = GRPOTrainer(
        "some/model", [won, polite, tidy], GRPOConfig("out", reward_weights=[1.0, 0.5, 0.25]), rows,
        environment_factory=Game,
    )
    trainer.train()


if __name__ == "__main__":
    main()
"""


def run_of(content: str) -> RunConfig:
    return RunConfig.model_validate(yaml.safe_load(content))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/search.py").write_text("def search(text: str) -> str:\n    return text\n")
    return tmp_path


def test_tools_play_the_episodes_and_the_reward_service_pays(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "train.py").write_text(TOOLS)
    content, remarks = imported(capsys, "train.py")
    run = run_of(content)
    assert setting(run, "episodes") == {"tools": ["train.py:add", "other/search.py:search"], "max_turns": 6}
    assert setting(run, "reward.reward_funcs") == ["train.py:right"]
    assert "grpo-reward serve --plugin train.py" in content
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in content
    assert "tools of GRPOTrainer has lambda a: a: give it a name in a file" in remarks


def test_a_reward_that_reads_environments_is_computed_beside_them(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "train.py").write_text(ENVIRONMENT)
    content, remarks = imported(capsys, "train.py")
    run = run_of(content)
    assert setting(run, "episodes") == {
        "environment_factory": "train.py:Game",
        "reward_funcs": ["train.py:won", "train.py:tidy"],
        "reward_weights": {"won": 1.0, "tidy": 0.25},
    }
    assert setting(run, "reward.reward_funcs") == ["train.py:polite"]
    assert setting(run, "reward.reward_weights") == [0.5]
    assert "--tool-call-parser NAME" in content
    assert "Game.url is set in line 27, which an import of train.py does not run: set it in the class" in remarks
    assert "write them into rows.jsonl, by .to_json('rows.jsonl') of its dataset" in remarks
    assert "an episode here has at most 16 turns" in remarks


def test_an_environment_that_pays_alone_needs_no_reward_server(folder: Path, capsys: pytest.CaptureFixture[str]):
    script = ENVIRONMENT.replace("[won, polite, tidy]", "[won]").replace(", reward_weights=[1.0, 0.5, 0.25]", "")
    script = script.replace("=Game,", '={"a": Game, "b": make(1)},').replace('\n\n\nif __name__ == "__main__":', "\n")
    (folder / "train.py").write_text(script.replace("    main()", "main()"))
    content, remarks = imported(capsys, "train.py")
    run = run_of(content)
    assert setting(run, "episodes.environment_factory") == {"a": "train.py:Game"}
    assert setting(run, "reward.reward_funcs") == []
    assert "grpo-reward" not in content
    assert "environment_factory of GRPOTrainer has make(1): give it a name in a file" in remarks


@pytest.mark.parametrize(
    ("change", "episodes", "named"),
    [
        # Weights stay with their rewards.
        (("[won, polite, tidy]", "[*OWN, tidy]"), {"reward_weights": {"won": 1.0, "tidy": 0.25}}, ""),
        (("[won, polite, tidy]", "[*others, tidy]"), {"reward_funcs": ["train.py:tidy"]},
         "reward_weights are not as many as the rewards that are read"),
        # A name that means two things means none.
        (("[won, polite", "[kind, polite"), {"reward_funcs": ["train.py:tidy"]}, "reward kind is no function"),
        (("=Game,", '={NAME: Game, 1: Game, "b": Game},'),
         {"environment_factory": {"a": "train.py:Game", "b": "train.py:Game"}},
         "environment_factory has 1, which is no text"),
        # Name a function that hands its arguments on.
        (("[won, polite", "[handed_on, polite"), {"reward_funcs": ["train.py:tidy"]},
         "handed_on passes its kwargs on: where they are read for environments, it belongs into episodes.reward_funcs"),
        (("[won, polite", "[partial(won, k=2), polite"), {"reward_funcs": ["train.py:won", "train.py:tidy"]},
         "reward partial(won, k=2): episodes.reward_funcs have no arguments"),
        # Name what only the start of the script does.
        (("    Game.url", "    global URL\n    URL = Game.url"), {}, "URL is set in line"),
        (('if __name__ == "__main__":\n    main()', "main()"), {},
         "the trainer imports train.py, which would train there: put Game into a file of their own"),
    ],
)  # fmt: skip
def test_what_is_read_of_an_environment_and_its_rewards(
    change: tuple[str, str], episodes: dict[str, Any], named: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    more = (
        "from functools import partial\nfrom trl.a import kind\nkind = partial(kind)\nNAME = 'a'\n"
        "def handed_on(completions, **kwargs):\n    return won(**kwargs)\n"
    )
    script = ENVIRONMENT.replace("\n\n\ndef main", "\n\n\nOWN = [won, polite]\n\n\ndef main")
    assert change[0] in script
    (folder / "train.py").write_text(more + script.replace('return "moved"', "return URL").replace(*change))
    content, remarks = imported(capsys, "train.py")
    found = yaml.safe_load(content)["episodes"]
    assert {name: found[name] for name in episodes} == episodes
    assert named in remarks


def test_what_nobody_pays_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    script = ENVIRONMENT.replace("[won, polite, tidy]", "[make(1)]")
    (folder / "train.py").write_text(script)
    assert "no reward is named" in refused(capsys, "import-trl", "train.py")
    (folder / "train.py").write_text(
        script.replace("    def move(", "    def get_reward(self):\n        return 1.0\n\n    def move(")
    )
    content, _ = imported(capsys, "train.py")
    assert "reward_funcs: []  # what plays the episodes pays" in content


def test_what_another_file_has_is_found_beside_the_script(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "run").mkdir()
    head, _, rest = ENVIRONMENT.partition("class Game:")
    made, _, main = rest.partition("def main():")
    (folder / "run/games.py").write_text(f"class Game:{made}")
    (folder / "run/train.py").write_text(f"{head}from games import Game, won, tidy, polite\n\n\ndef main():{main}")
    content, _ = imported(capsys, "run/train.py")
    run = run_of(content)
    assert setting(run, "episodes.environment_factory") == "run/games.py:Game"
    assert setting(run, "episodes.reward_funcs") == ["run/games.py:won", "run/games.py:tidy"]
    assert setting(run, "reward.reward_funcs") == ["run/games.py:polite"]


def test_a_class_that_only_the_run_makes_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    head, _, rest = ENVIRONMENT.partition("class Game:")
    made, _, behind = rest.partition("\n\n\n")
    inside = "\n    ".join(f"class Game:{made}".splitlines())
    (folder / "train.py").write_text(f"{head}{behind}".replace("def main():", f"def main():\n    {inside}\n"))
    content, remarks = imported(capsys, "train.py")
    run = run_of(content)
    assert setting(run, "episodes.environment_factory") == "train.py:Game"
    assert "environment_factory: Game is made inside a function: move it out" in remarks
