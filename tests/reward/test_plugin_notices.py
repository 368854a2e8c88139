"""What a plugin file defines and what is not served of it is never lost without a word."""

import logging
import os
import subprocess
from pathlib import Path

import pytest
from tests.reward.machinery import Machinery
from tests.reward.plugins_only import COMMAND

from grpo_reward.executors.base import ExecutorUnavailable
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.plugin import PluginError, rewards_of_plugin
from grpo_reward.registry import load_rewards

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fresh_modules")]

MARKED = "from grpo_reward import reward\n@reward\ndef one(completion):\n    return 1.0\n"
PLAIN = "def two(completions, **kwargs):\n    return [2.0] * len(completions)\n"
ORM = "from swift.plugin import ORM, orms\nclass Three(ORM):\n    def __call__(self, completions):\n        return []\n"
OBJECTS = """
import functools
from functools import cache, partial
class Callable:
    def __call__(self, completions, **kwargs):
        return [3.0] * len(completions)
class Other:
    def __call__(self, text):
        return text
class _Odd:
    @property
    def __signature__(self):
        raise SystemError
    __wrapped__ = property(lambda self: 1 / 0)
    def __call__(self, completions):
        return completions
made, other, odd = Callable(), Other(), _Odd()
part = partial(two, k=3)
cached = cache(two)
_hidden = made
"""
BY_MARK = "{file}: two is left out, as the file marks its rewards with @reward: to serve it, add --plugin {path}:two; "
IN_ORMS = "{file}: two is left out, as the file has its rewards in orms: to serve it, add --plugin {path}:two; "
NOT_IN_ORMS = "{file}: Three is left out, as it is not in orms: to serve it, add --plugin {path}:Three; "
NO_FUNCTION = "{file}: {name} is left out, as it is no function of the file: to serve it, add --plugin {path}:{name}; "
HELPER = "the name of a helper may begin with _"


def written(folder: Path, *texts: str, name: str = "mixed.py") -> Path:
    path = folder / name
    path.write_text("".join(texts))
    return path


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ((MARKED, PLAIN), [BY_MARK]),
        ((MARKED, ORM), [NOT_IN_ORMS]),
        ((MARKED, PLAIN, ORM), [BY_MARK, NOT_IN_ORMS]),
        ((PLAIN, ORM), [NOT_IN_ORMS]),
        ((PLAIN, ORM, "orms['three'] = Three\n"), [IN_ORMS]),
        ((PLAIN, ORM, "class Four(Three):\n    pass\norms['four'] = Four\n"), [IN_ORMS]),
        ((MARKED, PLAIN.replace("two", "_two"), ORM.replace("Three", "_Three")), []),
        ((MARKED, "from os.path import join\ndef helper(text):\n    return text\nclass Other:\n    pass\n"), []),
        ((MARKED, "@reward\n", PLAIN), []),
        ((PLAIN,), []),
    ],
)
def test_what_looks_like_a_reward_and_is_not_served_is_told(tmp_path, texts, told):
    path, notices = written(tmp_path, *texts), []
    load_rewards([path], notices.append)
    assert notices == [text.format(file=path.name, path=path) + HELPER for text in told]


def test_so_is_what_is_no_function(tmp_path):
    path, notices = written(tmp_path, PLAIN, OBJECTS), []
    load_rewards([path], notices.append)
    names = ("Callable", "made", "part", "cached")
    assert notices == [NO_FUNCTION.format(file=path.name, path=path, name=name) + HELPER for name in names]
    assert set(names[1:]) < set(load_rewards([Path(f"{path}:{name}") for name in names]))


def test_what_is_asked_for_by_name_is_not_told(tmp_path):
    path, notices = written(tmp_path, MARKED, PLAIN), []
    assert {"one", "two"} < set(load_rewards([path, Path(f"{path}:two")], notices.append))
    assert notices == []


def test_nothing_is_told_of_a_file_of_which_one_reward_was_named(tmp_path):
    notices = []
    load_rewards([Path(f"{written(tmp_path, MARKED, PLAIN)}:one")], notices.append)
    assert notices == []


@pytest.mark.asyncio
async def test_the_server_tells_it_when_it_starts(tmp_path, caplog):
    path = written(tmp_path, MARKED.replace("one", "misbehave"), PLAIN)
    machinery = Machinery(path)
    await machinery.executor.start()
    assert await machinery.statuses("a") == ["ok"]
    await machinery.executor.stop()
    told = [record for record in caplog.records if "two is left out" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]


@pytest.mark.asyncio
async def test_a_plugin_that_hangs_at_its_import_is_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("grpo_reward.executors.loading.SLOW_IMPORT_S", 0.2)
    quick, slow = tmp_path / "quick.py", tmp_path / "slow.py"
    quick.write_text(MARKED)
    slow.write_text("import time\ntime.sleep(600)\n")
    executor = ProcessExecutor(workers=1, plugins=[quick, slow], start_limit_s=4.0)
    with pytest.raises(ExecutorUnavailable, match=f"^{slow} was not imported within 4 s$"):
        await executor.start()
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"importing {slow} for 0.2 s; its code runs or waits"]


@pytest.mark.parametrize("command", [("list", "one"), ("test", "one", "--time-limit-s", "5")])
def test_a_command_tells_it_once_on_stderr(tmp_path, command):
    """`test` loads the rewards twice."""
    path = written(tmp_path, MARKED, PLAIN)
    data = tmp_path / "rows.jsonl"
    data.write_text('{"completion": "a"}\n')
    rows = ["--data", str(data)] if command[0] == "test" else []
    done = subprocess.run(
        [*COMMAND, *command, "--plugin", str(path), *rows],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ,
    )  # fmt: skip
    assert done.stderr.count("mixed.py: two is left out") == 1
    assert "left out" not in done.stdout
    assert "one" in done.stdout


class TestHiddenRewards:
    """A second function of the same name takes the place of the first in the file."""

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (MARKED + "@reward\ndef one(completion):\n    return 2.0\n", r"lines 2 and 5: the reward one is lost"),
            (
                MARKED + "@reward(name='other')\ndef one(completion):\n    return 2.0\n",
                r"lines 2 and 5: the reward one is lost, as one is defined once more: rename one",
            ),
            (
                "import functools\n" + MARKED + "@reward\n@functools.cache\ndef one(completion):\n    return 2.0\n",
                r"lines 3 and 6: the reward one is lost",
            ),
            (MARKED + "def one(completions):\n    return [2.0]\n", r"line 2: the reward one is lost"),
            (MARKED + "one = 1\n", r"line 2: the reward one is lost"),
        ],
    )
    def test_it_is_refused_with_the_lines(self, tmp_path, text, told):
        path = written(tmp_path, text)
        for plugin in (path, Path(f"{path}:one")):
            with pytest.raises(PluginError, match=told):
                rewards_of_plugin(plugin)

    def test_two_with_one_given_name_are_refused_with_the_lines(self, tmp_path):
        path = written(tmp_path, MARKED, "@reward(name='one')\ndef other(completion):\n    return 2.0\n")
        for plugin in (path, Path(f"{path}:one")):
            with pytest.raises(PluginError, match=r"lines 2 and 5 both define the reward one: rename one"):
                rewards_of_plugin(plugin)

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            (MARKED + "del one\n@reward\ndef kept(completion):\n    return 1.0\n", ["kept"]),
            (MARKED + "alias = one\n", ["one"]),
            (
                "import functools\n" + MARKED + "def make():\n    @reward\n    @functools.cache\n"
                "    def other(completion):\n        return 2.0\n    return [other]\nkept = make()\n",
                ["one"],
            ),
            (MARKED + "for n in 'ab':\n    globals()[n] = reward(name=n)(lambda completion: 1.0)\n", ["one", "a", "b"]),
            (
                "import functools\nfrom grpo_reward import reward\ndef logged(f):\n    @functools.wraps(f)\n"
                "    def call(**given):\n        return f(**given)\n    return call\n"
                "@logged\n@reward\ndef one(completion):\n    return 1.0\n",
                ["one"],
            ),
            ("from grpo_reward import reward\ndef make(n):\n    @reward(name=n)\n    def one(completion):\n"
             "        return 1.0\n    return one\na, b = make('a'), make('b')\n", ["a", "b"]),
        ],
    )  # fmt: skip
    def test_what_is_not_hidden_is_served(self, tmp_path, text, names):
        assert [reward.name for reward in rewards_of_plugin(written(tmp_path, text))] == names


@pytest.mark.asyncio
async def test_plugins_that_end_the_process_at_their_import_are_named(tmp_path):
    first = written(tmp_path, MARKED, name="first.py")
    ends = written(tmp_path, "import os\nos._exit(0)\n", name="ends.py")
    with pytest.raises(ExecutorUnavailable, match=rf"died while it loaded {first}, {ends}$"):
        await ProcessExecutor(workers=1, plugins=[first, ends]).start()
