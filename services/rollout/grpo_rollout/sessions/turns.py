"""Sample the turns of sessions, and record them.

A turn samples in a task of its own, since its client may go away and come back for the answer. Waits for: the weights,
while they load or are stale, and the engine. Ends earlier when its session ends, and when nobody has waited for it for
`GRACE_S`. A sequence that a failed push has aborted goes on from the tokens that it has, under the next weights.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from vllm.sampling_params import RequestOutputKind, SamplingParams

from grpo_proto.messages.rollout import MAX_STOPS_WITH_MIN_TOKENS, Sampling
from grpo_proto.server.refusal import Refusal

from .. import metrics
from ..completion_text import CompletionText
from ..engine import Engine
from ..rollouts import check_finite, distribution
from .forest import Turn, Versions
from .prompts import Prompts
from .reading import AnswerReader
from .session import Running, Session, gone
from .wanted import Wanted

logger = logging.getLogger("vllm.grpo_rollout.sessions")

GRACE_S = 30.0
"""How long a turn goes on that nobody waits for: an SDK may be on its way to retry."""
HOLD_S = 540.0
"""How long a request waits for weights: less than the 600 s after which SDKs give up."""
POLL_S = 0.1


@dataclass
class Sampled:
    """What the engine has returned for a turn so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: Versions = field(default_factory=list)
    finish_reason: str = "abort"
    stop_reason: int | str | None = None

    def add(self, completion: Any) -> None:
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs.logprobs if completion.token_ids else []
        for span in completion.weight_versions or []:
            version, count = int(span.version), span.end - span.start
            if self.versions and self.versions[-1][0] == version:
                count += self.versions.pop()[1]
            self.versions.append((version, count))
        self.finish_reason = completion.finish_reason or "error"
        self.stop_reason = completion.stop_reason

    @property
    def ended_by_token(self) -> bool:
        return self.finish_reason == "stop" and not isinstance(self.stop_reason, str)


class Turns:
    """Samples turns; one instance per server.

    Args:
        serves: returns whether a session's weights are served now; raises Refusal when they never will be.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        *,
        reader: AnswerReader,
        text: CompletionText,
        serves: Callable[[Session], bool],
    ):
        self.engine, self.prompts, self.reader, self.text, self.serves = engine, prompts, reader, text, serves
        self.draining = False
        self._numbers = itertools.count()

    # --- starting ------------------------------------------------------------------------------------------------

    async def start(self, session: Session, wanted: Wanted, *, retry: bool = False) -> Running:
        """Begin a turn, or join the one that a retry repeats.

        Raises Refusal: 400 a limit or what cannot be rendered, 410 the session has ended, 503 the server stops; and
        EngineDiedError.
        """
        sampling = _sampling(session, wanted)
        if sampling.min_tokens and len(sampling.stop) + len(sampling.stop_token_ids) > MAX_STOPS_WITH_MIN_TOKENS:
            message = f"the session's min_tokens goes with {MAX_STOPS_WITH_MIN_TOKENS} stop sequences at most"
            raise Refusal(400, "too_many_stops", message)
        prompts = self.prompts
        tools_key = prompts.tools_key(session, wanted)
        place = prompts.place(session, wanted, tools_key)
        if retry and (known := session.answer_to(place.prompt, wanted.asked)) is not None:
            return known
        session.check_open()
        self.engine.check_alive()
        new = await prompts.rendered(session, wanted, tools_key, place)
        if retry and (known := session.answer_to(new.place.prompt, wanted.asked)) is not None:
            return known  # it has begun meanwhile
        session.check_open()
        session.check_context(new.num_tokens)
        session.check_turn(new_segment=new.forks)
        session.images.update(new.images)
        turn = session.forest.begin(tools_key, new.place, new.suffix.token_ids, shown=new.shown, label=wanted.label)
        turn.asked = wanted.asked
        session.forest.tools.setdefault(tools_key, wanted.tools)
        session.forest.counts["doubled_openers"] += new.suffix.doubled
        prompts.count_control_tokens(session, new.place)
        prompt = turn.segment.token_ids[: turn.start]
        seed, named = session.seed_of(prompt)
        running = Running(turn, f"session-{session.session_id}-{next(self._numbers)}", prompt.tolist())
        session.running[turn.number] = running
        running.task = asyncio.create_task(self._run(session, running, wanted, seed, named))
        return running

    async def measure(self, session: Session, wanted: Wanted) -> int:
        """Return how many tokens the prompt of such a turn would have, and begin none. Raises Refusal as `start`."""
        session.check_open()
        tools_key = self.prompts.tools_key(session, wanted)
        place = self.prompts.place(session, wanted, tools_key)
        return (await self.prompts.rendered(session, wanted, tools_key, place)).num_tokens

    # --- sampling ------------------------------------------------------------------------------------------------

    async def _run(
        self,
        session: Session,
        running: Running,
        wanted: Wanted,
        seed: int | None,
        named: bytes,
    ) -> None:
        turn, sampled = running.turn, Sampled()
        try:
            await self._sample(session, running, wanted, seed, sampled)
        finally:
            session.running.pop(turn.number, None)
            if not sampled.token_ids:
                session.forest.abandon(turn)
            else:
                self._record(session, running, wanted, named, sampled)

    async def _sample(
        self,
        session: Session,
        running: Running,
        wanted: Wanted,
        seed: int | None,
        sampled: Sampled,
    ) -> None:
        room = session.room(len(running.prompt), wanted.max_tokens)
        while not running.stopping:
            await self._until_served(session, running)
            if running.stopping:
                return
            left = room - len(sampled.token_ids)
            params = self._params(session, wanted, left, seed, num_sampled=len(sampled.token_ids))
            prompt = running.prompt + sampled.token_ids if sampled.token_ids else running.prompt
            shown = running.turn.segment.shown
            async with self.prompts.pictures.beside(prompt, shown, session.images) as ready:
                if running.stopping:  # an abort before the engine has the turn ends nothing
                    return
                output = await self.engine.generate(ready, params, running.engine_id)
            sampled.add(output.outputs[0])
            try:
                check_finite(f"turn {running.turn.number}", sampled.logprobs)
            except Refusal:
                sampled.token_ids.clear()  # nothing of the turn is recorded
                raise
            if sampled.finish_reason != "abort" or self.draining or len(sampled.token_ids) >= room:
                return

    async def _until_served(self, session: Session, running: Running) -> None:
        # Poll: the state of the weights has no event to wait for, and it changes by time, too.
        while not running.stopping and not self.serves(session):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def _params(
        self, session: Session, wanted: Wanted, room: int, seed: int | None, *, num_sampled: int
    ) -> SamplingParams:
        sampling = _sampling(session, wanted)
        stops = self.text.stops(sampling)
        return SamplingParams(
            **distribution(sampling, max_tokens=room, num_sampled=num_sampled),
            **stops,
            seed=seed,
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(stops["stop"]),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _record(
        self,
        session: Session,
        running: Running,
        wanted: Wanted,
        named: bytes,
        sampled: Sampled,
    ) -> None:
        turn = running.turn
        (text,) = self.text.texts(cast(Any, [SimpleNamespace(**vars(sampled))]), _sampling(session, wanted))
        (before_last,) = self.text.decode([sampled.token_ids[:-1]]) if wanted.stop else ("",)
        shown, stop = wanted.stop_in(text, sampled.stop_reason, before_last=before_last)
        try:
            message, calls = self.reader.read(
                shown,
                sampled.token_ids,
                prompt=running.prompt,
                tools=wanted.tools,
                kwargs=self.prompts.kwargs_of(session),
                ended=sampled.ended_by_token,
                named=named,
            )
        # Catch everything: parsers read what a policy wrote, and a turn must be recorded whatever that is.
        except Exception:
            logger.exception("session %s: the parsers failed on turn %d", session.session_id, turn.number)
            message, calls = {"role": "assistant", "content": text}, []
        session.forest.finish(
            turn,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish_reason=sampled.finish_reason,
            message=message,
            text=text,
        )
        if stop and turn.answer is not None:  # some programs put it back
            turn.answer.alias = {**message, "content": f"{message.get('content') or ''}{stop}"}
        turn.calls = calls
        turn.stop_reason = sampled.stop_reason
        session.check_cut(turn)
        metrics.SEQUENCES.labels(sampled.finish_reason).inc()
        metrics.TOKENS.inc(len(sampled.token_ids))

    # --- waiting -------------------------------------------------------------------------------------------------

    async def answer(self, session: Session, running: Running, *, hold_s: float = HOLD_S) -> Turn:
        """Wait for a turn. Cancelling leaves it sampling for `GRACE_S`, for a retry that joins.

        Raises Refusal: what has ended the session meanwhile, 503 (retryable) no weights for `hold_s`; and what failed.
        """
        if (task := running.task) is not None:
            self._join(running)
            try:
                await self._wait(session, task, hold_s)
            finally:
                self._leave(running)
            task.result()
        turn = running.turn
        if turn.answer is None or turn.finish_reason == "abort":
            session.check_open()
            raise gone(session.session_id, f"has lost turn {turn.number}: it was aborted")
        return turn

    async def _wait(self, session: Session, task: "asyncio.Task[None]", hold_s: float) -> None:
        held_s = 0.0
        while not task.done():
            await asyncio.wait((task,), timeout=POLL_S * 5)
            if task.done() or self.serves(session):
                continue
            held_s += POLL_S * 5
            if held_s >= hold_s:
                raise Refusal.busy(503, "weights_loading", f"no weights have been served for {held_s:.0f} s", 1.0)

    def _join(self, running: Running) -> None:
        running.num_waiting += 1
        if running.unwanted is not None:
            running.unwanted.cancel()
            running.unwanted = None

    def _leave(self, running: Running) -> None:
        running.num_waiting -= 1
        if running.num_waiting == 0 and running.task is not None and not running.task.done():
            running.unwanted = asyncio.get_running_loop().call_later(GRACE_S, self.stop, running)

    def stop(self, running: Running) -> None:
        """Abort a turn; what it has sampled is recorded."""
        running.stopping = True
        aborted: Awaitable[None] = self.engine.client.abort(running.engine_id)
        task = asyncio.ensure_future(aborted)
        _background.add(task)
        task.add_done_callback(_background.discard)


def _sampling(session: Session, wanted: Wanted) -> Sampling:
    """Return the session's sampling, with the program's stop strings beside its own."""
    sampling = session.request.sampling
    return sampling.model_copy(update={"stop": list(dict.fromkeys([*sampling.stop, *wanted.stop]))})


_background: set[asyncio.Future[None]] = set()
