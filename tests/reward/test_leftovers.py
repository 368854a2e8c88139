"""A worker in which a reward has left something is replaced before another reward suffers from it."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.process import ProcessExecutor

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

PLUGIN = """
import asyncio, builtins, decimal, gc, json, os, resource, signal, socket, subprocess, sys, _thread, time, warnings
import fractions
from grpo_reward import Score, reward
kept = []

@reward
def leave(completion):
    '''Runs what the test wrote.'''
    exec(completion, globals())
    return 1.0

@reward
def process(completion):
    return Score(1.0, log={"pid": os.getpid()})

@reward
def changes(completion, gold):
    gold.append(99)
    return float(len(gold))

@reward
def counts(completion, gold):
    return float(len(gold))

@reward
def logs_a_list(completion):
    return Score(1.0, log=["x"])

@reward
def takes_one(completion, words: list[str] = ["a", "b"]):
    words.pop()
    return float(len(words))

class Slow:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(30)

@reward
def finalizes(completion):
    Slow()
    return 1.0

@reward
def keeps(completion):
    kept.append(bytearray(int(completion)))
    return 1.0
"""
LEFT = [
    "sys.setrecursionlimit(150)",
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (30, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))",
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.getrlimit(resource.RLIMIT_AS)[1]))",
    "resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, resource.RLIM_INFINITY))",
    "resource.setrlimit(resource.RLIMIT_CPU, (3600, resource.RLIM_INFINITY))",
    "os.close(0)",
    "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
    "sys.stdout.close()",
    "os.environ.clear()",
    "sys.path.clear()",
    "os.kill = os.fork = None",
    "builtins.exit = None",
    "builtins.sorted = list",
    "subprocess.run = None",
    "subprocess.Popen = None",
    "subprocess.Popen.__init__ = lambda *a, **k: None",
    "os.listdir = None",
    "sys.addaudithook(lambda event, arguments: None)",
    "fractions.Fraction.__eq__ = lambda left, right: True",
    "fractions.Fraction.__add__ = fractions.Fraction.__sub__",
    "fractions.Fraction = None",
    "decimal.Decimal = float",
    "from sympy.core.parameters import global_parameters\nglobal_parameters.evaluate = False",
    "import mpmath\nmpmath.mp.dps = 3",
    "json.dumps = lambda value: 'x'",
    "sys.modules.clear()",
    "os.chdir('/proc')",
    "sys.settrace(lambda *call: None)",
    "sys.setprofile(lambda *call: None)",
    "warnings.simplefilter('error')",
    "decimal.getcontext().prec = 2",
    "decimal.getcontext().traps[decimal.Inexact] = True",
    "sys.set_int_max_str_digits(640)",
    "gc.disable()",
    "socket.setdefaulttimeout(0.001)",
    "asyncio.set_event_loop_policy(type('P', (asyncio.DefaultEventLoopPolicy,), {})())",
    "asyncio._set_running_loop(asyncio.new_event_loop())",
    "kept.extend(open(os.devnull) for _ in range(150))",
    "kept.append(subprocess.Popen(['sleep', '30']))",
    "_thread.start_new_thread(time.sleep, (30,)); time.sleep(0.2)",
    "subprocess.run(['sh', '-c', 'sleep 30 >/dev/null 2>&1 &'])",
    "import math\nmath.cos = lambda angle: 0.0",
    "socket.socket = type('Guarded', (socket.socket,), {})",
    "os.environ['HOME'] = '/tmp'",
    "os.environ['JUDGE_API_KEY'] = 'another'",
    "os.nice(1)",
    "os.umask(0o77)",
    "decimal.DefaultContext.prec = 2",
    "import locale\nlocale.setlocale(locale.LC_ALL, 'C' if os.environ.get('LC_ALL') else 'C.UTF-8')",
    "import numpy\nnumpy.seterr(all='raise')",
    "import torch\ntorch.set_default_dtype(torch.float64)",
    "import torch\ntorch.set_default_device('meta')",
    "import torch\ntorch.set_flush_denormal(True)",
    "sys.executable = '/bin/false'",
    "import ctypes, ctypes.util\nctypes.CDLL(ctypes.util.find_library('m')).fesetround(0x800)",
    *["os.sched_setaffinity(0, {0})"] * (len(os.sched_getaffinity(0)) > 1),
]
HARMLESS = [
    "x = 1",
    "os.environ['MORE'] = '1'",
    "sys.path.append('/tmp')",
    "kept.append(open(os.devnull))",
    "print('x')",
    "import numpy, torch",
    "warnings.filterwarnings('error', module='another')",
    "warnings.simplefilter('ignore')",
    "decimal.Decimal(1) / 3",
    "fractions.Fraction(1, 3) == fractions.Fraction(2, 6)",
    "subprocess.run(['true'])",
    "time.tzset()",
    "import mpmath, sympy\nwith sympy.evaluate(False), mpmath.workdps(50): sympy.sqrt(8)",
    "subprocess.more = 1",
    "builtins.more = 1",
]


class Started:
    """An executor with one worker, and the restarts it has reported."""

    def __init__(self, plugin: Path):
        self.restarts: Counter[str] = Counter()
        self.executor = ProcessExecutor(
            workers=1, plugins=[plugin], memory_bytes=4 << 30, environment={"HOME": "/"},
            on_restart=lambda cause: self.restarts.update([cause]),
        )  # fmt: skip

    async def score(self, reward: str, *completions: str, timeout_s: float = 60.0) -> list[RewardScore]:
        samples = [{"completion": text, "columns": {}, "prompt": None} for text in completions]
        chunk = Chunk([RewardSpec(name=reward)], samples, None, timeout_s)
        async with asyncio.timeout(120.0):
            await self.executor.score(chunk)
        return [score for score in chunk.scores if score is not None]

    async def pid(self) -> int:
        (score,) = await self.score("process", "")
        assert score.log is not None
        return score.log["pid"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Started]:
    plugin = tmp_path_factory.mktemp("plugins") / "leaving.py"
    plugin.write_text(PLUGIN)
    started = Started(plugin)
    await started.executor.start()
    yield started
    await started.executor.stop()


@pytest.mark.parametrize("what", LEFT)
async def test_what_is_left_goes_with_its_worker(started: Started, what: str):
    before = await started.pid()
    started.restarts.clear()
    (score,) = await started.score("leave", what)
    assert (score.status, score.score) == ("ok", 1.0), score.detail
    assert await started.pid() != before
    assert started.restarts == {"leaving": 1}


@pytest.mark.parametrize("what", HARMLESS)
async def test_what_harms_nobody_may_stay(started: Started, what: str):
    before = await started.pid()
    started.restarts.clear()
    assert [score.status for score in await started.score("leave", what)] == ["ok"]
    assert (await started.pid(), started.restarts) == (before, {})


async def test_a_log_that_is_no_dict_is_left_out_and_costs_nothing_else(started: Started):
    before = await started.pid()
    scores = await started.score("logs_a_list", "a", "b")
    assert [(score.status, score.log) for score in scores] == [("ok", None)] * 2
    assert [score.detail for score in scores] == ["log left out: it is a list, not a dict of columns"] * 2
    assert await started.pid() == before


async def test_a_reward_that_changes_its_params_changes_them_for_nobody(started: Started):
    before = await started.pid()
    scores = await started.score("takes_one", "a", "b") + await started.score("takes_one", "c")
    assert [score.score for score in scores] == [1.0] * 3
    assert await started.pid() == before


async def test_what_a_reward_leaves_to_be_finalized_costs_the_time_of_nobody_else(started: Started):
    (own,) = await started.score("finalizes", "", timeout_s=1.0)
    assert own.status == "timeout"
    assert [score.status for score in await started.score("keeps", *["0"] * 1000, timeout_s=1.0)] == ["ok"] * 1000


async def test_memory_that_others_keep_costs_no_score(started: Started):
    """The worker has an address space of 4 GiB."""
    large = str(3 << 29)
    for _ in range(4):
        assert [score.status for score in await started.score("keeps", large)] == ["ok"]
    (score,) = await started.score("keeps", str(8 << 30))
    assert (score.status, (score.detail or "")[:11]) == ("error", "MemoryError")


async def test_rewards_of_one_request_do_not_see_what_another_did_to_its_columns(started: Started):
    samples = [{"completion": text, "columns": {"gold": [1]}, "prompt": None} for text in "ab"]
    for name, expected in (("changes", [2.0, 2.0]), ("counts", [1.0, 1.0])):
        chunk = Chunk([RewardSpec(name=name)], samples, None, 10.0)
        await started.executor.score(chunk)
        assert [score.score for score in chunk.scores if score] == expected
