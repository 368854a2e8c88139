"""`RemoteReward` as TRL, ms-swift and verl call it, against a real server process."""

import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.reward.fake_server import Reply, server
from tests.reward.plugins_only import PLAIN
from tests.reward.real_server import PATIENCE_S, Server

from grpo_proto import DataError, FatalError, InfrastructureError
from grpo_proto.server.listening import listening_socket
from grpo_reward import RemoteReward
from grpo_reward.adapters.label import LabelError
from grpo_reward.remote import MAX_COLUMN_LEVELS, NoScoreError

pytestmark = pytest.mark.processes

COUNTDOWN = "<answer>44 + 19 + 35</answer>"


__all__ = ["server"]


def client_threads() -> int:
    """There is one for each connection."""
    return sum(thread.name == "grpo-reward-client" for thread in threading.enumerate())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    misbehaving = Path(__file__).parent / "plugins/misbehaving.py"
    server = Server("--plugin", str(misbehaving))
    yield server.url
    server.stop()


class TestTrl:
    def test_scores_of_texts_with_columns(self, url):
        countdown = RemoteReward(url, "countdown")
        assert countdown.__name__ == "countdown"
        scores = countdown(
            prompts=["p", "p"],
            completions=[COUNTDOWN, "<answer>44</answer>"],
            completion_ids=[[1, 2], [3]],
            nums=[[44, 19, 35], [44, 19, 35]],
            target=[98, 98],
            trainer_state=SimpleNamespace(global_step=3),
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
        )
        assert scores == [1.0, 0.0]

    def test_conversations(self, url):
        prompt = [{"role": "user", "content": "hello"}]
        calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
        completions = [
            [{"role": "assistant", "content": COUNTDOWN}],
            [
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "name": "f", "content": "<answer>1</answer>"},
                {"role": "assistant", "content": [{"type": "text", "text": COUNTDOWN}]},
            ],
        ]
        columns = {"nums": [[44, 19, 35]] * 2, "target": [98] * 2}
        scores = RemoteReward(url, "countdown")(prompts=[prompt] * 2, completions=completions, **columns)
        assert scores == [1.0, 1.0]
        logged: dict[str, list] = {}
        RemoteReward(url, "typed")(
            prompts=[prompt], completions=["c"], gold=[1], log_extra=logged.__setitem__,
            trainer_state=SimpleNamespace(global_step=7),
        )  # fmt: skip
        assert logged["typed/prompt"] == [prompt]
        assert logged["typed/step"] == [7]

    def test_shapes_of_conversations(self, url):
        said, calls = [{"type": "text", "text": COUNTDOWN}], [{"type": "function", "function": {"name": "f"}}]
        completions: list[Any] = [
            ({"role": "assistant", "content": COUNTDOWN},),
            np.array([{"role": "assistant", "content": COUNTDOWN}]),
            [{"role": "assistant", "content": [{"type": "image", "text": None}, *said]}],
            [{"role": "tool", "content": {"any": "thing"}}, {"role": "assistant", "content": said}],
            [{"role": "assistant", "tool_calls": calls}, {"role": "assistant", "content": COUNTDOWN}],
            [{"role": "assistant", "content": None}],
            [{"role": "assistant", "content": ""}],
            [{"role": "assistant", "reasoning_content": COUNTDOWN}],
        ]
        columns = {"nums": [[44, 19, 35]] * 8, "target": [98] * 8}
        assert RemoteReward(url, "countdown")(completions, **columns) == [1.0] * 5 + [0.0, 0.0, 1.0]

    def test_what_a_parser_took_out_of_a_message_counts(self, url):
        call = {"name": "f", "arguments": {"x": 1}}
        said = [{"role": "assistant", "reasoning_content": "I call.", "content": "<answer>1</answer>"}]
        called = [said[0] | {"content": "", "tool_calls": [{"type": "function", "function": call}]}]
        assert RemoteReward(url, "format")([said, called]) == [1.0, 0.0]
        assert RemoteReward(url, "tool_call")([said, called], tool_calls=[[call]] * 2) == [0.0, 1.0]

    def test_columns_as_deep_as_the_server_reads_them(self, url):
        value: Any = 1
        for _ in range(MAX_COLUMN_LEVELS):
            value = [value]
        reward = RemoteReward(url, "min_length")
        assert reward(["a"], deep=[value]) == reward(["a"])
        with pytest.raises(ValueError, match="column deep of sample 0 has more than 196 nested levels"):
            reward(["a"], deep=[[value]])

    def test_columns_of_numpy_and_torch(self, url):
        countdown = RemoteReward(url, "countdown")
        nums: list[Any] = [np.array([44, 19, 35]), torch.tensor([44, 19, 35]), (np.int64(44), 19, 35), "[44, 19, 35]"]
        target: list[Any] = [np.int64(98), torch.tensor(98), np.float32(98), "98"]
        assert countdown(prompts=[""] * 4, completions=[COUNTDOWN] * 4, nums=nums, target=target) == [1.0] * 4

    def test_what_is_not_json_is_named(self, url):
        reward = RemoteReward(url, "min_length")
        with pytest.raises(TypeError, match=r"column image of sample 1 is .*columns=\["):
            reward(["a", "b"], image=[None, object()])
        with pytest.raises(TypeError, match="column rate of sample 0 is nan"):
            reward(["a"], rate=[float("nan")])
        with pytest.raises(ValueError, match="the argument mode is no list of 1 values"):
            reward(["a"], mode="train")
        chosen = RemoteReward(url, "countdown", columns=["nums", "target"])
        assert chosen([COUNTDOWN], nums=[[44, 19, 35]], target=[98], image=[object()]) == [1.0]
        with pytest.raises(ValueError, match="the column target, which the trainer does not pass"):
            chosen([COUNTDOWN], nums=[[44, 19, 35]])

    def test_limits_that_nobody_named_are_the_servers(self):
        server = Server("--max-timeout-s", "2", "--plugin", PLAIN, built_in=False)
        try:
            assert RemoteReward(server.url, "plain")(["a"]) == [1.0]
            named = RemoteReward(server.url, "plain", timeout_s=3.0)
            with pytest.raises(DataError, match="timeout_s is 3; this server takes 2 at most"):
                named(["a"])
        finally:
            server.stop()

    def test_no_score_is_none_and_counted(self, url, caplog):
        with caplog.at_level(logging.WARNING):
            scores = RemoteReward(url, "misbehave")(["", "none", "none"])
        assert scores == [1.0, None, None]
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("misbehave: 2 of 3 samples have no score: 2 unscorable")
        assert RemoteReward(url, "misbehave", unscorable=-1.0)(["", "none"]) == [1.0, -1.0]

    @pytest.mark.parametrize("unscorable", [None, 0.0])
    def test_what_broke_and_breaks_again_is_no_score_of_anybodys(self, url, monkeypatch, unscorable):
        """As of a column of the wrong type: the trainer would train on what is left."""
        monkeypatch.setattr("grpo_proto.totals.PAUSES_S", (0.0,))
        reward = RemoteReward(url, "accuracy", unscorable=unscorable)
        for solution in ([3, 3], np.array([3, 3]), [["3"], ["3"]]):
            with pytest.raises(NoScoreError, match=r"and would again: error, column solution: .*Value\(\"string\"\)"):
                reward([COUNTDOWN] * 2, solution=solution)
        with pytest.raises(NoScoreError, match=r"accuracy broke for 1 of 2 samples, .*: error, column solution: "):
            reward([COUNTDOWN] * 2, solution=["98", 1])
        late = RemoteReward(url, "misbehave", unscorable=unscorable, timeout_s=0.3)
        with pytest.raises(NoScoreError, match=r"misbehave broke for 1 of 2 samples, .*: timeout, "):
            late(["", "loop"])

    def test_what_breaks_once_is_scored_again(self, url, tmp_path):
        reward = RemoteReward(url, "misbehave", params={"folder": str(tmp_path)})
        assert reward(["", "raise the first time"]) == [1.0, 1.0]

    def test_values_may_be_numbered_from_anywhere(self, url):
        class Series(list):
            def __getitem__(self, row):
                return super().__getitem__(row - 5)

        reward = RemoteReward(url, "countdown")
        assert reward(Series([COUNTDOWN, "b"]), nums=Series([[44, 19, 35]] * 2), target=Series([98, 98])) == [1.0, 0.0]
        logged: dict[str, list] = {}
        RemoteReward(url, "typed")(
            Series(["a", "b"]), prompts=Series(["p", "q"]), completion_ids=Series([[1], [2]]), gold=Series([1, 2]),
            log_extra=logged.__setitem__,
        )  # fmt: skip
        assert logged["typed/prompt"] == ["p", "q"]

    def test_what_a_server_says_is_one_line_of_the_log(self, server, caplog):
        detail = "ValueError: \x1b[31m\n2026-01-01 ERROR forged" + "x" * 5000
        score = {"score": None, "status": "unscorable", "detail": detail}
        result = {"id": "0", "total": None, "rewards": {"accuracy": score}}
        server.answer = lambda request: Reply({"results": [result], "elapsed_s": 0.0})
        assert RemoteReward(server.url, "accuracy")(["a"]) == [None]
        (message,) = [record.getMessage() for record in caplog.records]
        assert "ValueError: \\x1b[31m\\n2026-01-01 ERROR forged" in message
        assert message.isprintable()
        assert len(message) < 1200

    def test_log_and_metrics(self, url):
        columns: list[tuple[str, list]] = []
        metrics: list[tuple[str, float]] = []
        countdown = RemoteReward(url, "countdown")

        def call(*completions: str) -> None:
            countdown(
                list(completions), nums=[[1]] * len(completions), target=[1] * len(completions),
                log_extra=lambda name, values: columns.append((name, values)),
                log_metric=lambda name, value: metrics.append((name, value)),
            )  # fmt: skip

        call("none")
        assert columns == []
        call("none", "<answer>1</answer>")
        # From now on in every batch, because TRL puts it beside the rewards of the last ones.
        call("none", "none")
        assert columns == [("countdown/expression", [None, "1"]), ("countdown/expression", [None, None])]
        assert metrics == []
        RemoteReward(url, "misbehave")(["log", "", "log"], log_metric=lambda *pair: metrics.append(pair))
        assert [name for name, _ in metrics] == ["misbehave/length"]

    def test_a_wrong_reward_or_param_is_told_at_once(self, url):
        with pytest.raises(DataError, match="did you mean countdown"):
            RemoteReward(url, "countdwn")(["a"])
        with pytest.raises(DataError, match="min_char"):
            RemoteReward(url, "min_length", params={"min_char": 1})(["a"])
        with pytest.raises(DataError, match="needs the column solution"):
            RemoteReward(url, "accuracy")(["a"])

    def test_many_threads(self, url):
        reward = RemoteReward(url, "min_length", params={"min_chars": 3}, token="of nobody else")
        before = client_threads()
        with ThreadPoolExecutor(16) as pool:
            scores = list(pool.map(lambda number: reward(["x" * number]), range(100)))
        assert scores == [[float(number > 3)] for number in range(100)]
        assert client_threads() == before + 1


class TestSwift:
    def test_called_as_its_trainer_does(self, url):
        """`func(completions, **columns)`: messages end with the completion, its own fields lie beside the columns."""
        rows = [
            {
                "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": COUNTDOWN}],
                "prompt_id": "p", "request_id": "r", "finish_reason": "stop", "is_truncated": False,
                "rollout_infos": {"what": object()}, "response_token_ids": [[1, 2], [3]],
                "nums": [44, 19, 35], "target": 98,
            }
        ]  # fmt: skip
        batched = {key: [row[key] for row in rows] for key in rows[0]}
        completions = [row["messages"][-1]["content"] for row in rows]
        state = SimpleNamespace(global_step=2)
        assert RemoteReward(url, "countdown")(completions, trainer_state=state, **batched) == [1.0]
        overlong = RemoteReward(url, "soft_overlong", params={"max_len": 3, "cache_len": 2})
        assert overlong(completions, trainer_state=state, **batched) == [-1.0]

    def test_registered_with_a_class_for_the_name(self, url):
        """Its registry maps a name to what is called with `args`; for the log it takes the name of the class."""

        class RemoteCountdown(RemoteReward):
            pass

        orms = {"remote_countdown": lambda args=None: RemoteCountdown(url, "countdown")}
        reward = orms["remote_countdown"](args=SimpleNamespace())
        assert (type(reward).__name__, callable(reward)) == ("RemoteCountdown", True)
        assert reward([COUNTDOWN], nums=[[44, 19, 35]], target=[98]) == [1.0]


class TestVerl:
    def test_called_as_its_reward_managers_do(self, url):
        compute_score = RemoteReward(url, "accuracy").compute_score
        extra_info = {"index": 3, "num_turns": 2, "rollout_reward_scores": {}}
        for ground_truth, score in (("3/4", 1.0), ("1", 0.0), (np.str_("0.75"), 1.0), ({"solution": "3/4"}, 1.0)):
            arguments = {"data_source": "gsm8k", "solution_str": "<answer>0.75</answer>", "ground_truth": ground_truth}
            found = compute_score(**arguments, extra_info=extra_info)
            assert (found, type(found)) == (score, float)
        more = {"reward_router_address": "x", "reward_model_tokenizer": None}
        assert compute_score("gsm8k", "<answer>1</answer>", "1", **more) == 1.0

    def test_ground_truth_of_several_columns(self, url):
        compute_score = RemoteReward(url, "countdown").compute_score
        assert compute_score("c", COUNTDOWN, {"nums": np.array([44, 19, 35]), "target": 98}) == 1.0
        assert compute_score("c", COUNTDOWN, '{"nums": [44, 19, 35], "target": 98}') == 1.0
        with pytest.raises(LabelError, match="nums, target are needed"):
            compute_score("c", COUNTDOWN, 98)

    def test_no_score_is_an_error_or_a_number_of_ones_own(self, url, caplog):
        with pytest.raises(NoScoreError, match=r"accuracy is unscorable \(the column solution has no answer"):
            RemoteReward(url, "accuracy").compute_score("d", "<answer>1</answer>", "?!")
        assert RemoteReward(url, "accuracy", unscorable=0.0).compute_score("d", "<answer>1</answer>", "?!") == 0.0
        assert "1 of 1 samples have no score" in caplog.text


class TestPickle:
    def test_round_trip_and_use_in_another_process(self, url):
        reward = RemoteReward(url, "min_length", params={"min_chars": 2}, columns=[])
        assert reward(["abc"]) == [1.0]  # with a connection open
        copy = pickle.loads(pickle.dumps(reward))  # noqa: S301
        assert (copy(["abc"]), copy.__name__, repr(copy)) == ([1.0], "min_length", repr(reward))
        code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(['ab', 'abc']))"
        ended = subprocess.run(
            [sys.executable, "-c", code], input=pickle.dumps(reward), capture_output=True, timeout=PATIENCE_S
        )
        assert ended.stdout == b"[0.0, 1.0]\n", ended.stderr

    def test_a_forked_process_has_its_own_connection(self, url):
        code = f"""
import asyncio, os, threading
from grpo_reward import RemoteReward
reward, other = RemoteReward({url!r}, "min_length"), RemoteReward({url!r}, "min_length", token="x")
first = reward(["a"])
new_event_loop, begun, go_on = asyncio.new_event_loop, threading.Event(), threading.Event()
def slow_event_loop():
    begun.set()
    go_on.wait()
    return new_event_loop()
asyncio.new_event_loop = slow_event_loop
threading.Thread(target=other, args=(["a"],)).start()
begun.wait()  # another thread is making a connection just now
if (child := os.fork()) == 0:
    asyncio.new_event_loop = new_event_loop
    same, threads = reward(["a"]) == first, [thread.name for thread in threading.enumerate()]
    os._exit(0 if same and threads == ["MainThread", "grpo-reward-client"] else 1)
go_on.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), reward(["a"]) == first)
"""
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.stdout == "0 True\n", ended.stderr

    def test_the_token_of_the_environment_is_neither_shown_nor_pickled(self, monkeypatch):
        monkeypatch.setenv("GRPO_API_TOKEN", "the-secret")
        reward = RemoteReward("http://127.0.0.1:1", "format")
        assert b"the-secret" not in pickle.dumps(reward)
        assert "the-secret" not in repr(RemoteReward("http://127.0.0.1:1", "format", token="the-secret"))

    def test_importing_is_cheap(self):
        code = "import grpo_reward, sys; print([name for name in ('httpx', 'torch', 'fastapi') if name in sys.modules])"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.stdout == "[]\n", ended.stderr


class TestServerAway:
    def test_it_is_tried_again_and_then_raises(self):
        with listening_socket("127.0.0.1", 0) as sock:
            port = sock.getsockname()[1]
        gone = RemoteReward(f"http://127.0.0.1:{port}", "format", retry_for_s=0.5)
        with pytest.raises(InfrastructureError, match="is the server running there"):
            gone(["a"])
        with pytest.raises(InfrastructureError):
            gone.compute_score("d", "a", "b")

    def test_a_server_that_comes_back_is_found(self):
        first = Server("--plugin", PLAIN, built_in=False)
        port = int(first.url.rpartition(":")[2])
        reward = RemoteReward(first.url, "plain", retry_for_s=PATIENCE_S)
        expected = reward(["abc"])
        first.stop()
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(reward(["abc"])))
        waiting.start()
        second = Server("--port", str(port), "--plugin", PLAIN, built_in=False)
        try:
            waiting.join(PATIENCE_S)
            assert found == [expected]
        finally:
            second.stop()

    def test_a_wrong_token_is_told_at_once(self, monkeypatch):
        server = Server("--plugin", PLAIN, built_in=False, GRPO_API_TOKEN="secret")
        try:
            with pytest.raises(FatalError, match="unauthorized"):
                RemoteReward(server.url, "plain", token="wrong")(["a"])
            assert RemoteReward(server.url, "plain", token="secret")(["a"]) == [1.0]
            monkeypatch.setenv("GRPO_API_TOKEN", "secret")
            assert RemoteReward(server.url, "plain")(["a"]) == [1.0]
        finally:
            server.stop()
