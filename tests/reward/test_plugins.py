"""Files written for TRL and for ms-swift score unchanged."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from grpo_proto import Message, RewardSpec, ScoreRequest, ScoreSample
from grpo_reward.author import Reward
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.plugin import PluginError, rewards_of_plugin
from grpo_reward.refusal import Refusal
from grpo_reward.registry import load_rewards, plugin_rewards
from grpo_reward.scorer import Outcome, checked_params, score_batch, score_sample
from grpo_reward.scoring import Scoring

FOLDER = Path(__file__).parent / "plugins"
TRL, SWIFT = FOLDER / "trl_plugin.py", FOLDER / "swift_plugin.py"


pytestmark = pytest.mark.usefixtures("fresh_modules")


def loaded(plugin: Path) -> dict[str, Reward]:
    return {reward.name: reward for reward in rewards_of_plugin(plugin)}


def sample(completion: str, *, prompt: object = None, ids: object = None, truncated: object = None, **columns: object):
    return {
        "completion": completion, "prompt": prompt, "completion_token_ids": ids, "truncated": truncated,
        "columns": columns,
    }  # fmt: skip


def scored(reward: Reward, samples: list[dict[str, object]], step: int | None = None) -> list[Outcome]:
    return score_batch(reward, checked_params(reward, {}), samples, step)


class TestTrl:
    def test_every_public_function_of_completions_is_a_reward(self):
        rewards = loaded(TRL)
        assert list(rewards) == ["says_answer", "later", "flags", "needs_more"]
        says = rewards["says_answer"]
        assert (says.batch, says.required_columns, says.takes_all_columns) == (True, ["answer"], True)
        assert says.documentation == "1 when the answer stands in the completion."
        assert (rewards["flags"].required_columns, list(rewards["flags"].columns)) == ([], ["hint"])
        assert rewards["later"].required_columns == []

    def test_a_conversation_gets_messages_a_log_and_a_metric(self):
        prompt = [{"role": "user", "content": "?"}]
        samples = [sample("it is 4", prompt=prompt, answer="4"), sample("no", prompt=prompt, answer="5")]
        first, second = scored(loaded(TRL)["says_answer"], samples)
        assert first == {"score": 1.0, "status": "ok", "log": {"answer": "4"}, "metrics": {"hit_rate": 0.5}}
        assert second == {
            "score": None, "status": "unscorable", "log": {"answer": "5"}, "metrics": {"hit_rate": 0.5},
        }  # fmt: skip

    def test_async_arrays_token_ids_and_the_step(self):
        outcomes = scored(loaded(TRL)["later"], [sample("a", ids=[1, 2]), sample("b", ids=[])], step=7)
        assert [outcome["score"] for outcome in outcomes] == [9.0, 7.0]

    def test_bools_are_numbers_and_plain_prompts_give_plain_text(self):
        outcomes = scored(loaded(TRL)["flags"], [sample("yes", prompt="?"), sample("no", prompt="?")])
        assert [outcome["score"] for outcome in outcomes] == [1.0, 0.0]
        assert scored(loaded(TRL)["flags"], [sample("yes", hint="h")])[0]["score"] == 0.0

    def test_the_completion_of_an_episode_is_all_behind_its_prompt(self, tmp_path):
        plugin = tmp_path / "turns.py"
        plugin.write_text(
            "def turns(prompts, completions):\n"
            "    return [100 * len(p) + len(c) if isinstance(c, list) else 0 for p, c in zip(prompts, completions)]\n"
        )
        messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "tool", "assistant")]
        samples = [sample("x", prompt=messages[:1]) | {"messages": messages}, sample("x", prompt="x")]
        assert [outcome["score"] for outcome in scored(loaded(plugin)["turns"], samples)] == [103.0, 0.0]

    def test_the_calls_of_an_episode_have_objects_for_arguments_as_in_trl(self, tmp_path):
        plugin = tmp_path / "calls.py"
        plugin.write_text(
            "def calls(completions):\n"
            "    made = [message['tool_calls'][0]['function'] for (message,) in completions]\n"
            "    return [call['arguments']['a'] if isinstance(call['arguments'], dict) else -1 for call in made]\n"
        )
        texts = ('{"a": 7}', '{"a": ', "[7]")
        calls = [[{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}] for text in texts]
        messages = [[{"role": "user"}, {"role": "assistant", "content": "", "tool_calls": made}] for made in calls]
        samples = [sample("x", prompt=said[:1]) | {"messages": said} for said in messages]
        assert [outcome["score"] for outcome in scored(loaded(plugin)["calls"], samples)] == [7.0, -1.0, -1.0]

    def test_a_column_may_be_called_like_a_field_of_ours(self, tmp_path):
        plugin = tmp_path / "truncated_column.py"
        plugin.write_text(
            "def f(completions, truncated):\n    return [1.0 if cut == 'yes' else 0.0 for cut in truncated]\n"
        )
        reward = loaded(plugin)["f"]
        assert reward.required_columns == ["truncated"]
        samples = [sample("a", truncated=True) | {"columns": {"truncated": text}} for text in ("yes", "no")]
        assert [outcome["score"] for outcome in scored(reward, samples)] == [1.0, 0.0]

    def test_what_the_server_cannot_know_of_a_trainer_is_said(self):
        (outcome,) = scored(loaded(TRL)["needs_more"], [sample("a")])
        assert outcome["status"] == "error"
        assert "trainer_state.max_steps is not known to a reward server" in outcome["detail"]

    def test_a_log_of_the_wrong_length_is_an_error(self, tmp_path):
        plugin = tmp_path / "wrong_log.py"
        plugin.write_text(
            "def f(completions, log_extra, **kwargs):\n    log_extra('x', [1])\n    return [1.0] * len(completions)\n"
        )
        outcomes = scored(loaded(plugin)["f"], [sample("a"), sample("b")])
        assert [o["detail"] for o in outcomes] == [
            "ValueError: log_extra('x') has 1 values for 2 samples (wrong_log.py, line 2)"
        ] * 2


@pytest.mark.parametrize(
    ("returned", "detail"),
    [
        ("None", "the reward returned None, not a list of 3 scores"),
        ("(1.0 for text in completions)", "the reward returned a generator, not a list of 3 scores"),
        ("{1.0, 2.0, 3.0}", "the reward returned a set, not a list of 3 scores"),
        ("dict.fromkeys(completions, 1.0)", "the reward returned a dict, not a list of 3 scores"),
        ("'123'", "the reward returned a str, not a list of 3 scores"),
        ("[1.0, 2.0]", "the reward returned 2 results for 3 samples"),
    ],
)
def test_what_is_no_list_of_scores_is_said(tmp_path, returned, detail):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"def odd(completions, **columns):\n    return {returned}\n")
    outcomes = scored(loaded(plugin)["odd"], [sample(text) for text in "abc"])
    assert [outcome["status"] for outcome in outcomes] == ["error"] * 3
    assert {outcome["detail"].partition(": ")[2] for outcome in outcomes} == {detail}


class TestSwift:
    def test_registered_classes_are_rewards_under_their_names(self):
        rewards = loaded(SWIFT)
        assert list(rewards) == ["ends", "brief", "echo"]
        assert rewards["ends"].required_columns == ["solution"]
        outcomes = scored(rewards["ends"], [sample("is 4", solution="4"), sample("is 5", solution="4")])
        assert [outcome["score"] for outcome in outcomes] == [1.0, 0.0]

    def test_async_token_ids_truncation_and_the_step(self):
        samples = [sample("a", ids=[1, 2], truncated=False), sample("b", ids=[1] * 4, truncated=False)]
        samples.append(sample("c", ids=[1], truncated=True))
        brief = loaded(SWIFT)["brief"]
        assert [outcome["score"] for outcome in scored(brief, samples, step=2)] == [1.0, 0.0, 0.0]
        assert [outcome["score"] for outcome in scored(brief, samples, step=1)] == [0.0, 0.0, 0.0]

    def test_the_completions_come_first_whatever_they_are_called(self):
        echo = loaded(SWIFT)["echo"]
        assert (echo.required_columns, list(echo.columns)) == ([], ["level"])
        assert scored(echo, [sample("a", level=0.25), sample("b", level=1)])[0]["score"] == 0.25

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("from swift.llm import Template\n", r"line 1: ImportError: .*Template.*swift\.llm.*pip install ms-swift"),
            (
                "from swift.plugin import ORM, orms\nclass Cosine(ORM):\n"
                "    def __init__(self, args):\n        self.limit = args.cosine_max_len\n"
                "    def __call__(self, completions):\n        return []\norms['c'] = Cosine\n",
                r"c: Cosine cannot be made without a trainer's arguments: AttributeError",
            ),
        ],
    )
    def test_what_cannot_be_stood_in_for_is_said(self, tmp_path, text, message):
        plugin = tmp_path / "unfit.py"
        plugin.write_text(text)
        with pytest.raises(PluginError, match=message):
            rewards_of_plugin(plugin)


class TestNames:
    @pytest.mark.parametrize(("file", "name"), [(TRL, "flags"), (TRL, "says_answer"), (SWIFT, "ends"), (SWIFT, "Ends")])
    def test_one_reward_of_a_file(self, file, name):
        assert list(loaded(Path(f"{file}:{name}"))) == [name]

    def test_an_unmarked_function_beside_marked_ones_is_one_when_it_is_named(self, tmp_path):
        plugin = tmp_path / "both.py"
        plugin.write_text(
            "from grpo_reward import reward\n@reward(name='one')\ndef _f(completion: str) -> float:\n    return 1.0\n"
            "def two(completions):\n    return [2.0] * len(completions)\n"
        )
        assert list(loaded(plugin)) == ["one"]
        assert list(loaded(Path(f"{plugin}:two"))) == ["two"]
        both = load_rewards([Path(f"{plugin}:one"), Path(f"{plugin}:two")])
        assert {"one", "two"} < set(both)

    def test_a_name_that_is_not_there_is_said(self):
        with pytest.raises(PluginError, match=r"has no reward flag; it has says_answer, later, flags, needs_more"):
            rewards_of_plugin(Path(f"{TRL}:flag"))

    def test_entry_points_of_installed_packages(self, monkeypatch, tmp_path):
        (tmp_path / "installed_rewards_package.py").write_text(TRL.read_text())
        monkeypatch.syspath_prepend(str(tmp_path))
        points = [
            EntryPoint("shouted", "installed_rewards_package:flags", "grpo_reward.rewards"),
            EntryPoint("gone", "installed_rewards_package:gone", "other.group"),
        ]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group])
        reward = load_rewards([])["shouted"]
        assert scored(reward, [sample("yes")])[0]["score"] == 1.0
        points.append(EntryPoint("gone", "installed_rewards_package:gone", "grpo_reward.rewards"))
        with pytest.raises(PluginError, match="the entry point gone = installed_rewards_package:gone: AttributeError"):
            load_rewards([])


class TestRelativePaths:
    """As the documentation writes them; Python makes them absolute."""

    @pytest.fixture(autouse=True)
    def here(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)

    def test_two_rewards_of_one_file(self):
        bodies = [f"@reward\ndef {name}(completion):\n    return 1.0\n" for name in ("one", "two")]
        Path("relative_two.py").write_text("\n".join(["from grpo_reward import reward", *bodies]))
        found = [rewards_of_plugin(Path(f"relative_two.py:{name}"))[0].name for name in ("one", "two")]
        assert found == ["one", "two"]

    @pytest.mark.parametrize(
        ("name", "text", "told"),
        [
            ("relative_import", "import os\nimport nmupy\n", ", line 2: ModuleNotFoundError: No module named 'nmupy'"),
            ("relative_syntax", "def one(completion)\n", ", line 1: SyntaxError: expected ':'"),
        ],
    )
    def test_the_line_is_told_once(self, name, text, told):
        Path(f"{name}.py").write_text(text)
        with pytest.raises(PluginError) as caught:
            rewards_of_plugin(Path(f"{name}.py"))
        assert str(caught.value) == f"{name}.py{told}"


def test_an_exception_names_the_line_of_the_plugin(tmp_path):
    file = tmp_path / "raising_reward.py"
    file.write_text(
        "from grpo_reward import reward\n"
        "import json\n"
        "@reward\n"
        "def share(completion):\n"
        "    return len(completion) / 0\n"
        "@reward\n"
        "def deep(completion):\n"
        "    return json.loads(completion)\n"
    )
    rewards = loaded(file)

    def told(name: str) -> str:
        return score_sample(rewards[name], checked_params(rewards[name], {}), sample("c"), None)["detail"]

    assert told("share") == "ZeroDivisionError: division by zero (raising_reward.py, line 5)"
    assert told("deep").endswith("(raising_reward.py, line 8)")


def test_what_stands_above_the_mark_is_called_too(tmp_path):
    plugin = tmp_path / "decorated.py"
    plugin.write_text(
        "import functools\n"
        "from grpo_reward import reward\n"
        "def half(function):\n"
        "    @functools.wraps(function)\n"
        "    def call(*values, **named):\n        return 0.5 * function(*values, **named)\n"
        "    return call\n"
        "@half\n@reward\ndef above(completion):\n    return 1.0\n"
        "@reward\n@half\ndef below(completion):\n    return 1.0\n"
        "@half\n@half\n@reward\ndef twice(completion):\n    return 1.0\n"
        "@reward\ndef plain(completion):\n    return 1.0\n"
        "other = half(plain)\n"
    )
    expected = {"above": 0.5, "below": 0.5, "twice": 0.25, "plain": 1.0}
    rewards = loaded(plugin)
    assert {name: score_sample(found, checked_params(found, {}), sample("c"), None)["score"]
            for name, found in rewards.items()} == expected  # fmt: skip
    [named] = rewards_of_plugin(Path(f"{plugin}:other"))
    assert named.function("c") == 0.5


def test_a_plugin_may_change_the_folder(tmp_path, monkeypatch):
    """Those that are named after it are found from where the server was started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    leaves = Path("folder/leaves.py")
    leaves.write_text("import os\nos.chdir(os.path.dirname(__file__))\ndef away(completions, **k):\n    return []\n")
    Path("stays.py").write_text("def here(completions, **k):\n    return []\n")
    assert set(plugin_rewards([leaves, Path("stays.py")])) == {"away", "here"}


@pytest.mark.parametrize("plugin", ["none.py:", "folder/none.py:"])
def test_a_colon_without_a_name_is_told(plugin):
    with pytest.raises(PluginError, match="names no reward after the colon"):
        rewards_of_plugin(Path(plugin))


def test_completions_that_cannot_be_given_by_name_are_told(tmp_path):
    plugin = tmp_path / "positional.py"
    plugin.write_text("def first(completions, /, **others):\n    return []\n")
    with pytest.raises(PluginError, match="completions must be a parameter that can be given by name"):
        rewards_of_plugin(plugin)


def test_a_reward_that_wraps_another_is_one_of_its_file(tmp_path):
    plugin = tmp_path / "wraps.py"
    plugin.write_text(
        "import functools\n"
        "from grpo_reward import reward\n"
        "from grpo_reward.rewards.exact_match import exact_match\n"
        "@functools.wraps(exact_match)\n"
        "def helper(completion, **others):\n    return None\n"
        '@reward(name="half")\n'
        "@functools.wraps(exact_match)\n"
        "def half(completion, **others):\n    return 0.5 * exact_match(completion, **others)\n"
    )
    rewards = loaded(plugin)
    assert set(rewards) == {"half"}
    assert rewards["half"].function("a", solution="a") == 0.5


@pytest.mark.parametrize("column", ["list", "None"])
async def test_the_conversation_of_an_episode_is_read_as_a_column(tmp_path, column):
    """A reward of conversations in a dataset's column scores those of episodes unchanged."""
    plugin = tmp_path / "roles.py"
    plugin.write_text(
        "from grpo_reward import reward\n\n\n@reward\ndef tools(completion: str, *, messages: list) -> float:\n"
        "    return float(sum(message['role'] == 'tool' for message in messages))\n"
    )
    executor = InlineExecutor([plugin])
    await executor.start()
    said = [
        Message(role="user", content="?"),
        Message(role="tool", content="4"),
        Message(role="assistant", content="4"),
    ]
    columns = {"messages": []} if column == "list" else {}
    request = ScoreRequest(
        rewards=[RewardSpec(name="tools")],
        samples=[
            ScoreSample(completion="4", messages=said, columns=columns),
            ScoreSample(completion="4", columns={"messages": [{"role": "user"}]}),
        ],
    )
    response = await Scoring(executor, Metrics()).score(request)
    assert [result.total for result in response.results] == [1.0, 0.0]
    request = ScoreRequest(rewards=[RewardSpec(name="tools")], samples=[ScoreSample(completion="4")])
    with pytest.raises(Refusal, match="tools needs the column messages"):
        await Scoring(executor, Metrics()).score(request)
