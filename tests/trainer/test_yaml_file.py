"""A run file in YAML: what YAML would drop, or read as something else, is named with its line and key."""

import os
import re
import threading
from pathlib import Path

import pytest
import yaml

from grpo_trainer.config.cold_start import ColdStartConfig
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config, write_resolved
from grpo_trainer.errors import UsageError

BEGINNING = """\
run_dir: runs/a
model: {name_or_path: some/model}
data: {dataset: rows.jsonl}
reward: {reward_funcs: [format]}
"""


def read(file: Path, text: str) -> RunConfig:
    file.write_text(BEGINNING + text, encoding="utf-8")
    return read_config(RunConfig, [str(file)], program="grpo-train", env_prefix="GRPO_TRAIN__")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("rollout: {top_k: 1}\nrollout: {top_p: 1}\n", "line 6: rollout: stands twice, first in line 5; leave one of"),
        ("rollout:\n  top_k: 1\n  top_k: 1\n", "line 7: rollout.top_k: stands twice, first in line 6"),
        ("eval: {<<: {max_rows: 1}, <<: {}}\n", "line 5: eval.<<: stands twice"),
        ("seed: 010\n", "line 5: seed: 010 begins with 0, and YAML takes it for the octal number 8; write a number"),
        ("seed: 08\n", "line 5: seed: 08 begins with 0; write a number without it"),
        ("logging: {run_name: 007}\n", "logging.run_name: 007 begins with 0, and YAML takes it for the octal number 7"),
        ("rollout: {request_deadline_s: 1:30}\n", "request_deadline_s: YAML takes 1:30 for 90, counted in sixties"),
        ("logging: {run_name: 12:30:45.5}\n", "logging.run_name: YAML takes 12:30:45.5 for 45045.5, counted in s"),
        ("seed: true\n", "seed: true, and a number is expected"),
        ("max_steps: yes\n", "max_steps: yes, which YAML reads as true, and a number is expected"),
        ("rollout:\n  min_p: on\n", "line 6: rollout.min_p: on, which YAML reads as true, and a number is expected"),
        ("deepspeed: {zero_stage: yes}\n", "deepspeed.zero_stage: yes, which YAML reads as true, and a number"),
        ("logging: {run_name: on}\n", "run_name: on, which YAML reads as true, and a text is expected; put it in q"),
        ("logging: {project: 5}\n", "logging.project: 5, and a text is expected; put it in quotes"),
        ("guards: {kl: off}\n", "guards.kl: off, which YAML reads as false, and a text is expected"),
        ("rollout: {stop: [yes]}\n", "rollout.stop.0: yes, which YAML reads as true, and a text is expected"),
        ("reward: {reward_weights: [on]}\n", "line 5: reward: stands twice, first in line 4"),
        ("data: {prompt_template: {question}}\n", "data.prompt_template: a mapping, and a text is expected; put it"),
        ("checkpoint: {metric_for_best: [x]}\n", "checkpoint.metric_for_best: a list, and a text is expected"),
        ("on: 1\n", "line 5: on: its name: on, which YAML reads as true, and a text is expected; put it in quotes"),
        ("model: &m {name_or_path: x, trust_remote_code: &b yes}\nseed: *b\n", "seed: yes, which YAML reads as true"),
        ("null: 1\n", "line 5: null: its name: YAML reads it as null; put it in quotes"),
        ("7: 1\n", "line 5: 7: its name: 7, and a text is expected"),
        ('logging: {run_name: "\\ud800"}\n', "line 5: logging.run_name: half of a surrogate pair, which is no char"),
        ('logging:\n\n  "\\udc00": 1\n', "line 7: logging.\ufffd: its name: half of a surrogate pair"),
    ],
)  # fmt: skip
def test_what_yaml_reads_as_something_else_is_named(tmp_path: Path, text: str, mistake: str):
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "run.yaml", text)
    assert str(refused.value).startswith(f"{tmp_path / 'run.yaml'}, line ")
    assert mistake in str(refused.value)


@pytest.mark.parametrize("value", ["{ratio: yes, dataset: x}", "{dataset: x, ratio: 1, rewards: {format: yes}}"])
def test_also_inside_the_users_own_keys(tmp_path: Path, value: str):
    with pytest.raises(UsageError, match=r"data\.datasets\.a\.\w+(\.format)?: yes, .* and a number is expected"):
        read(tmp_path / "run.yaml", f"data: {{datasets: {{a: {value}}}}}\n")


def test_all_of_them_are_named_at_once(tmp_path: Path):
    with pytest.raises(UsageError, match=r"(?s)line 5: seed: .*\n.*line 6: max_steps: .*"):
        read(tmp_path / "run.yaml", "seed: 010\nmax_steps: on\n")


def test_what_is_meant_as_it_stands_is_read(tmp_path: Path):
    text = """
seed: 0
optimizer: {learning_rate: 1e-6, max_grad_norm: 0.5, weight_decay: 0}
rollout: {temperature: 1, stop: ["yes", "010", '1:30', 1.2.3], urls: [http://127.0.0.1:8000]}
model: &model {name_or_path: 2024, dtype: float32}
"""
    with pytest.raises(UsageError, match="model: stands twice"):
        read(tmp_path / "run.yaml", text)
    config = read(tmp_path / "run.yaml", text.replace("model: &model {name_or_path: 2024, dtype: float32}\n", ""))
    assert (config.seed, config.optimizer.learning_rate) == (0, 1e-6)
    assert config.rollout.stop == ["yes", "010", "1:30", "1.2.3"]
    more = """
eval: {<<: &few {eval_steps: 10}, max_rows: 8, eval_steps: 5}
model: {gradient_checkpointing: on, trust_remote_code: no}
logging: {run_name: 2026-01-02, otlp_endpoint: null, project: "日本 \\U0001F600"}
reward: {reward_funcs: [format], params: {format: {think: yes, n: 7, zip: "010"}}}
"""
    (tmp_path / "more.yaml").write_text(more)
    config = read_config(
        RunConfig, [str(tmp_path / "run.yaml"), str(tmp_path / "more.yaml")], program="x", env_prefix="X__"
    )
    assert (config.eval.eval_steps, config.eval.max_rows) == (5, 8)
    assert (config.model.name_or_path, config.model.gradient_checkpointing) == ("some/model", True)
    assert (config.logging.run_name, config.logging.project) == ("2026-01-02", "日本 😀")
    assert config.reward.params == {"format": {"think": True, "n": 7, "zip": "010"}}


def test_texts_that_look_like_something_else_come_back_from_the_resolved_file(tmp_path: Path):
    stop = ["010", "08", "1:30", "yes", "null", "2026-01-02", "1e3", "{question}", "~", "=", "<<"]
    config = read(tmp_path / "run.yaml", yaml.safe_dump({"rollout": {"stop": stop}, "logging": {"run_name": "08"}}))
    write_resolved(config, tmp_path / "resolved.yaml")
    assert read_config(RunConfig, [str(tmp_path / "resolved.yaml")], program="x", env_prefix="X__").rollout.stop == stop


def test_a_file_that_is_a_pipe_is_read(tmp_path: Path):
    os.mkfifo(tmp_path / "run.yaml")
    writer = threading.Thread(target=(tmp_path / "run.yaml").write_text, args=(BEGINNING,))
    writer.start()
    config = read_config(RunConfig, [str(tmp_path / "run.yaml")], program="x", env_prefix="X__")
    writer.join()
    assert config.model.name_or_path == "some/model"


def test_a_file_that_is_not_utf_8_or_holds_itself_is_named(tmp_path: Path):
    (tmp_path / "run.yaml").write_bytes(b"seed: 1 # \xff\n")
    with pytest.raises(UsageError, match=r"run\.yaml is not YAML: 'utf-8' codec"):
        read_config(RunConfig, [str(tmp_path / "run.yaml")], program="x", env_prefix="X__")
    with pytest.raises(UsageError):
        read(tmp_path / "run.yaml", "eval: &a {max_rows: *a}\n")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("model:\n\tname_or_path: a\n", "line 6 is indented with a tab"),
        ("model:\n\u00a0\u00a0name_or_path: a\n  dtype: float32\n", r"line 6 has a U\+00A0 \(no-break space\)"),
        ("rollout:\n  max_prompts：8\n  temperature: 1.0\n", r"line 6 has a U\+FF1A \(fullwidth colon\)"),
        ("rollout:\n  num_generations:8\n  temperature: 1.0\n", "a blank behind the colon"),
    ],
)
def test_what_looks_like_yaml_and_is_none_is_named(tmp_path: Path, text: str, hint: str):
    with pytest.raises(UsageError, match=r"run\.yaml is not YAML") as raised:
        read(tmp_path / "run.yaml", text)
    assert re.search(hint, str(raised.value.hint))


def test_the_file_of_a_cold_start_is_read_in_the_same_way(tmp_path: Path):
    (tmp_path / "c.yaml").write_text("output_dir: x\nmax_steps: 010\n")
    with pytest.raises(UsageError, match=r"c\.yaml, line 2: max_steps: 010 begins with 0"):
        read_config(ColdStartConfig, [str(tmp_path / "c.yaml")], program="x", env_prefix="X__")
