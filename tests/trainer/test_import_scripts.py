"""Scripts that take arguments, the rewards of open-r1's script, and the schedules that both trainers have."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import TRL, imported, refused, setting

from grpo_trainer.__main__ import main
from grpo_trainer.config.run_config import RunConfig


def test_a_script_is_given_its_arguments_and_those_that_are_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "swift_train.sh"
    script.write_text(
        "NPROC_PER_NODE=${2:-1} swift rlhf --rlhf_type grpo --model $1 --dataset d --reward_funcs format "
        '--num_generations 1 "${@:3}"\n'
    )
    run = RunConfig.model_validate(yaml.safe_load(imported(capsys, script, "m", 2, "--beta", "0.5")[0]))
    assert (run.model.name_or_path, run.deepspeed.nproc_per_node, run.algorithm.beta) == ("m", 2, 0.5)
    assert "$1 is not set in what is imported: give the arguments of the script" in imported(capsys, script)[1]
    script.write_text("trl grpo --model_name_or_path m --dataset_name d --num_generations $1 --reward_funcs f\n")
    said = refused(capsys, "import-trl", script)
    assert "--num_generations" in said
    assert "$1 is not set in what is imported" in said


def test_commas_between_values_are_left_out_and_named(capsys: pytest.CaptureFixture[str]):
    text, said = imported(capsys, *TRL, "--use_peft", "--lora_target_modules", "q_proj,", "v_proj")
    assert yaml.safe_load(text)["model"]["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert "the commas in --lora_target_modules q_proj, v_proj are left out" in said


def test_what_open_r1_pays_without_reward_funcs(capsys: pytest.CaptureFixture[str]):
    command = ["python", "src/open_r1/grpo.py", "--model_name_or_path", "m", "--dataset_name", "d"]
    text, said = imported(capsys, *command)
    assert yaml.safe_load(text)["reward"]["reward_funcs"] == ["accuracy", "format", "tag_count"]
    assert "--plugin" not in said


@pytest.mark.parametrize(
    ("given", "settings", "remark"),
    [
        (["constant", "--warmup_ratio", "0.1"], {}, "not needed: --warmup_ratio 0.1: the schedule constant"),
        (["constant_with_warmup", "--warmup_steps", "5"], {"warmup_steps": 5}, ""),
        (["polynomial", "--lr_scheduler_kwargs", '{"power": 2}'],
         {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}}, ""),
        (["reduce_lr_on_plateau", "--lr_scheduler_kwargs", '{"factor": 0.5}', "--warmup_steps", "5"], {},
         "there is no schedule reduce_lr_on_plateau, which follows a metric"),
    ],
)  # fmt: skip
def test_schedules_are_those_of_transformers(
    given: list[str], settings: dict[str, Any], remark: str, capsys: pytest.CaptureFixture[str]
):
    text, said = imported(capsys, *TRL, "--lr_scheduler_type", *given)
    optimizer = yaml.safe_load(text)["optimizer"]
    named = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
    assert {name: optimizer[name] for name in named if name in optimizer} == {
        "lr_scheduler_type": "constant"
    } | settings
    assert remark in said
    assert "there is no schedule cosin" in refused(capsys, "import-trl", *TRL, "--lr_scheduler_type", "cosin")
    why = refused(capsys, "import-trl", *TRL, "--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"min_lr": 1}')
    assert "min_lr is of cosine_with_min_lr, cosine_warmup_with_min_lr, not of cosine" in why


@pytest.mark.parametrize(
    ("given", "settings", "remark"),
    [
        # ms-swift gives a model that may think or not an empty thought, unless it is told otherwise.
        ([], {"data.chat_template_kwargs": {"enable_thinking": False}}, None),
        (["--enable_thinking", "true"], {"data.chat_template_kwargs": {"enable_thinking": True}}, None),
        (["--loss_type", "cispo"], {"algorithm.epsilon_high": None}, None),
        ([], {"guards.clipped": "warn"}, None),
        (["--response_prefix", "<think>\n"], {}, "otherwise: --response_prefix <think>"),
        (["--template", "chatml"], {}, "otherwise: --template chatml: the chat template is the model's own"),
        (["--ref_model", "other", "--beta", "0.1"], {}, "otherwise: --ref_model other"),
        (["--ref_model", "m", "--beta", "0.1"], {}, "not needed: --ref_model m"),
        (["--ref_model", "other", "--beta", "0"], {}, "not needed: --ref_model other"),
        (["--ref_adapters", "sft"], {}, "otherwise: --ref_adapters sft: the reference of an adapter is"),
        (["--columns", '{"q": "query", "answer": "solution"}'], {"data.prompt_template": "{q}"},
         "otherwise: --columns {\"q\": \"query\", \"answer\": \"solution\"}: rewards get the column answer under that"),
        (["--max_length", "99"], {"data.max_prompt_length": 99}, "ms-swift's default of truncation_strategy"),
        (["--max_length", "99", "--truncation_strategy", "delete"], {"data.overlong_prompts": "drop"}, None),
        (["--max_length", "99", "--truncation_strategy", "left"], {}, "otherwise: --truncation_strategy left: a"),
    ],
)  # fmt: skip
def test_what_ms_swift_does_by_an_option_or_without_it(
    given: list[str], settings: dict[str, Any], remark: str | None, capsys: pytest.CaptureFixture[str]
):
    swift = ["--rlhf_type", "grpo", "--model", "m", "--dataset", "d", "--reward_funcs", "format"]
    text, said = imported(capsys, *swift, "--num_generations", 1, *given)
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert {name: setting(run, name) for name in settings} == settings
    assert said.count("truncation_strategy") == (remark or "").count("truncation_strategy")
    assert remark is None or remark in said


def test_the_processes_of_deepspeed_are_those_of_its_slots(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "trl_train.sh"
    script.write_text(f"deepspeed --include localhost:0,2 train.py {' '.join(TRL)}\n")
    run = yaml.safe_load(imported(capsys, script)[0])
    assert run["deepspeed"]["nproc_per_node"] == 2
    assert run["rollout"]["generation_batch_size"] == 16


def test_a_quantized_model_is_served_and_trained_as_it_is_written(capsys: pytest.CaptureFixture[str]):
    text, _ = imported(capsys, *TRL, "--use_peft", "--load_in_4bit")
    assert yaml.safe_load(text)["model"]["name_or_path"] == "models/m-nf4"
    assert "grpo-rollout serve models/m-nf4" in text


def test_the_upper_clip_of_cispo_is_that_of_the_command(capsys: pytest.CaptureFixture[str]):
    text, _ = imported(capsys, *TRL, "--loss_type", "cispo")
    assert RunConfig.model_validate(yaml.safe_load(text)).algorithm.upper_epsilon == 0.2


def test_an_adapter_to_start_from_describes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As ms-swift and PEFT read it; a run whose model.lora says otherwise is refused."""
    monkeypatch.chdir(tmp_path)
    Path("sft").mkdir()
    Path("sft/adapter_config.json").write_text(
        '{"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "use_rslora": false, "target_parameters": null}'
    )
    described = {"r": 4, "alpha": 6, "target_modules": ["q_proj"], "use_rslora": False, "adapter": "sft"}
    swift = ["--rlhf_type", "grpo", "--model", "m", "--dataset", "d", "--reward_funcs", "format"]
    text, said = imported(capsys, *swift, "--num_generations", 1, "--adapters", "sft", "--use_rslora", "true")
    assert described.items() <= yaml.safe_load(text)["model"]["lora"].items()
    assert "its files are not here" not in said
    assert "its files are not here" in imported(capsys, *swift, "--num_generations", 1, "--adapters", "away")[1]
    Path("train.py").write_text(
        "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('m'), 'sft', is_trainable=True)\n"
        "GRPOTrainer(model=model, train_dataset=load_dataset('d'), reward_funcs='r')\n"
    )
    text, said = imported(capsys, "train.py", "--num_processes", 1)
    model = yaml.safe_load(text)["model"]
    assert "all-linear" not in said
    assert model["name_or_path"] == "m"
    assert described.items() <= model["lora"].items()


COMMAND = "--rlhf_type grpo --dataset d --reward_funcs format --num_generations 1"


@pytest.mark.parametrize(
    ("script", "model", "remark"),
    [
        (f'M=${{M:-"a/b"}}\nswift rlhf --model $M {COMMAND}', "a/b", None),
        (f"swift rlhf --model ${{M:-'a/b'}} {COMMAND}", "a/b", None),
        (f'M=c\nswift rlhf --model "${{M:-"a/b"}}" {COMMAND}', "c", None),
        (f'swift rlhf --model "${{M:-"a/b"}}" {COMMAND}', "a/b", None),
        (f"M=a/b\nswift rlhf --model ${{M##*/}} {COMMAND}", "b", None),
        (f"M=a/b\nswift rlhf --model ${{M^^}} {COMMAND}", "${M^^}", "${M^^} stays as it is written"),
        (f"(cd /x && swift rlhf --model m {COMMAND} --tuner_type full) || echo failed", "m", None),
        (f"python -m swift.cli.rlhf --model m {COMMAND}", "m", None),
        (f"python swift/cli/main.py rlhf --model m {COMMAND}", "m", None),
    ],
)  # fmt: skip
def test_what_a_shell_would_make_of_a_word(
    script: str, model: str, remark: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "swift_train.sh").write_text(script)
    text, said = imported(capsys, tmp_path / "swift_train.sh")
    assert yaml.safe_load(text)["model"]["name_or_path"] == model
    assert "is set and not exported" not in said
    assert ("lora" in text) == ("tuner_type full" not in script)
    assert (remark or "") in said
    assert ("stays as it is written" in said) == (remark is not None)


def test_of_several_commands_one_is_named_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "swift_stages.sh"
    script.write_text(
        "swift sft --model a --dataset d\nswift rollout --model a --port 8100\n"
        f"swift rlhf --model a {COMMAND} --beta 0.1\nswift rlhf --rlhf_type dpo --model a\n"
        "swift rollout --model b --port 8200\n"
        f"for beta in 0.2 0.3; do swift rlhf --model b {COMMAND} --beta $beta; done\n"
    )
    said = refused(capsys, "import-swift", script)
    assert "there are 3 commands swift rlhf in it" in said
    assert "--nth 1 before the file" in said
    for nth, beta in ((1, 0.1), (2, 0.2), (3, 0.3)):
        assert main(["import-swift", "--nth", str(nth), str(script)]) == 0
        text, said = capsys.readouterr()
        assert yaml.safe_load(text)["algorithm"]["beta"] == beta
        assert "left out of the script: swift sft …" in said
    assert "--nth 4: there are 3 commands" in refused(capsys, "import-swift", "--nth", 4, script)
    for wrong in (["--nth", "x"], ["--nth", "00"], ["--nth=0"], ["A=1", "--nth"]):
        assert "--nth is no number" in refused(capsys, "import-swift", *wrong, script)
    assert main(["import-swift", "A=1", "--nth=2", str(script)]) == 0
    assert yaml.safe_load(capsys.readouterr()[0])["algorithm"]["beta"] == 0.2
    script.write_text(f"swift rlhf --model a {COMMAND}\n")
    assert "--nth 2: there is 1 command swift rlhf" in refused(capsys, "import-swift", "--nth", 2, script)
    assert "x.yaml is no script of several" in refused(capsys, "import-swift", "--nth", 5, "x.yaml")


def test_a_command_in_quotation_marks_is_read(capsys: pytest.CaptureFixture[str]):
    text, _ = imported(capsys, f"swift rlhf --model m {COMMAND} --beta 0.5")
    assert yaml.safe_load(text)["algorithm"]["beta"] == 0.5


def test_options_of_the_server_that_the_trainer_decides_on_are_said_to_be_its(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "swift_train.sh"
    script.write_text(f"swift rollout --model m --torch_dtype float16\nswift rlhf --model m {COMMAND} --use_vllm true "
                      "--vllm_mode server\nNNODES=2 NODE_RANK=1 deepspeed --include localhost:0,2 --x y")  # fmt: skip
    said = imported(capsys, script)[1]
    assert "swift rollout --torch_dtype float16: give it to the command that trains" in said
