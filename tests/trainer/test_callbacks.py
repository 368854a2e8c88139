"""Callbacks of a user's own: loaded and tried before the run, called with what they may not change."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import as_in_a_new_process

from grpo_trainer import extension
from grpo_trainer.callbacks import Callbacks, load_callbacks
from grpo_trainer.errors import CallbackError, UsageError

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "trainer.md"

OWN = """
from grpo_trainer.callbacks import StopRun

SEEN = []

def step(step, metrics):
    SEEN.append(("function", step, metrics["reward"]))

class Watch:
    def __init__(self):
        self.steps = 0

    def on_step(self, step, metrics):
        self.steps += 1
        if step == 2:
            raise StopRun("two are enough")

    def on_evaluation(self, step, metrics):
        SEEN.append(("evaluation", step, metrics["eval_accuracy"]))

    def on_end(self, step):
        SEEN.append(("end", step, self.steps))

def greedy(step, metrics):
    metrics["reward"] = 2.0

class Leaves:
    def on_end(self, step):
        exit(3)
"""


def attending(
    folder: Path, *names: str, code: str = OWN, step: int = 0, params: Mapping[str, Mapping[str, Any]] | None = None
) -> Callbacks:
    as_in_a_new_process("own")
    (folder / "own.py").write_text(code)
    return Callbacks(load_callbacks([f"{folder}/own.py:{name}" for name in names], params or {}), step=step)


def seen_in(folder: Path) -> list[Any]:
    """What the file of the callbacks wrote down: it is one module for all of them."""
    return extension.module_of(folder / "own.py").SEEN


def test_functions_and_classes_are_called_in_order_and_asked_for_a_stop_after_the_step(tmp_path: Path):
    with attending(tmp_path, "Watch", "step") as callbacks:
        callbacks.on_evaluation(0, {"eval_accuracy": 0.25})
        callbacks.on_step(1, {"reward": 0.5})
        assert not callbacks.end_the_run
        callbacks.on_step(2, {"reward": 1.0})
        assert callbacks.end_the_run
    assert callbacks.stop is not None
    assert callbacks.stop.text == f"{tmp_path}/own.py:Watch: two are enough"
    assert seen_in(tmp_path) == [("evaluation", 0, 0.25), ("function", 1, 0.5), ("function", 2, 1.0), ("end", 2, 2)]


def test_a_resumed_run_without_a_step_ends_with_that_of_its_checkpoint(tmp_path: Path):
    with attending(tmp_path, "Watch", step=7):
        pass
    assert seen_in(tmp_path) == [("end", 7, 0)]


def test_what_a_callback_raises_is_kept_with_its_file_and_line_until_the_step_is_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    callbacks = attending(tmp_path, "greedy", "step")
    metrics = {"reward": 0.5}
    callbacks.on_step(1, metrics)
    assert metrics == {"reward": 0.5}
    assert str(callbacks.failure).startswith(f"callbacks: {tmp_path}/own.py:greedy raised TypeError in line 25: ")
    assert "own.py:greedy raised TypeError in line 25" in caplog.text


def test_an_end_that_fails_is_no_success_and_hides_no_other_failure(tmp_path: Path):
    with pytest.raises(CallbackError, match=r"own.py:Leaves raised SystemExit in line 29: 3"):
        with attending(tmp_path, "Leaves"):
            pass
    with pytest.raises(ValueError, match="of the run"), attending(tmp_path, "Leaves"):
        raise ValueError("of the run")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class own:\n    def on_log(self, step, metrics): ...", "own has on_log, which nobody calls .known are on_"),
        ("class own:\n    on_time = True", "own has no hook .known are on_step, on_evaluation, on_end"),
        ("class own:\n    def on_end(self): ...", r"own cannot be called as on_end\(step\): too many positional"),
        ("def own(metrics): ...", r"own cannot be called as own\(step, metrics\): too many positional"),
        ("class own:\n    def __init__(self, *, project): ...", r"own needs a value for project \(its parameters: "),
        ("class own:\n    def __init__(self):\n        1 / 0", "own raised ZeroDivisionError in line 3"),
        ("own = 7", "own.py has no function own"),
        ("import nothing_such", "own.py cannot be imported: ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_a_callback_that_cannot_work_is_refused_before_the_run(tmp_path: Path, code: str, message: str):
    with pytest.raises(UsageError, match=rf"callbacks(_params\.own)?: .*{message}"):
        attending(tmp_path, "own", code=code)


PARAMETERS = """
class Best:
    def __init__(self, accuracy: float, *, name="best"):
        self.given = (accuracy, name)

    def on_step(self, step, metrics):
        SEEN.append(self.given)

SEEN = []

def every(step, metrics, steps: int = 1):
    SEEN.append(steps)
"""


def test_classes_and_functions_get_their_parameters_by_name(tmp_path: Path):
    params = {"Best": {"accuracy": "0.9"}, "every": {"steps": 5}}
    attending(tmp_path, "Best", "every", code=PARAMETERS, params=params).on_step(1, {})
    assert seen_in(tmp_path) == [(0.9, "best"), 5]
    attending(tmp_path, "every", code=PARAMETERS).on_step(1, {})
    assert seen_in(tmp_path) == [1]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"Best": {"acuracy": 1}}, r"callbacks_params\.Best: .*own\.py:Best has no parameter acuracy; .* accuracy\?"),
        ({"Best": {"name": "x"}}, r"Best needs a value for accuracy \(its parameters: accuracy, name = 'best'\)"),
        ({"Best": {"accuracy": 1}, "every": {"steps": 0.5}}, r"callbacks_params\.every\.steps: .*\(got 0\.5\)"),
    ],
)
def test_parameters_that_a_callback_does_not_take_are_refused(
    tmp_path: Path, params: dict[str, dict[str, Any]], message: str
):
    with pytest.raises(UsageError, match=message):
        attending(tmp_path, "Best", "every", code=PARAMETERS, params=params)


def test_a_callback_that_stands_there_twice_is_refused(tmp_path: Path):
    (tmp_path / "own.py").write_text("def f(step, metrics): ...")
    with pytest.raises(UsageError, match=r"own.py:f stands there twice"):
        load_callbacks([f"{tmp_path}/own.py:f"] * 2, {})


def test_a_hook_has_a_stage_of_its_own_and_no_error_of_it_leaves_it():
    def hook(step: int, metrics: object) -> None:
        raise asyncio.CancelledError

    entered: list[str] = []
    callbacks = Callbacks({"own.py:hook": {"on_step": hook}})
    callbacks.begin(3, stage=lambda name: nullcontext(entered.append(name)))
    callbacks.on_step(4, {})
    callbacks.on_evaluation(4, {})
    assert entered == ["callbacks"]
    assert "own.py:hook raised CancelledError" in str(callbacks.failure)


def test_what_is_no_file_is_refused():
    with pytest.raises(UsageError, match=r"callbacks wandb is unknown \(your own is FILE.py:NAME\)"):
        load_callbacks(["wandb"], {})


def test_the_callback_of_the_documentation_works_as_it_stands(tmp_path: Path):
    (code,) = re.findall(r"```python\n(from grpo_trainer.callbacks .*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (section,) = re.findall(r"```yaml\n(callbacks:.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    params = yaml.safe_load(section)["callbacks_params"]
    metrics: dict[str, Any] = {"eval_accuracy": 0.91}
    with attending(tmp_path, "Target", code=code, params=params) as callbacks:
        callbacks.on_step(1, {"reward": 0.5})
        callbacks.on_evaluation(1, metrics)
        assert callbacks.end_the_run
    assert callbacks.failure is None
