"""metrics.jsonl and completions.jsonl: what is in them, and what a resume leaves of them."""

import errno
import json
import logging
import math
from pathlib import Path

import pytest
from tests.small_disk import fill, small_disk
from tests.trainer.made_episodes import completion

from grpo_proto import RewardScore
from grpo_proto.log_parts import older_parts, parts_of
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.observing import LoggingConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.completions import CompletionLog
from grpo_trainer.observe.jsonl import StepFile, read_records
from grpo_trainer.observe.run_files import COMPLETIONS_FILE
from grpo_trainer.observe.sinks import MetricSinks, open_sinks
from grpo_trainer.ranks.stop_signal import StopSignal


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def open_file(path: Path, keep: int | None = None) -> StepFile:
    return StepFile(path, keep_through_step=keep)


def test_a_line_is_readable_at_once(tmp_path: Path):
    file = open_file(tmp_path / "m.jsonl")
    file.append([{"step": 1, "reward": 0.5}])
    assert lines(tmp_path / "m.jsonl") == [{"step": 1, "reward": 0.5}]
    file.close()


def test_a_resumed_file_has_each_step_once(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    file = open_file(path)
    for step in range(13):
        file.append([{"step": step, "first": True}])
    file.close()
    file = open_file(path, keep=10)
    file.append([{"step": 11, "first": False}])
    file.close()
    assert [record["step"] for record in lines(path)] == list(range(12))
    assert lines(path)[-1] == {"step": 11, "first": False}


def test_a_line_cut_off_by_a_kill_is_dropped_on_resume(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "a": 1}\n{"step": 2, "a"')
    file = open_file(path, keep=2)
    file.append([{"step": 3, "a": 3}])
    file.close()
    assert [record["step"] for record in lines(path)] == [1, 3]


def test_a_torn_or_foreign_line_does_not_stop_a_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\nnot json\n{"step": 2, oops}\n{"a": 1, "step": 3}\n{"step": 4')
    assert [record["step"] for record in read_records(path)] == [1, 3]
    assert "skipped" in caplog.text


def test_on_a_full_disk_a_file_keeps_whole_lines_and_tries_the_others_again(tmp_path: Path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = open_file(disk / "m.jsonl")
        file.append([{"step": 1}])
        ballast = fill(disk, leave=8192)
        with pytest.raises(OSError, match=r"No space left on device: '.*/m\.jsonl'"):
            file.append([{"step": 2, "text": "x" * 20000}, {"step": 2}])
        assert lines(disk / "m.jsonl") == [{"step": 1}]
        ballast.unlink()
        file.close()
        assert [record["step"] for record in lines(disk / "m.jsonl")] == [1, 2, 2]


def test_lines_that_never_found_room_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = open_file(disk / "m.jsonl")
        fill(disk)
        for step in (1, 2):
            with pytest.raises(OSError, match="No space left"):
                file.append([{"step": step}])
        with pytest.raises(OSError, match="No space left"):
            file.close()
    assert "m.jsonl: its last 2 lines are lost" in caplog.text


def test_what_json_does_not_have_becomes_null_or_text(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    file = open_file(path)
    file.append(
        [{"step": 1, "loss": math.nan, "log": {"value": math.inf, "path": Path("/x")}, "text": "é \ud83d 你好"}]
    )
    file.close()
    assert lines(path) == [{"step": 1, "loss": None, "log": {"value": None, "path": "/x"}, "text": "é ? 你好"}]
    assert "你好" in path.read_text(), "readable without decoding escapes"


class Collector:
    """A sink that fails at the steps named."""

    name = "collector"

    def __init__(self, fail_at: tuple[int, ...] = ()):
        self.fail_at, self.seen, self.closed = fail_at, {}, False

    def write(self, step, metrics):
        if step in self.fail_at:
            raise ConnectionError("no network")
        self.seen[step] = dict(metrics)

    def close(self, failure):
        self.closed = True
        raise TimeoutError("upload")


def test_a_failing_sink_is_counted_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    good, bad = Collector(), Collector(fail_at=(1, 2, 3, 4))

    def broken():
        raise ImportError("not installed")

    file = open_file(tmp_path / "metrics.jsonl")
    with caplog.at_level(logging.WARNING):
        sinks = MetricSinks(file, {"broken": broken, "collector": lambda: bad, "good": lambda: good})
        for step in range(1, 6):
            sinks.write(step, {"reward": 0.5, "loss": math.nan})
    assert sinks.failures == {"broken": 1, "collector": 4, "good": 0}
    assert good.seen == {step: {"reward": 0.5} for step in range(1, 6)}, "numbers that are not finite stay away"
    assert bad.seen == {5: {"reward": 0.5}}
    written = lines(tmp_path / "metrics.jsonl")
    assert len(written) == 5
    assert written[0] == {"step": 1, "reward": 0.5, "loss": None, "sinks/broken_failures": 1}
    assert written[4]["sinks/collector_failures"] == 4
    assert caplog.text.count("write failed") == 3, "the 1st, 2nd and 4th failure are logged"
    good.name = "good"
    sinks.close(StopSignal())
    assert good.closed
    assert bad.closed


def test_the_file_alone_is_written_when_nothing_is_asked_for(tmp_path: Path):
    sinks = open_sinks(LoggingConfig(), tmp_path, resumed_step=None, facts={})
    sinks.write(1, {"reward": 1.0})
    sinks.close(StopSignal())
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_completion_has_its_rewards_with_status_and_its_history(tmp_path: Path):
    row = PromptRow(index=9, token_ids=[1, 2], prompt=[{"role": "user", "content": "Hi"}], columns={"target": 3})
    scored = completion("a", [1, 2, 3], [-1.0] * 3, "<b>", "stop", [(4, 1), (5, 2)])
    scored.rewards = {
        "countdown": RewardScore(score=1.0, status="ok", log={"equation": "1 + 2"}),
        "judge": RewardScore(score=None, status="timeout", detail="10 s"),
    }
    scored.total, scored.advantage = 1.0, 0.7
    lost = completion("b", [], [], "", "abort", [])
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=None, part_mib=256)
    log.write(3, [Group(17, row, [scored, lost])])
    log.close()
    first, second = lines(tmp_path / "completions.jsonl")
    assert first == {
        "step": 3,
        "group": 17,
        "index": 0,
        "row": 9,
        "prompt": [{"role": "user", "content": "Hi"}],
        "completion": "<b>",
        "rewards": {
            "countdown": {"score": 1.0, "status": "ok"},
            "judge": {"score": None, "status": "timeout", "detail": "10 s"},
        },
        "total": 1.0,
        "advantage": 0.7,
        "versions": [[4, 1], [5, 2]],
        "finish_reason": "stop",
        "num_tokens": 3,
        "log": {"countdown": {"equation": "1 + 2"}},
    }
    assert (second["index"], second["total"], second["advantage"], second["rewards"]) == (1, None, None, {})


def test_completions_are_cut_back_on_resume(tmp_path: Path):
    group = Group(0, PromptRow(0, [1], "p", {}), [completion("a", [1], [-1.0], "t", "stop", [(0, 1)])] * 3)
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=None, part_mib=256)
    for step in (1, 2, 3):
        log.write(step, [group])
    log.close()
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=2, part_mib=256)
    log.write(3, [group])
    log.close()
    assert [record["step"] for record in lines(tmp_path / "completions.jsonl")] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def log_in_parts(run_dir: Path, steps: range, *, resumed_step: int | None = None) -> None:
    """Three samples a step, and two steps a part."""
    group = Group(0, PromptRow(0, [1], "p", {}), [completion("a", [1], [-1.0], "t" * 500, "stop", [(0, 1)])] * 3)
    log = CompletionLog(run_dir / COMPLETIONS_FILE, resumed_step=resumed_step, part_mib=3000 / 2**20)
    for step in steps:
        log.write(step, [group])
    log.close()


def steps_by_part(run_dir: Path) -> list[list[int]]:
    return [sorted({record["step"] for record in lines(part)}) for part in parts_of(run_dir / "completions.jsonl")]


def test_the_newest_part_of_the_completions_keeps_the_name(tmp_path: Path):
    log_in_parts(tmp_path, range(1, 6))
    assert steps_by_part(tmp_path) == [[1, 2], [3, 4], [5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "completions-part-0001.jsonl", "completions-part-0002.jsonl", "completions.jsonl",
    ]  # fmt: skip
    assert len(lines(tmp_path / "completions-part-0001.jsonl")) == 6, "a step is never split"


@pytest.mark.parametrize(
    ("resumed_step", "kept"),
    [
        (5, [[1, 2], [3, 4], [5]]),
        (4, [[1, 2], [3, 4], []]),
        (3, [[1, 2], [3], []]),
        (2, [[1, 2], []]),
        (1, [[1], []]),
        (0, [[]]),
    ],
)
def test_a_resume_cuts_back_all_parts_behind_its_checkpoint(tmp_path: Path, resumed_step: int, kept: list[list[int]]):
    log_in_parts(tmp_path, range(1, 6))
    log_in_parts(tmp_path, range(0), resumed_step=resumed_step)
    assert steps_by_part(tmp_path) == kept
    log_in_parts(tmp_path, range(resumed_step + 1, 8), resumed_step=resumed_step)
    assert [step for part in steps_by_part(tmp_path) for step in part] == list(range(1, 8))


def test_a_part_that_somebody_has_removed_is_not_missed(tmp_path: Path):
    log_in_parts(tmp_path, range(1, 6))
    (tmp_path / "completions-part-0001.jsonl").unlink()
    log_in_parts(tmp_path, range(6, 8), resumed_step=5)
    assert steps_by_part(tmp_path) == [[3, 4], [5, 6], [7]]
    assert [part.name[-10:] for part in older_parts(tmp_path / "completions.jsonl")] == ["0002.jsonl", "0003.jsonl"]


@pytest.mark.parametrize("through", [3, 2])
def test_what_comes_late_belongs_to_its_step(tmp_path: Path, through: int):
    file = StepFile(tmp_path / "metrics.jsonl", keep_through_step=None)
    file.append([{"step": step, "reward": step / 4} for step in range(4)])
    file.close()
    again = StepFile(tmp_path / "metrics.jsonl", keep_through_step=through)
    again.add_to_last({"step": 3, "eval_accuracy": 0.5})
    again.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1] == {"step": 3, **({"reward": 0.75} if through == 3 else {}), "eval_accuracy": 0.5}


def test_a_late_evaluation_that_cannot_be_written_leaves_the_step_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "metrics.jsonl"
    first = StepFile(path, keep_through_step=None)
    first.append([{"step": 8}, {"step": 9, "reward": 2.0}])
    first.close()
    before = path.read_bytes()
    file = StepFile(path, keep_through_step=9)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(StepFile, "append", full)
        context.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            file.add_to_last({"step": 9, "eval_accuracy": 0.5})
    file.close()
    assert path.read_bytes() == before
