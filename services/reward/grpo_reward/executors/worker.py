"""A worker process: takes chunks, scores their items one by one in its main thread, sends results back.

It is forked from the fork server with every reward imported. It trusts no reward: whatever one leaves behind (a thread,
a forked child, memory that ran out) makes it say so and leave, and another takes its place.
"""

import contextlib
import copy
import gc
import math
import mmap
import os
import resource
import socket
import sys
from collections.abc import Mapping
from json import dumps
from time import monotonic  # by name: a plugin may put another clock into the module
from typing import Any

from pydantic_core import from_json, to_json

from grpo_proto.diagnostics import MAX_DETAIL_CHARS

from .. import rewards as built_in
from ..author import Reward
from ..remembered import Remembered
from ..scorer import InvalidParamsError, Outcome, checked_params, score_batch, score_sample
from .frames import PROGRESS, receive_frame, send_frame
from .leftovers import Leftovers, num_threads, stop_timers

BUILT_IN = f"{built_in.__name__}."
FLUSH_S = 0.02
"""Results go back when this time has passed, so that little is lost when the worker is killed; after one was lost with
a chunk, each at once."""


class Worker:
    def __init__(self, sock: socket.socket, progress: mmap.mmap, rewards: Mapping[str, Reward]):
        self._socket, self._progress, self._rewards = sock, progress, rewards
        self._params: Remembered[tuple[str, bytes], Any] = Remembered()
        self._pid = os.getpid()
        self._threads = num_threads()
        self._leftovers = Leftovers()
        self._inode = os.fstat(sock.fileno()).st_ino
        self._leaving: str | None = None
        self._received = 0
        self._used = False
        self._num_modules = len(sys.modules)
        os.register_at_fork(after_in_parent=self._forked, after_in_child=self._cut_off)

    def run(self) -> None:
        """Score chunks until the server closes the connection, or this worker is worn out."""
        send_frame(self._socket, b'{"hello":true}')
        while self._leaving is None:
            body = receive_frame(self._socket)
            if body is None:
                return
            self._received += 1
            PROGRESS.pack_into(self._progress, 0, self._received, -1, monotonic())
            try:
                chunk = from_json(body)
            except ValueError as error:
                self._send({"unreadable": str(error)[:300], "done": True})
            else:
                self._score(chunk)

    def _score(self, chunk: dict[str, Any]) -> None:
        number = chunk["chunk"]
        try:
            rewards = [(self._rewards[spec["name"]], self._params_of(spec)) for spec in chunk["rewards"]]
        except InvalidParamsError as error:
            refused = {"reward": error.args[0], "message": error.args[1]}
            self._send({"chunk": number, "refused": refused, "done": True})
            return
        any_foreign = any(_is_foreign(reward) for reward, _ in rewards)
        turn_ends = monotonic() + (math.inf if chunk["turn_s"] is None else chunk["turn_s"])
        items: list[int] = []
        outcomes: list[Outcome] = []
        seconds: dict[str, float] = {}
        flushed = monotonic()
        for item in chunk["items"]:
            started = monotonic()
            PROGRESS.pack_into(self._progress, 0, number, item, started)
            reward = rewards[item % len(rewards)][0]
            found = _outcomes(chunk, rewards, item)
            if self._used and _ran_out_of_memory(found[-1]):
                # Others may have kept what this one lacks: a worker that has done nothing yet will tell.
                self._leaving = f"{reward.name} ran out of memory, or those before it have kept too much"
                break
            self._used = True
            outcomes += found
            items.append(item)
            now = monotonic()
            seconds[reward.name] = seconds.get(reward.name, 0.0) + now - started
            # What is built in leaves nothing on purpose: after each chunk is soon enough, and saves four system calls.
            if any_foreign or _ran_out_of_memory(found[-1]):
                self._look_for_leftovers(reward, found[-1])
            if self._leaving is not None or now > turn_ends:
                break
            if chunk["eager"] or now - flushed > FLUSH_S:
                self._send_scores(number, items, outcomes, seconds, done=False)
                items, outcomes, seconds, flushed = [], [], {}, now
        if self._leaving is None and any_foreign:
            # What they left to be finalized is finalized now, in the time of the last of them, and not in another's.
            if len(items) > 1:
                self._send_scores(number, items[:-1], outcomes[:-1], {}, done=False)
                items, outcomes = items[-1:], outcomes[-1:]
            gc.collect()
            if len(sys.modules) != self._num_modules:
                gc.freeze()  # what was imported stays; to look through torch with each chunk would take 0.1 s
                self._num_modules = len(sys.modules)
        if self._leaving is None:
            self._look_for_leftovers(reward, found[-1])
        if self._leaving is None and (left := self._leftovers.found()) is not None:
            self._leaving = f"{' or '.join(spec['name'] for spec in chunk['rewards'])} left {left}"
        PROGRESS.pack_into(self._progress, 0, number, -1, monotonic())
        self._send_scores(number, items, outcomes, seconds, done=True)

    def _params_of(self, spec: dict[str, Any]) -> Any:
        """The checked params, remembered: the same few come with every chunk."""
        key = (spec["name"], to_json(spec["params"]))
        known = self._params.get(key)
        if known is not None:
            return known[0]
        try:
            params = checked_params(self._rewards[spec["name"]], spec["params"])
        except InvalidParamsError as error:
            raise InvalidParamsError(spec["name"], str(error)) from None
        self._params.put(key, params, len(key[1]))
        return params

    def _look_for_leftovers(self, reward: Reward, last: Outcome) -> None:
        stop_timers()
        try:
            connected = os.fstat(self._socket.fileno()).st_ino == self._inode
        except OSError:
            connected = False
        if not connected:
            os._exit(70)  # now, so that no later item is blamed for it
        if num_threads() > self._threads:
            self._leaving = f"{reward.name} left a thread running"
        elif _ran_out_of_memory(last):
            self._leaving = f"{reward.name} ran out of memory"

    def _send_scores(
        self, number: int, items: list[int], outcomes: list[Outcome], seconds: dict[str, float], *, done: bool
    ) -> None:
        message = {"chunk": number, "items": items, "scores": outcomes, "seconds": seconds, "done": done}
        self._send({**message, "leaving": self._leaving} if self._leaving else message)

    def _send(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            os._exit(70)
        try:
            body = to_json(message)
        except Exception:
            body = dumps({**message, "scores": [_in_unicode(score) for score in message["scores"]]}).encode()
        send_frame(self._socket, body)

    def _forked(self) -> None:
        self._leaving = self._leaving or "a reward forked"

    def _cut_off(self) -> None:
        """Runs in a child that a reward forked: it must not answer in the worker's name."""
        with contextlib.suppress(OSError):
            self._socket.close()
        self._progress = mmap.mmap(-1, PROGRESS.size)  # the worker's own says which item the worker is at


def _outcomes(chunk: dict[str, Any], rewards: list[tuple[Reward, Any]], item: int) -> list[Outcome]:
    """Score one item: one outcome, or one for each sample of a batch."""
    row, position = divmod(item, len(rewards))
    reward, params = rewards[position]
    samples = chunk["samples"]
    if _is_foreign(reward):  # it may change what it is given, and the params are those of later items, too
        params = copy.deepcopy(params)
    if chunk["batch"]:
        return score_batch(reward, params, samples, chunk["step"], chunk["timeout_s"])
    return [score_sample(reward, params, samples[row], chunk["step"])]


def _is_foreign(reward: Reward) -> bool:
    return not reward.function.__module__.startswith(BUILT_IN)


def _ran_out_of_memory(outcome: Outcome) -> bool:
    return outcome["status"] == "error" and bool(outcome["detail"].startswith("MemoryError"))


def _in_unicode(outcome: Outcome) -> Outcome:
    """Log columns and metrics that are no valid Unicode text are left out, and a detail is written with escapes.

    The score stays.
    """
    kept, details = dict(outcome), [outcome["detail"]] if "detail" in outcome else []
    for part, what in (("log", "log column"), ("metrics", "metric")):
        for name, value in outcome.get(part, {}).items():
            try:
                to_json({name: value})
            except Exception:
                kept[part] = {key: value for key, value in kept[part].items() if key != name}
                details.append(f"{what} {name} left out: no valid Unicode text")
    if details:
        kept["detail"] = "; ".join(details)[:MAX_DETAIL_CHARS].encode(errors="backslashreplace").decode()
    return kept


def limit_resources(memory_bytes: int) -> None:
    """No core files; at most `memory_bytes` of address space (0: no limit), so that a reward fails, not the machine."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # which nobody can raise again
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def quiet_standard_streams() -> None:
    """What a reward prints goes to the log, and nothing can be read."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
