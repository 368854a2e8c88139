"""Plugins that cannot be loaded, that never finish, and that say too much of themselves."""

import contextlib

import pytest
from tests.reward.machinery import Machinery, gone

from grpo_reward.executors.base import ExecutorUnavailable
from grpo_reward.executors.process import ProcessExecutor

pytestmark = [pytest.mark.asyncio, pytest.mark.processes]


@pytest.mark.parametrize(
    ("text", "message"), [("x = 1", "defines no reward"), ("import os\nos._exit(1)", "died while it loaded")]
)
async def test_a_plugin_that_cannot_be_loaded_stops_the_start(tmp_path, text, message):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(text)
    executor = ProcessExecutor(workers=1, plugins=[plugin])
    with pytest.raises(ExecutorUnavailable, match=message):
        await executor.start()


async def test_a_plugin_that_never_finishes_loading_stops_the_start(tmp_path):
    plugin = tmp_path / "plugin.py"
    marker = tmp_path / "pid"
    plugin.write_text(f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)")
    executor = ProcessExecutor(workers=1, plugins=[plugin], start_limit_s=3.0)
    with pytest.raises(ExecutorUnavailable, match=r"not (loaded|imported) within 3 s"):
        await executor.start()
    with contextlib.suppress(FileNotFoundError):  # on a slow machine it did not even come to the plugin
        assert await gone(int(marker.read_text()))


HEAD = "from typing import Literal\nfrom grpo_reward import reward\n@reward\n"


WORDS = ", ".join(repr(f"word{number}") for number in range(12_000))


LARGE = {
    "documentation": (f"{HEAD}def large(completion):\n    '''{'x' * 300_000}'''\n    return 1.0\n", None),
    "params": (
        f"{HEAD}def large(completion, word: Literal[{WORDS}] = 'word1'):\n    return 1.0\n",
        "reward large: its description has [0-9]+ bytes",
    ),
    "failure": ("raise ValueError('x' * 300_000)\n", "ValueError"),
}


@pytest.mark.parametrize("what", LARGE)
async def test_what_is_too_long_for_the_server_to_be_told_is_cut_or_refused(tmp_path, what):
    plugin = tmp_path / "large.py"
    text, message = LARGE[what]
    plugin.write_text(text)
    machinery = Machinery(plugin)
    if message is None:
        await machinery.executor.start()
        assert machinery.executor.rewards["large"].description.documentation == "x" * 16_000
        await machinery.executor.stop()
        return
    with pytest.raises(ExecutorUnavailable, match=message) as caught:
        await machinery.executor.start()
    assert len(str(caught.value)) <= 5_000
