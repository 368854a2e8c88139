"""completions.jsonl: every sample of every step, with its scores and their details; eval_completions.jsonl: those of
every evaluation.

A file rolls over by size: the newest part keeps the name, older ones are numbered (`grpo_proto.log_parts`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_proto import RewardScore
from grpo_proto.log_parts import next_older_part

from ..algorithm.sequences import Episode, Group
from ..data.messages import wire_message
from .jsonl import StepFile, cut_back_older_parts


class CompletionLog:
    """One JSON line per episode. On resume the steps after `resumed_step`, which are done again, are dropped.

    `part_mib`: a part that is as large is complete, in MiB. A step is never split.
    """

    def __init__(self, path: Path, *, resumed_step: int | None, part_mib: float):
        self._file = StepFile(path, keep_through_step=resumed_step)
        if resumed_step is not None and not self._file.num_bytes:
            cut_back_older_parts(self._file.path, resumed_step)
        self._part_bytes = part_mib * 2**20

    def write(self, step: int, groups: Sequence[Group]) -> None:
        """Write the samples of a step, after their advantages are known. Raises OSError, as on a full disk."""
        self._append(completion_records(step, groups))

    def write_evaluation(self, step: int, groups: Mapping[str, Sequence[Group]]) -> None:
        """Write the samples of an evaluation after `step`, by how they were sampled. Raises OSError."""
        self._append(
            record for decoding, of in groups.items() for record in completion_records(step, of, decoding=decoding)
        )

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        if self._file.num_bytes >= self._part_bytes:
            self._file.begin_anew(older=next_older_part(self._file.path))
        self._file.append(records)

    def close(self) -> None:
        self._file.close()


def completion_records(step: int, groups: Sequence[Group], *, decoding: str | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a step. `group` is the prompt's position in the run, or in the held-out set; `index` the sample's
    place in its group.

    The line of an episode of several turns has its conversation in addition; `completion` is what was said last.
    """
    for group in groups:
        for index, episode in enumerate(group.episodes):
            yield {
                "step": step,
                **({"decoding": decoding} if decoding else {}),
                "group": group.position,
                "index": index,
                **({"dataset": group.row.dataset} if group.row.dataset else {}),
                "row": group.row.index,
                "prompt": opening_record(episode) or group.row.prompt,
                "completion": episode.text,
                "rewards": {name: _reward(result) for name, result in episode.rewards.items()},
                "total": episode.total,
                "advantage": episode.advantage,
                "versions": episode.versions,
                "finish_reason": episode.finish_reason,
                "num_tokens": episode.num_sampled,
                **({"trace_id": group.trace.trace_id} if group.trace.trace_id else {}),
                "log": {name: result.log for name, result in episode.rewards.items() if result.log},
                **(conversation_record(episode) if episode.transcript else {}),
            }


def opening_record(episode: Episode) -> list[dict[str, Any]]:
    """The messages before the first turn; empty for an episode of a single turn."""
    return [wire_message(message).model_dump() for message in episode.transcript[: episode.opening]]


def conversation_record(episode: Episode) -> dict[str, Any]:
    """What an episode of several turns has beside a completion. `start` and `end` of turns and `at` of forks count
    tokens of their segment."""
    return {
        "messages": [wire_message(message).model_dump() for message in episode.transcript],
        "status": episode.status,
        "cause": episode.cause,
        "attempt": episode.attempt,
        "turns": [
            {
                "segment": number,
                "start": turn.start,
                "end": turn.end,
                "versions": turn.versions,
                "finish_reason": turn.finish_reason,
                "masked": turn.masked,
                "reward": turn.reward,
                "text": turn.text,
            }
            for number, segment in enumerate(episode.segments)
            for turn in segment.turns
        ],
        "forks": [
            {"segment": number, "parent": segment.parent, "at": segment.fork_at, "reason": segment.fork_reason}
            for number, segment in enumerate(episode.segments)
            if segment.fork_reason is not None
        ],
    }


def _reward(result: RewardScore) -> dict[str, Any]:
    reward: dict[str, Any] = {"score": result.score, "status": result.status}
    return reward if result.detail is None else {**reward, "detail": result.detail}
