"""Commands of ms-swift and TRL become run files: those of write-ups as they stand there, and others of their options.

Each is imported among local stand-ins for what it names, and its run file passes the dry run.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.trainer.import_stand_ins import make_stand_ins
from tests.trainer.importing import TRL, imported, refused, setting

from grpo_reward.registry import built_in_rewards
from grpo_trainer.__main__ import main
from grpo_trainer.config.peer_options import PeerOptions
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.swift_options import MS_SWIFT
from grpo_trainer.config.trl_options import TRL as TRL_OPTIONS
from grpo_trainer.imports.rewards import BUILT_IN, Found, add_models

DATA = Path(__file__).parent / "import_data"
COMMANDS = sorted((DATA / "commands").iterdir())
EXPECTED = yaml.safe_load((DATA / "expected.yaml").read_text())
SWIFT = ["--rlhf_type", "grpo", "--model", "m", "--dataset", "d", "--reward_funcs", "format", "--num_generations", "1"]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand_ins")
    make_stand_ins(folder)
    return folder


def options_in(command: Path) -> set[str]:
    """Every option that stands in a command, glued ones too."""
    if command.suffix == ".yaml":
        return set(yaml.safe_load(command.read_text())) - {"env"}
    lines = (line for line in command.read_text().splitlines() if not line.lstrip().startswith("#"))
    return {name for line in lines for name in re.findall(r"--([a-z][\w-]*)", line)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.name)
def test_a_command_becomes_a_run_file_that_passes_the_dry_run(
    command: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(stand_ins)
    monkeypatch.setattr("grpo_trainer.engine.optimizers.find_spec", lambda _: True)  # adamw_8bit needs a library
    text, said = imported(capsys, command)
    run = RunConfig.model_validate(yaml.safe_load(text))
    for name, value in EXPECTED[command.name].items():
        assert setting(run, name) == value, name
    assert "there is no such file" not in said
    server_flags = {name for name in options_in(command) if name.startswith("vllm_") or name.replace("-", "_") in text}
    for option in options_in(command) - server_flags - {"config", "model", "tensor-parallel-size", "max_model_len"}:
        assert option in text, f"--{option} is left out in silence"
    assert "not-to-be-shown" not in text + said

    (stand_ins / "run.yaml").write_text(text)
    nowhere = ["--rollout.urls", '["http://127.0.0.1:9"]', "--reward.url", "http://127.0.0.1:9"]
    assert main(["run.yaml", "--dry-run", *nowhere]) == 0
    assert "memory of a rank" in capsys.readouterr().out


def test_parameters_of_rewards_are_those_that_the_reward_server_takes(
    stand_ins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(stand_ins)
    known = built_in_rewards()
    for command in COMMANDS:
        run = RunConfig.model_validate(yaml.safe_load(imported(capsys, command)[0]))
        for name in run.reward.names:
            if name in known:
                known[name].params.model_validate(run.reward.params.get(name, {}))
        assert not [name for name in run.reward.params if name not in known]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            "swift_countdown.sh",
            [
                "CUDA_VISIBLE_DEVICES=2 grpo-rollout serve Qwen/Qwen2.5-3B-Instruct --max-model-len 3072 &",
                "grpo-reward serve --plugin examples/train/grpo/plugin/plugin.py &",
                "CUDA_VISIBLE_DEVICES=0,1 grpo-train RUN.yaml",
            ],
        ),
        (
            "swift_math_multi_gpu.sh",
            [
                "CUDA_VISIBLE_DEVICES=7 grpo-rollout serve Qwen/Qwen2.5-Math-7B --gpu-memory-utilization 0.8 &",
                "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 grpo-train RUN.yaml",
            ],
        ),
        ("swift_math_single_gpu.sh", ["CUDA_VISIBLE_DEVICES=0 grpo-rollout", "CUDA_VISIBLE_DEVICES=0 grpo-train"]),
        ("swift_plugins.sh", ["CUDA_VISIBLE_DEVICES=3 grpo-rollout", "CUDA_VISIBLE_DEVICES=0,1,2 grpo-train"]),
        (
            "swift_dapo_colocate.sh",
            ["CUDA_VISIBLE_DEVICES=6,7 grpo-rollout serve Qwen/Qwen2.5-7B-Instruct --port 8003 "
             "--gpu-memory-utilization 0.4 --tensor-parallel-size 2 &"],
        ),
        ("swift_numina_single_gpu_lora.sh", ["--enable-lora --max-lora-rank 8 --max-loras 2"]),
        ("swift_qlora_reward_model.sh", ["grpo-train quantize-base Qwen/Qwen2.5-7B-Instruct", "--reward-model"]),
        (
            "trl_own_server.sh",
            ["CUDA_VISIBLE_DEVICES=2,3 grpo-rollout serve Qwen/Qwen2.5-3B-Instruct --tensor-parallel-size 2 "
             "--max-model-len 1024 --dtype float32 &", "CUDA_VISIBLE_DEVICES=0,1 grpo-train RUN.yaml"],
        ),
        ("trl_reference.sh", ["--hf-overrides '{\"head_dtype\": \"float32\"}'"]),
    ],
)  # fmt: skip
def test_the_lines_that_start_the_servers_have_the_gpus_and_flags_of_the_command(
    command: str, lines: list[str], stand_ins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(stand_ins)
    text, _ = imported(capsys, DATA / "commands" / command)
    for line in lines:
        assert line in text


@pytest.mark.parametrize(("command", "peer"), [(SWIFT, MS_SWIFT), (TRL, TRL_OPTIONS)], ids=["ms-swift", "TRL"])
def test_options_that_have_no_setting_are_named_with_the_reason(
    command: list[str], peer: PeerOptions, capsys: pytest.CaptureFixture[str]
):
    reasons = {**peer.not_needed, **peer.not_here, "unheard_of": "no option of"}
    words = [word for option in reasons for word in (f"--{option}", "7")]
    text, said = imported(capsys, *command, *words)
    for option, reason in reasons.items():
        assert re.search(rf"^(otherwise|not needed): --{option} (7|…): {re.escape(reason)}", said, re.MULTILINE), option
        assert f"--{option} " in text


def test_slips_of_a_copied_command_are_named(
    stand_ins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(stand_ins)
    _, said = imported(capsys, DATA / "commands" / "swift_slips.sh")
    for sentence in (
        "$nproc_per_node is not set",
        "format--per_device_train_batch_size is read as format --per_device_train_batch_size",
        "a blank behind the \\",
        "--deepspeed stands behind a line without \\",
        "--learning_rate is there twice",
        "NNODES is set and not exported",
        "left out of the script: pip install …",
        "output is not redirected: > train.log",
        "--gradient_clipping_mode auto: no option of ms-swift",
    ):
        assert sentence in said


def test_files_that_are_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options = [
        "--system",
        "prompt.txt",
        "--external_plugins",
        "mine.py",
        "--deepspeed",
        "ds.json",
        "--dataset",
        "./r.jsonl",
    ]
    text, said = imported(capsys, *SWIFT, *options)
    for name in ("prompt.txt", "mine.py", "ds.json", "./r.jsonl"):
        assert re.search(
            rf"there is no (such )?file.*{re.escape(name)}|{re.escape(name)}: there is no such file", said
        ), name
        assert name in text
    _, said = imported(
        capsys, *TRL, "--dataset_name", "./r.jsonl", "--config_file", "a.yaml", "--reward_funcs", "own.f"
    )
    assert "./r.jsonl: there is no such file" in said
    assert "a.yaml: there is no such file" in said
    assert "there is no file own.py" in said
    assert "nothing.sh cannot be read" in refused(capsys, "import-swift", "nothing.sh")
    assert "nothing.yaml cannot be read" in refused(capsys, "import-trl", "nothing.yaml")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["import-swift", *SWIFT, "--rlhf_type", "dpo"], "rlhf_type is dpo, and only grpo is imported"),
        (["import-swift", *SWIFT[2:]], "rlhf_type is ms-swift's default, dpo"),
        (["import-swift", "swift", "sft", *SWIFT], "swift sft is no GRPO"),
        (["import-trl", "trl", "dpo", *TRL], "trl dpo is no GRPO"),
        (["import-swift", *SWIFT, "--num_generations", "3"], "are no whole groups of num_generations 3"),
        (["import-swift", *SWIFT, "--learning_rate", "fast"], "--learning_rate fast"),
        (
            ["import-swift", *SWIFT, "--temperature", "-1"],
            "rollout.temperature: Input should be greater than or equal to 0.01",
        ),
        (["import-swift", *SWIFT, "--reward_funcs", "soft_overlong"], "--soft_cache_length is missing"),
        (["import-swift", *SWIFT, "--reward_weights", "1", "2"], "2 reward_weights for 1 reward_funcs"),
        (["import-swift", *SWIFT, "--lora_rank", "0"], "model.lora.r: Input should be greater than or equal to 1"),
        (["import-swift", *SWIFT, "--max_grad_norm", "much"], "--max_grad_norm much is no number"),
        (["import-swift", *SWIFT, "--vllm_tensor_parallel_size", "0"], "--vllm_tensor_parallel_size 0 is not above 0"),
        (["import-trl", *TRL, "--loss-type", "dapoo"], "there is no loss dapoo\nhint: did you mean dapo?"),
        (["import-swift", *SWIFT, "--columns", "7"], "--columns 7 is no mapping of columns"),
        (["import-trl", *TRL[2:]], "--model_name_or_path is missing"),
        (["import-trl", *TRL[:4]], "no reward is named"),
        (["import-swift", "megatron", "rlhf", *SWIFT], "megatron rlhf has the options of Megatron-SWIFT"),
        (["import-swift", "swift", "rlhf", "away.yaml"], "away.yaml cannot be read"),
        (["import-trl", *TRL, "--steps_per_generation", "2", "--generation_batch_size", "8"], "is not per_device"),
    ],
)
def test_what_cannot_be_imported_is_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert message in refused(capsys, *argv)


def test_an_option_with_a_typo_is_named_with_the_nearest_one(capsys: pytest.CaptureFixture[str]):
    _, said = imported(capsys, *SWIFT, "--learing_rate", "1e-5")
    assert "--learing_rate 1e-5: no option of ms-swift" in said
    assert "did you mean --learning_rate? Nothing is set by it" in said


def test_two_commands_in_a_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "two.sh"
    file.write_text(f"swift rlhf {' '.join(SWIFT)}\nswift rlhf {' '.join(SWIFT)}\n")
    assert "there are 2 commands swift rlhf in it" in refused(capsys, "import-swift", file)


@pytest.mark.parametrize("form", ["swift rlhf {}", "swift rlhf --config {}", "{}"])
def test_the_file_of_options_that_ms_swift_takes_is_read(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "grpo_rlhf.yaml"
    file.write_text(
        "rlhf_type: grpo\nmodel: m\ndataset: [a, b]\nreward_funcs: accuracy\nnum_generations: 2\nbeta: 0.1\n"
        "learning_rate: 1e-6\nENV: {NPROC_PER_NODE: 2}\nloss_type: fipo\nfipo_safety_threshold: null\n"
    )
    assert main(["import-swift", *form.format(file).split(), "--beta", "0.5"]) == 0
    run = RunConfig.model_validate(yaml.safe_load(capsys.readouterr().out))
    assert (run.algorithm.beta, run.optimizer.learning_rate, run.deepspeed.nproc_per_node) == (0.5, 1e-6, 2)
    assert list(run.data.datasets) == ["a", "b"]
    assert (run.algorithm.params["fipo_safety_threshold"], run.algorithm.params["fipo_clip_range"]) == (None, 0.2)


def test_the_labels_of_real_come_with_their_temperature(capsys: pytest.CaptureFixture[str]):
    real = (*SWIFT, "--loss_type", "real", "--scale_rewards", "group")
    for more, tau in (((), 0.5), (("--real_tau", "0.1"), 0.1)):
        text, _ = imported(capsys, *real, *more)
        algorithm = RunConfig.model_validate(yaml.safe_load(text)).algorithm
        assert (algorithm.loss_type, algorithm.advantage_estimator) == ("real", "real")
        assert algorithm.advantage_estimator_params == {"tau": tau}
        assert "--scale_rewards group" in text
    text, _ = imported(capsys, *SWIFT, "--real_tau", "0.1")
    assert "loss_type real alone reads it" in text


def test_an_option_that_is_not_needed_is_not_also_one_that_nothing_reads(capsys: pytest.CaptureFixture[str]):
    real = (
        "--loss_type",
        "real",
        "--scale_rewards",
        "group",
        "--advantage_estimator",
        "rloo",
        "--kl_in_reward",
        "true",
    )
    for more in (real, ("--real_tau", "0.1"), ("--chord_mu_peak", "0.5")):
        text, _ = imported(capsys, *SWIFT, *more)
        assert "nothing reads it beside the other options" not in text
        assert text.count(" ".join(more[-2:])) == 1


def test_a_policy_that_teaches_itself_reads_the_column_that_it_has_there(capsys: pytest.CaptureFixture[str]):
    reweights = ("--advantage_reweight", "rlsd", "--rlsd_lambda", "0.7", "--rlsd_negative_only", "true")
    text, said = imported(capsys, *SWIFT, *reweights, "--rlsd_lambda_decay_steps", "50")
    teacher = RunConfig.model_validate(yaml.safe_load(text)).teacher
    assert teacher is not None
    assert (teacher.of_itself, teacher.prompt_column, teacher.form) == (True, "teacher_prompt", "reweight")
    assert (teacher.coef, teacher.reweight_clip, teacher.negative_only) == (0.7, 0.2, True)
    assert "--rlsd_lambda_decay_steps 50: teacher.coef is the same in every step" in said
    text, _ = imported(capsys, *SWIFT, "--sdar_loss_coef", "0.1", "--teacher_model", "m")
    teacher = RunConfig.model_validate(yaml.safe_load(text)).teacher
    assert teacher is not None
    assert (teacher.url, teacher.form, teacher.coef, teacher.gate_beta) == ("http://127.0.0.1:8003", "gate", 0.1, 5.0)


def test_a_teacher_alone_is_enough_to_learn_from(capsys: pytest.CaptureFixture[str]):
    without_rewards = [word for word in SWIFT if word not in ("--reward_funcs", "format")]
    text, said = imported(capsys, *without_rewards, "--teacher_model", "some/teacher", "--teacher_kl_coef", "0.5")
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert run.teacher is not None
    assert (run.reward.reward_funcs, run.teacher.url, run.teacher.coef) == ([], "http://127.0.0.1:8003", 0.5)
    assert "--teacher_model some/teacher: the teacher is a rollout server of its own: give it a GPU" in said


def test_what_does_not_go_together_here_is_changed_and_named(capsys: pytest.CaptureFixture[str]):
    text, said = imported(
        capsys, *SWIFT, "--teacher_model_server", "http://127.0.0.1:8009", "--kl_in_reward", "true", "--beta", "0"
    )
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert (run.rollout.temperature, run.algorithm.kl_in_reward) == (1.0, False)
    assert "rollout.temperature is 1.0, not 0.9 (ms-swift's default of temperature): a teacher's" in said
    assert "algorithm.kl_in_reward is false, not true (--kl_in_reward true): there is no KL with beta 0" in said
    text, said = imported(
        capsys, *SWIFT, "--async_generate", "true", "--use_vllm", "true", "--vllm_mode", "server", "--top_p", "0.9"
    )
    assert "algorithm.max_staleness is 0, not 1 (--async_generate true): with top_p" in said


def test_a_regex_of_the_other_trainer_is_ours(capsys: pytest.CaptureFixture[str]):
    for command, option in ((SWIFT, "structured_outputs_regex"), (TRL, "vllm_structured_outputs_regex")):
        text, said = imported(capsys, *command, f"--{option}", "[0-9]+")
        run = RunConfig.model_validate(yaml.safe_load(text))
        assert run.rollout.structured_outputs_regex == "[0-9]+"
        assert not run.algorithm.importance_sampling_correction
    assert "with structured_outputs_regex the servers' logprobs are of another distribution" in said


def test_each_argument_of_generation_kwargs_is_a_setting_or_named(capsys: pytest.CaptureFixture[str]):
    given = {
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "min_new_tokens": 4, "logit_bias": {"5": -2.0},
        "stop": "</answer>", "top_p": 0.9, "structured_outputs": {"regex": "a+"}, "seed": 3, "num_beams": 4,
    }  # fmt: skip
    text, said = imported(capsys, *TRL, "--top_p", "0.7", "--generation_kwargs", json.dumps(given))
    rollout = RunConfig.model_validate(yaml.safe_load(text)).rollout
    assert (rollout.presence_penalty, rollout.frequency_penalty, rollout.min_tokens) == (0.5, -0.5, 4)
    assert (rollout.logit_bias, rollout.stop, rollout.top_p) == ({5: -2.0}, ["</answer>"], 0.9)
    assert rollout.structured_outputs_regex == "a+"
    assert "otherwise: generation_kwargs num_beams 4: the servers sample without it" in said
    assert "not needed: generation_kwargs seed 3: the seed of each prompt" in said


def test_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert main(["import-swift", "--help"]) == 0
    assert "grpo-train import-trl FILE.yaml" in capsys.readouterr().out


def test_the_example_of_the_page_is_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    page = (Path(__file__).parents[2] / "docs/from-your-command.md").read_text()
    shown, run_file = re.findall(r"```(?:yaml)?\n(.*?)```", page.partition("## An example")[2], re.DOTALL)
    script, _, said = shown.removeprefix("$ cat countdown.sh\n").partition(
        "$ grpo-train import-swift countdown.sh > run.yaml\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("countdown.sh").write_text(script)
    Path("plugin.py").write_text("orms['external_countdown'] = CountdownORM\n")
    assert main(["import-swift", "countdown.sh"]) == 0
    assert capsys.readouterr() == (run_file, said)


def test_demonstrations_of_chord_are_read_by_their_own_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text('{"query": "1+1", "output": "2"}\n')
    words = ["--chord_sft_dataset", "d.jsonl", "--chord_mu_peak", "0.9", "--chord_mu_valley", "0.1"]
    words += ["--chord_mu_warmup_steps", "3", "--chord_mu_decay_steps", "0"]
    text, said = imported(capsys, *SWIFT, *words)
    chord = RunConfig.model_validate(yaml.safe_load(text)).chord
    assert chord is not None
    assert (chord.sft_prompt_template, chord.completion_column) == ("{query}", "output")
    assert (chord.mu_peak, chord.mu_valley, chord.mu_warmup_steps) == (0.1, None, 3)
    assert "has to end with the question" not in said


def test_several_reward_models_are_rewards_by_their_names_with_their_weights(capsys: pytest.CaptureFixture[str]):
    models = ["A/one", "B/two", "C/one", "D/format", "E/total"]
    text, said = imported(
        capsys, *SWIFT, "--reward_model", *models, "--reward_weights", "1", "0.5", "0.2", "0.3", "0.4", "0.6"
    )
    run = RunConfig.model_validate(yaml.safe_load(text))
    expected = {"format": 1.0, "one": 0.5, "two": 0.2, "one-2": 0.3, "format-model": 0.4, "total-2": 0.6}
    assert run.reward.weights == expected
    assert "--reward-model one=A/one two=B/two one-2=C/one format-model=D/format total-2=E/total" in text
    assert "reward_model" not in said


def test_no_reward_model_gets_the_name_of_a_built_in_reward():
    assert built_in_rewards().keys() == BUILT_IN
    found = Found()
    add_models(found, ["A/format", "B/judge", "C/format"])
    assert found.funcs == ["format-model", "judge-model", "format-model-2"]
