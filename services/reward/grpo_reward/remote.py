"""`RemoteReward`: a reward of this server as a function for TRL, ms-swift and verl, in their own process.

    trainer = GRPOTrainer(…, reward_funcs=[RemoteReward("http://127.0.0.1:8001", "accuracy")])

It holds nothing but its settings, so it can be pickled and sent to other processes; connections belong to a process.
"""

import asyncio
import logging
import os
import reprlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_proto.diagnostics import finite

from .adapters.completion import A_COMPLETION, completion_text, value_and_type
from .adapters.text import plain_prompt
from .faults import printable

if TYPE_CHECKING:
    from grpo_proto import RewardScore, ScoreRequest, ScoreResponse

log = logging.getLogger("grpo_reward")

T = TypeVar("T")

SWIFT_FIELDS = ("prompt_id", "request_id", "finish_reason", "rollout_infos", "trajectory_inputs")
"""What ms-swift passes beside the dataset's columns and no reward reads."""
MAX_LOGGED_CHARS = 1000
"""Longest detail logged, in characters: a server of ours has no longer ones."""
MAX_COLUMN_LEVELS = 196
"""Deepest nesting of lists and objects in a value: the server's parser takes 200, and a value lies four deep."""


class NoScoreError(Exception):
    """The server answered, but something broke; or a sample has no score, and verl has no way to leave it out."""


class RemoteReward:
    """One reward of a reward server. `None` in a result means that there is no score; it is never 0.

    Args:
        url: of the server, such as http://127.0.0.1:8001.
        reward: its name there.
        params: its params.
        token: bearer token; `GRPO_API_TOKEN` of the process that calls when None. One given here is pickled.
        timeout_s: limit for one sample; the server's own when None: 10, or less if it allows less.
        deadline_s: limit for one call; the server's own when None: 60, or less.
        retry_for_s: how long a server that is away or busy is tried again, before the call raises.
        columns: which columns to send; all when None. Needed when a dataset has some that are not JSON.
        unscorable: the number that stands for the score of a sample that is not the reward's task. Without it TRL and
            ms-swift get None, and verl an error. ValueError unless it is finite.

    Raises, when called: `grpo_proto.ServiceError` (unreachable, refused), TypeError or ValueError for arguments that
    cannot be sent, NoScoreError when a sample ended in `timeout` or `error` and did so again: something broke.
    """

    def __init__(
        self,
        url: str,
        reward: str,
        *,
        params: Mapping[str, Any] | None = None,
        token: str | None = None,
        timeout_s: float | None = None,
        deadline_s: float | None = None,
        retry_for_s: float = 300.0,
        columns: Sequence[str] | None = None,
        unscorable: float | None = None,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the address of the server is {url!r}; it begins with http:// or https://")
        if "," in reward:
            raise ValueError(f"{reward!r} is no reward: make a RemoteReward for each, and let the trainer weigh them")
        self.url, self.reward, self.params = url.rstrip("/"), reward, dict(params or {})
        self.timeout_s, self.deadline_s, self.retry_for_s = timeout_s, deadline_s, retry_for_s
        self.columns = None if columns is None else list(columns)
        self.unscorable = None if isinstance(unscorable, bool) else finite(unscorable)
        if self.unscorable is None and unscorable is not None:
            raise ValueError(f"unscorable is {reprlib.repr(unscorable)}, not a finite number")
        self._token = token
        self._logged: dict[str, None] = {}
        self.__name__ = reward  # trainers log under it

    def __repr__(self) -> str:
        params = f", params={self.params}" if self.params else ""
        return f"RemoteReward({self.url!r}, {self.reward!r}{params})"

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Any] | None = None,
        trainer_state: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        environments: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        """As TRL and ms-swift call a reward function: S completions in, S scores out.

        Completions are texts or lists of messages; of those what the assistant writes counts. Prompts, token ids and
        every column have S values.
        What the reward logs goes to `log_extra` and `log_metric` as NAME/KEY.
        """
        count = _count(completions)
        if count is None:
            raise TypeError(f"completions is {value_and_type(completions)}, not a list: {A_COMPLETION}")
        truncated: Sequence[Any] | None = None
        if prompts is None and columns.get("messages") is not None:  # ms-swift
            messages, completion_ids = columns.pop("messages"), columns.pop("response_token_ids", None)
            truncated = columns.pop("is_truncated", None)
            _check_counts(count, messages=messages, response_token_ids=completion_ids, is_truncated=truncated)
            prompts = [dialogue[:-1] for dialogue in messages]
            for field in SWIFT_FIELDS:
                columns.pop(field, None)
        else:
            _check_counts(count, prompts=prompts, completion_ids=completion_ids)
        chosen = self._chosen(columns, count)
        # A Series of pandas counts from anywhere.
        completions = list(completions)
        prompts, completion_ids, truncated = (
            None if values is None else list(values) for values in (prompts, completion_ids, truncated)
        )
        samples = [
            {
                "completion": _sendable(completion_text(completions[row], where), where),
                "prompt": _prompt(prompts[row], f"the prompt of sample {row}") if prompts is not None else None,
                "completion_token_ids": _token_ids(completion_ids[row]) if completion_ids is not None else None,
                "truncated": truncated[row] if truncated is not None else None,
                "columns": {
                    name: _plain(values[row], f"column {name} of sample {row}") for name, values in chosen.items()
                },
            }
            for row, where in ((row, f"completions[{row}]") for row in range(count))
        ]
        results = self._score(samples, step=getattr(trainer_state, "global_step", None))
        self._warn(results)
        if log_extra is not None:
            self._log_extra(results, log_extra)
        if log_metric is not None:
            self._log_metrics(results, log_metric)
        return [result.score if result.score is not None else self.unscorable for result in results]

    def compute_score(
        self, data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
    ) -> float:
        """As verl calls a reward function: one sample in, its score out.

        `ground_truth` is an object that names the columns, the text of one, or the value of the one column that the
        reward needs. `data_source` and `extra_info` are not used. Raises NoScoreError when there is no score and no
        `unscorable`, LabelError when the ground truth cannot fill the columns.
        """
        from .adapters.label import columns_of

        if not isinstance(solution_str, str):
            raise TypeError(f"solution_str is {value_and_type(solution_str)}, not a text")
        completion, label = _sendable(solution_str, "solution_str"), _plain(ground_truth, "ground_truth")
        link = _link(self.url, self._token)
        if self.reward not in link.needed:
            link.learn(self.retry_for_s)
        # A reward that the server does not have: the request says so, with the nearest name.
        columns = columns_of(label, link.needed.get(self.reward, []))
        (result,) = self._score([{"completion": completion, "columns": columns}], step=None)
        if result.score is not None:
            return result.score
        if self.unscorable is not None:
            self._warn([result])
            return self.unscorable
        detail = f" ({result.detail})" if result.detail else ""
        raise NoScoreError(
            f"{self.reward} is {result.status}{detail}: leave such samples out of the dataset, "
            "or choose their number with RemoteReward(…, unscorable=…)"
        )

    def _score(self, samples: list[dict[str, Any]], step: int | None) -> list["RewardScore"]:
        from grpo_proto import ScoreRequest
        from grpo_proto.totals import BROKEN, may_pass

        limits = {"timeout_s": self.timeout_s, "deadline_s": self.deadline_s}
        request = ScoreRequest.model_validate(
            {"rewards": [{"name": self.reward, "params": self.params}], "samples": samples, "step": step}
            | {name: seconds for name, seconds in limits.items() if seconds is not None}
        )
        link = _link(self.url, self._token)
        results = [result.rewards[self.reward] for result in link.call(self._answer(link, request)).results]
        if broken := [result for result in results if result.status in BROKEN]:
            again, hint = "three times more", ""
            if not any(map(may_pass, broken)):
                again = "and would again"
                hint = ': give the column as the reward takes it; text by cast_column(NAME, Value("string")) or str()'
            raise NoScoreError(
                f"{self.reward} broke for {len(broken)} of {len(results)} samples, {again}: "
                f"{broken[0].status}, {_detail(broken)}{hint}"
            )
        return results

    async def _answer(self, link: "_Link", request: "ScoreRequest") -> "ScoreResponse":
        from grpo_proto.totals import score_broken_again

        score = partial(link.client.score, retry_for_s=self.retry_for_s)
        return await score_broken_again(request, await score(request), score, retry_for_s=self.retry_for_s)

    def _chosen(self, columns: dict[str, Any], count: int) -> dict[str, Any]:
        """The columns to send. Raises ValueError naming one that is missing or does not have one value per sample."""
        names = list(columns) if self.columns is None else self.columns
        for name in names:
            if name not in columns:
                raise ValueError(f"{self!r} is to send the column {name}, which the trainer does not pass")
            if _count(columns[name]) != count:
                raise ValueError(
                    f"the argument {name} is no list of {count} values: name the columns to send, columns=[…]"
                )
        return {name: list(columns[name]) for name in names}

    def _warn(self, results: Sequence["RewardScore"]) -> None:
        missing = [result for result in results if result.score is None]
        if missing:
            statuses = ", ".join(f"{number} {status}" for status, number in Counter(r.status for r in missing).items())
            detail = f"; {found}" if (found := _detail(missing)) else ""
            log.warning(
                "%s: %d of %d samples have no score: %s%s", self.reward, len(missing), len(results), statuses, detail
            )

    def _log_extra(self, results: Sequence["RewardScore"], log_extra: Callable[[str, list[Any]], None]) -> None:
        """A column that was there once is there in every later batch: TRL puts them side by side with the rewards."""
        self._logged.update(dict.fromkeys(key for result in results for key in result.log or {}))
        for key in list(self._logged):
            log_extra(f"{self.reward}/{key}", [(result.log or {}).get(key) for result in results])

    def _log_metrics(self, results: Sequence["RewardScore"], log_metric: Callable[[str, float], None]) -> None:
        for key in dict.fromkeys(key for result in results for key in result.metrics or {}):
            values = [result.metrics[key] for result in results if result.metrics and key in result.metrics]
            log_metric(f"{self.reward}/{key}", sum(values) / len(values))


def _detail(results: Sequence["RewardScore"]) -> str:
    """The first detail that there is."""
    return printable(next((result.detail[:MAX_LOGGED_CHARS] for result in results if result.detail), ""))


def _count(values: Any) -> int | None:
    """How many values there are. None when it is no list: the parts of a text or of a mapping are no values."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__getitem__"):
        return None
    try:
        return len(values)
    except TypeError:  # a scalar of numpy or torch
        return None


def _check_counts(count: int, **arguments: Any) -> None:
    """Raises ValueError naming an argument that is there and does not have one value per completion."""
    for name, values in arguments.items():
        if values is not None and _count(values) != count:
            raise ValueError(f"the argument {name} is no list of {count} values, one for each completion")


def _prompt(prompt: Any, where: str) -> str | list[dict[str, str]] | None:
    """As `plain_prompt`. Raises ValueError for text that cannot be sent."""
    found = plain_prompt(prompt)
    texts = [found] if isinstance(found, str) else [text for message in found or [] for text in message.values()]
    for text in texts:
        _sendable(text, where)
    return found


def _sendable(text: str, where: str) -> str:
    """`text` itself. Raises ValueError when it is not Unicode: the server's parser takes no escape for that either."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"half of a surrogate pair as character {error.start}"
        raise ValueError(f"{where} has {problem}, and cannot be sent") from None
    return text


def _token_ids(ids: Any) -> list[int]:
    """Token ids as one list; ms-swift has a list for each turn."""
    if ids is None:
        raise TypeError("the token ids of a sample are None: give a list for each, or none at all")
    found = [part.tolist() if hasattr(part, "tolist") else part for part in ids]
    return [token for turn in found for token in turn] if found and isinstance(found[0], list | tuple) else found


def _plain(value: Any, where: str, level: int = 0) -> Any:
    """`value` as JSON has it: arrays and scalars of numpy and torch become lists and numbers.

    Raises TypeError for what is not JSON, ValueError for what no parser of the server takes.
    """
    if isinstance(value, str):
        return _sendable(value, where)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and value - value == 0:
        return float(value)
    if level >= MAX_COLUMN_LEVELS:
        raise ValueError(f"{where} has more than {MAX_COLUMN_LEVELS} nested levels, or contains itself")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {_sendable(key, where): _plain(part, where, level + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, where, level + 1) for part in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), where, level + 1)
    if value != value:  # NaN, with which pandas means that there is none
        raise TypeError(f"{where} is {reprlib.repr(value)}, which JSON does not have: put None where there is no value")
    raise TypeError(
        f"{where} is {value_and_type(value)}, which is not JSON: leave the column out with RemoteReward(…, columns=[…])"
    )


class _Link:
    """A client of one server and the event loop that runs it, in a thread: callers are not async, and are many."""

    def __init__(self, url: str, token: str | None):
        from grpo_proto import RewardClient

        self.client: RewardClient = RewardClient(url, token=token)
        self.needed: dict[str, list[str]] = {}
        """Reward → the columns it needs."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="grpo-reward-client", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for `work`, which has a deadline of its own."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def learn(self, retry_for_s: float) -> None:
        rewards = self.call(self.client.rewards(retry_for_s=retry_for_s)).rewards
        self.needed = {reward.name: reward.columns for reward in rewards}


_links: dict[tuple[int, str, str | None], _Link] = {}
"""Links by process, URL and token: a forked process must not use the sockets of its parent."""
_making = threading.Lock()


def _link(url: str, token: str | None) -> _Link:
    key = (os.getpid(), url, token if token is not None else os.environ.get("GRPO_API_TOKEN"))
    with _making:
        if key not in _links:
            _links[key] = _Link(url, key[2])
        return _links[key]


def _unlock() -> None:
    """Make a new lock in a forked process: a thread that is only in the parent may have held the old one."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
