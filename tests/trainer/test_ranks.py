"""What rank 0 commands and sends reaches the others, and every rank answers before it goes on."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.gloo_ranks import outcomes_of_two_ranks, outputs_of_two_ranks

from grpo_trainer.errors import RunError
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.ranks.crew import Crew
from grpo_trainer.ranks.ranks import Ranks, is_of_a_lost_rank, of_a_lost_rank

PROGRAM = """
import json
import numpy as np
from grpo_trainer.ranks.ranks import join_ranks
ranks = join_ranks(silence_s=60)
heard = [ranks.broadcast_json(message if ranks.is_first else None)
         for message in (None, [], {"text": "ä" * 100_000}, [1.5, 2])]
said = ranks.gather_json(None if ranks.is_first else ["rank 1 speaks, ünïcode" * 1000])
each = [{"a": np.arange(5, dtype=np.int64), "b": np.array([True, False, True])},
        {"a": np.array([7], dtype=np.int64), "b": np.zeros((0,), dtype=bool),
         "c": np.array([[0.1, np.nan]], np.float32)}]
own = ranks.scatter_arrays(each if ranks.is_first else None)
arrays = {name: [array.dtype.str, array.shape, array.astype(str).tolist()] for name, array in own.items()}
nothing = ranks.scatter_arrays([{}, {}] if ranks.is_first else None)
print(json.dumps([ranks.rank, heard, said, arrays, list(nothing)]))
"""


@pytest.mark.deepspeed
def test_every_rank_gets_what_rank_0_sends_and_its_own_part_of_the_arrays(tmp_path: Path):
    messages = [None, [], {"text": "ä" * 100_000}, [1.5, 2]]
    parts = [
        {"a": ["<i8", [5], ["0", "1", "2", "3", "4"]], "b": ["|b1", [3], ["True", "False", "True"]]},
        {"a": ["<i8", [1], ["7"]], "b": ["|b1", [0], []], "c": ["<f4", [1, 2], [["0.1", "nan"]]]},
    ]
    for rank, output in enumerate(outputs_of_two_ranks(PROGRAM, tmp_path)):
        said = [None, ["rank 1 speaks, ünïcode" * 1000]]
        assert json.loads(output.splitlines()[-1]) == [rank, messages, said, parts[rank], []]


CREW_PROGRAM = """
import json
from grpo_trainer.errors import RunError, UpdateError, UsageError
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.ranks.crew import Crew, follow
from grpo_trainer.ranks.ranks import join_ranks
from grpo_trainer.ranks.stop_signal import StopRequested
ranks = join_ranks(silence_s=60)

class Work:
    did = []

    def count(self, number):
        self.did.append(number)
        return [ranks.rank, number]

    def fail_on(self, rank):
        if ranks.rank == rank or rank is None:
            raise RunError("it cannot be done", "try another", exit_status=3)
        if rank == "each":
            raise UpdateError(f"not {ranks.rank}", "try another")

commands, run = ("count", "fail_on"), RunStatus("run", heartbeat_bound_s=60.0)
if ranks.rank:
    status = follow(ranks, Work(), commands, run)
    print(json.dumps([status, Work.did]))
else:
    said = []
    try:
        with Crew(ranks, Work(), commands, run) as crew:
            said.append(crew.gather("count", 5))
            for rank in (0, 1, None, "each"):
                try:
                    crew.do("fail_on", rank)
                except RunError as error:
                    said.append([type(error).__name__, error.message, error.hint])
            {ending}
    except (Exception, SystemExit) as error:
        said.append(type(error).__name__)
    print(json.dumps(said))
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("ending", "status", "kind"),
    [
        ("pass", 0, []),
        ("raise UsageError('no such file')", 2, ["UsageError"]),
        ("raise ZeroDivisionError", 1, ["ZeroDivisionError"]),
        ("raise SystemExit(3)", 1, ["SystemExit"]),
        ("raise StopRequested", 0, ["StopRequested"]),
    ],
)
def test_the_others_do_what_rank_0_commands_answer_and_end_as_it_does(
    ending: str, status: int, kind: list[str], tmp_path: Path
):
    first, second = outputs_of_two_ranks(CREW_PROGRAM.replace("{ending}", ending), tmp_path)
    assert json.loads(first.splitlines()[-1]) == [
        [[0, 5], [1, 5]],
        ["RunError", "rank 0: it cannot be done", None],
        ["RunError", "rank 1: it cannot be done", None],
        ["RunError", "it cannot be done", "try another"],
        ["UpdateError", "rank 0: not 0; rank 1: not 1", "try another"],
        *kind,
    ]
    assert json.loads(second.splitlines()[-1]) == [status, [5]]


FAILS_ALONE = """
import sys
import torch.distributed as dist
from grpo_trainer.errors import RunError, UpdateError
from grpo_trainer.observe.run_log import configure_logging
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.ranks import crew
from grpo_trainer.ranks.ranks import join_ranks
crew.ALONE_S = 1.0
ranks = join_ranks(silence_s=60)
configure_logging(rank=ranks.rank)

class Work:
    def update(self):
        if ranks.rank == {failing}:
            raise UpdateError("own.py:loss raised ValueError: bad value")
        dist.barrier()

try:
    if ranks.rank:
        crew.follow(ranks, Work(), ("update",), RunStatus("run", heartbeat_bound_s=60.0))
    else:
        with crew.Crew(ranks, Work(), ("update",), RunStatus("run", heartbeat_bound_s=60.0)) as first:
            first.do("update")
except RunError as error:
    print("told", error)
except RuntimeError:
    print("ended by the other's end")
"""


@pytest.mark.deepspeed
@pytest.mark.timeout(60)
@pytest.mark.parametrize("failing", [0, 1])
def test_an_update_that_fails_on_one_rank_alone_is_told_and_ends_all(failing: int, tmp_path: Path):
    """The other is in a collective, which nothing but the end of this process ends."""
    outputs, errors = outcomes_of_two_ranks(
        FAILS_ALONE.replace("{failing}", str(failing)), tmp_path, [1, 0][:: 1 - 2 * failing]
    )
    assert outputs[1 - failing] == "ended by the other's end\n"
    assert "own.py:loss raised ValueError: bad value; the other ranks went on, so this one ends" in errors[failing]


def test_alone_a_command_is_a_plain_call():
    class Work:
        def add(self, arrays: dict[str, np.ndarray], number: int) -> int:
            return int(arrays["a"].sum()) + number

        def fail(self) -> None:
            raise RunError("no")

    with Crew(Ranks(0, 1), Work(), ("add", "fail"), RunStatus("run", heartbeat_bound_s=60.0)) as crew:
        assert crew.do("add", 4, each=[{"a": np.array([1, 2])}]) == 7
        with pytest.raises(RunError, match="no"):
            crew.do("fail")
        with pytest.raises(ValueError, match="none of the commands"):
            crew.do("__init__")


def test_a_collective_that_lost_its_peer_is_told_in_one_sentence():
    """As DeepSpeed's all-reduce raises it, with sixty lines of frames around."""
    text = "[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4298. This"
    assert is_of_a_lost_rank(RuntimeError(text))
    assert (
        str(of_a_lost_rank(RuntimeError(text)).message)
        == "another rank is gone or silent: Connection closed by peer [127.0.0.1]:4298"
    )
    assert not is_of_a_lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
