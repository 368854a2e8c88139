"""Where a Python script has its settings, what its branches make of them, and defaults that were others once."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import TRL, imported, refused

HEAD = "from trl import GRPOConfig, GRPOTrainer\n\n\ndef f(completions, **kwargs):\n    return [0.0]\n\n\n"
REST = "GRPOTrainer(model='m', args=args, train_dataset=rows, reward_funcs=f)\n"
ONE = ("--num_processes", 1)
SWIFT = ["--rlhf_type", "grpo", "--dataset", "d", "--reward_funcs", "accuracy", "--per_device_train_batch_size", 8]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.py").write_text("BETA = 0.25\nclass Run:\n    beta: float = BETA * 2\n")
    (tmp_path / "run.yaml").write_text("train: {beta: 0.125, more: {temperature: 0.5}}\nbeta: 0.75\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words", "beta"),
    [
        ("class Run:\n    beta = 0.1\nargs = GRPOConfig(beta=Run.beta)\n", (), 0.1),
        ("@dataclass\nclass Run:\n    rate: float\n    beta: float = field(default=0.2)\nrun = Run(1.0)\n"
         "args = GRPOConfig(beta=run.beta)\n", (), 0.2),
        ("@dataclass\nclass Run:\n    beta: float = 0.2\nrun = Run(beta=0.3)\n"
         "args = GRPOConfig(beta=run.beta)\n", (), 0.3),
        ("class Run:\n    beta = 0.1\nrun = Run()\nrun.beta = 0.5\nargs = GRPOConfig(beta=run.beta)\n", (), 0.5),
        ("@dataclass\nclass Run:\n    beta: float = 0.2\nrun = HfArgumentParser(Run).parse_args_into_dataclasses()[0]\n"
         "args = GRPOConfig(beta=run.beta)\n", ("--beta", "0.4"), 0.4),
        ("@dataclass\nclass Run:\n    beta: float\n(run,) = TrlParser([Run]).parse_args_and_config()\n"
         "args = GRPOConfig(beta=run.beta)\n", ("--config", "run.yaml"), 0.75),
        ("from settings import BETA\nargs = GRPOConfig(beta=BETA)\n", (), 0.25),
        ("import settings as s\nargs = GRPOConfig(beta=s.BETA)\n", (), 0.25),
        ("from settings import Run\nargs = GRPOConfig(beta=Run().beta)\n", (), None),
        ("from settings import Run\nrun = Run()\nargs = GRPOConfig(beta=run.beta)\n", (), 0.5),
        ("cfg = yaml.safe_load(open('run.yaml'))\nargs = GRPOConfig(beta=cfg['train']['beta'])\n", (), 0.125),
        ("with open('run.yaml') as file:\n    cfg = yaml.safe_load(file)\nargs = GRPOConfig(beta=cfg.get('b', 0.3))\n",
         (), 0.3),
        ("def load(path):\n    with open(path) as file:\n        return yaml.safe_load(file)\np = ArgumentParser()\n"
         "p.add_argument('--settings', required=True)\na = p.parse_args()\ncfg = load(a.settings)\n"
         "args = GRPOConfig(**cfg['train']['more'], beta=cfg['beta'])\n", ("--settings", "run.yaml"), 0.75),
    ],
)  # fmt: skip
def test_a_setting_is_read_where_the_script_has_it(
    text: str, words: tuple[str, ...], beta: float | None, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(HEAD + text + REST)
    run, _ = imported(capsys, "train.py", *ONE, *words)
    assert yaml.safe_load(run)["algorithm"].get("beta") == beta


def test_an_option_of_the_scripts_own_that_is_missing_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    flag = "p = ArgumentParser()\np.add_argument('--name', required=True)\na = p.parse_args()\nargs = GRPOConfig()\n"
    Path("train.py").write_text(HEAD + flag + REST.replace("'m'", "a.name"))
    assert "the model is a.name: give --name … behind the file" in refused(capsys, "import-trl", "train.py")


BRANCHES = """
p = ArgumentParser()
p.add_argument("--adapter", default="sft")
p.add_argument("--rank", type=int, default=0)
a = p.parse_args()
base = AutoModelForCausalLM.from_pretrained("m")
if a.adapter:
    model = PeftModel.from_pretrained(base, a.adapter, is_trainable=True)
elif a.rank > 0:
    model = get_peft_model(base, LoraConfig(r=a.rank))
else:
    model = base
args = GRPOConfig()
GRPOTrainer(model=model, args=args, train_dataset=rows, reward_funcs=f)
"""


@pytest.mark.parametrize(
    ("words", "lora"),
    [
        ((), {"r": 16, "dropout": 0.05, "adapter": "sft"}),
        (("--adapter", ""), None),
        (("--adapter", "", "--rank", 4), {"r": 4, "alpha": 8, "dropout": 0.0}),
    ],
)
def test_the_branch_that_the_script_takes_is_read(
    words: tuple[object, ...], lora: dict[str, Any] | None, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(HEAD + BRANCHES)
    run, _ = imported(capsys, "train.py", *ONE, *words)
    assert yaml.safe_load(run)["model"].get("lora") == lora


def test_a_model_that_an_unknown_condition_chooses_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(HEAD + BRANCHES.replace("if a.adapter", "if Path(a.adapter).exists()"))
    _, said = imported(capsys, "train.py", *ONE)
    assert "base in line 19 is one of several for model, by conditions that are not known: it counts" in said


def test_a_configuration_that_a_function_is_given_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(HEAD + "def main(args):\n    " + REST)
    assert "args of GRPOTrainer is args, which is not read" in imported(capsys, "train.py", *ONE)[1]


def test_rewards_that_are_put_into_a_list_count(folder: Path, capsys: pytest.CaptureFixture[str]):
    lists = (
        "def g(completions, **kwargs):\n    return [1.0]\n\n\nfuncs = [f]\nfuncs.append(g)\n"
        "if False:\n    funcs += [h]\n"
    )
    Path("train.py").write_text(HEAD + lists + "args = GRPOConfig()\n" + REST.replace("=f", "=funcs"))
    run, said = imported(capsys, "train.py", *ONE)
    assert yaml.safe_load(run)["reward"]["reward_funcs"] == ["train.py:f", "train.py:g"]
    assert "reward_funcs is funcs with g put into it" in said


def test_what_wandb_is_given_names_the_project(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        HEAD + "import wandb\nwandb.init(project='p', name='n')\nargs = GRPOConfig(run_name='r')\n" + REST
    )
    run, _ = imported(capsys, "train.py", *ONE)
    logging = yaml.safe_load(run)["logging"]
    assert (logging["project"], logging["run_name"]) == ("p", "r")


def test_of_several_commands_the_one_that_trains_is_imported(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(HEAD + "args = GRPOConfig(beta=0.5)\n" + REST)
    Path("all.sh").write_text("python prepare.py --rows 9\naccelerate launch train.py\npython evaluate.py --model m\n")
    run, said = imported(capsys, "all.sh")
    assert yaml.safe_load(run)["algorithm"]["beta"] == 0.5
    assert "left out of the script: python prepare.py …" in said
    Path("all.sh").write_text("python train.py\npython train.py --seed 2\n")
    assert "there are 2 commands trl grpo in it" in refused(capsys, "import-trl", "all.sh")


def test_groups_that_do_not_fit_one_process_ask_for_the_number_of_processes(capsys: pytest.CaptureFixture[str]):
    batch = ["--per_device_train_batch_size", 2, "--num_generations", 6]
    said = refused(capsys, "import-trl", *TRL, *batch)
    assert "the number of processes is not said: give it behind the file, --num_processes 8" in said
    assert "refuse" not in said
    assert "TRL and ms-swift refuse that, too" in refused(capsys, "import-trl", *TRL, *batch, "--num_processes", 1)


def test_ranks_that_share_a_sequence_share_what_theirs_keep_of_it(capsys: pytest.CaptureFixture[str]):
    """The generation batch stays as it is: ms-swift accumulates as many times more."""
    lengths = ["--max_length", 1000, "--max_completion_length", 3000, "--model", "m"]
    command = ("swift", "rlhf", *SWIFT, *lengths, "--sequence_parallel_size")
    run, _ = imported(capsys, "NPROC_PER_NODE=8", *command, 4)
    written = yaml.safe_load(run)
    assert written["deepspeed"]["sequence_parallel_size"] == 4
    assert written["deepspeed"]["tokens_per_micro_batch"] == 8 * 4000 // 4
    assert written["rollout"]["generation_batch_size"] == 8 * 8
    run, said = imported(capsys, "NPROC_PER_NODE=2", *command, 4)
    assert yaml.safe_load(run)["deepspeed"]["sequence_parallel_size"] == 1
    assert "2 processes do not make whole groups of 4" in said


def test_a_script_like_open_r1s_takes_model_prompt_and_held_out_rows_from_its_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(
        HEAD + "parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))\n"
        "script, args, config = parser.parse_args_and_config()\nmodel = get_model(config)\n"
        "data = load_dataset(script.dataset_name)\n\n\ndef talk(row, column=script.dataset_prompt_column):\n"
        "    return {'prompt': made(row[column])}\n\n\ndata = data.map(talk)\n"
        "GRPOTrainer(model=model, args=args, train_dataset=data['train'], reward_funcs=f,\n"
        "            eval_dataset=data['test'] if args.eval_strategy != 'no' else None)\n"
    )
    _, said = imported(
        capsys, "train.py", *ONE, "--model_name_or_path", "m", "--dataset_name", "d", "--dataset_prompt_column", "q"
    )
    for word in ("the model is", "the script changes its rows", "eval_dataset is"):
        assert word not in said


def test_a_script_that_makes_rlhf_arguments_is_read_as_its_command(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("swift_rlhf.py").write_text(
        "os.environ['NPROC_PER_NODE'] = '2'\nargs = RLHFArguments(\n    rlhf_type='grpo', model='m', dataset=['d'],\n"
        "    reward_funcs=['accuracy', 'format'], beta=0.5, log_completions=True, seed=seed(),\n"
        "    per_device_train_batch_size=4)\nargs.temperature = 0.5\nrlhf_main(args)\n"
    )
    run, said = imported(capsys, "swift_rlhf.py", "--beta", "0.25")
    found = yaml.safe_load(run)
    assert (found["algorithm"]["beta"], found["rollout"]["temperature"]) == (0.25, 0.5)
    assert (found["reward"]["reward_funcs"], found["deepspeed"]["nproc_per_node"]) == (["accuracy", "format"], 2)
    assert "seed is seed(): the script computes it; give --seed … behind the file" in said


def test_files_of_an_option_and_of_its_older_name_are_read(folder: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("rewards.py", "data.py"):
        Path(name).touch()
    files = ["--external_plugins", "rewards.py", "--custom_register_path", "data.py"]
    run, said = imported(capsys, *SWIFT, "--model", "m", *files)
    assert "#   grpo-reward serve --plugin rewards.py --plugin data.py &" in run
    assert "is there twice" not in said
    Path("swift_run.yaml").write_text("rlhf_type: grpo\nmodel: m\ncustom_register_path: [data.py]\n")
    assert "--plugin rewards.py --plugin data.py" in imported(capsys, "swift_run.yaml", *SWIFT, *files[:2])[0]


def test_defaults_of_an_older_version_are_named(capsys: pytest.CaptureFixture[str]):
    _, said = imported(capsys, *TRL, "--num_processes", 1, "--max_prompt_length", 9, "--temperature", 1)
    assert "--max_prompt_length is of a TRL before 0.28, whose defaults were others: beta 0.04 before 0.19" in said
    assert "temperature 0.9" not in said
    assert "whose defaults were others" not in imported(capsys, *TRL, "--num_processes", 1)[1]
    for model, is_named in (
        ("Qwen/Qwen3-4B", True),
        ("Qwen/Qwen3-4B-Instruct-2507", False),
        ("Qwen/Qwen2.5-3B", False),
    ):
        _, said = imported(capsys, *SWIFT, "--model", model, "--train_type", "full")
        assert ("ms-swift before 3.12, where a model that may think or not does think" in said) == is_named


def test_pictures_get_smaller_and_what_is_frozen_otherwise_is_named(capsys: pytest.CaptureFixture[str]):
    words = ["--model", "m", "--freeze_vit", "false", "--freeze_aligner", "true", "--tuner_type", "lora"]
    run, said = imported(capsys, "MAX_PIXELS=602112", "FPS_MAX_FRAMES=4", "swift", "rlhf", *SWIFT, *words)
    assert "max_image_pixels: 602112 " in run
    assert "otherwise: FPS_MAX_FRAMES=4: an image is cut as the checkpoint's image processor says" in said
    assert "otherwise: --freeze_vit false: an adapter is on the decoder alone" in said
    assert "train_vision_tower" not in run
    assert "--freeze_aligner true: so it is here" in said
    assert "max_image_pixels: 9 " in imported(capsys, *SWIFT, "--model", "m", "--max_pixels", 9)[0]


@pytest.mark.parametrize(
    ("words", "set", "told"),
    [
        (["--freeze_vit", "false", "--freeze_aligner", "false"], True, ""),
        (["--freeze_vit", "false"], True, "ms-swift's default of freeze_aligner is true: what joins tower and decoder"),
        (["--freeze_aligner", "false"], False, "--freeze_aligner false: what joins tower and decoder stays as it is"),
        (["--freeze_llm", "true"], False, "--freeze_llm true: the decoder is trained"),
    ],
)
def test_a_tower_that_is_trained_there_is_trained(
    words: list[str], set: bool, told: str, capsys: pytest.CaptureFixture[str]
):
    run, said = imported(capsys, *SWIFT, "--model", "m", "--tuner_type", "full", *words)
    assert ("train_vision_tower: true " in run) is set
    assert told in said


@pytest.mark.parametrize(
    ("words", "frozen", "trained", "told"),
    [
        (
            ["--freeze_parameters", "model.embed_tokens", "lm_head", "--freeze_parameters_regex", "norm"],
            [r"^model\.embed_tokens", "^lm_head", "norm"], [], "",
        ),
        (
            ["--freeze_parameters_ratio", "1.0", "--trainable_parameters", "lm_head",
             "--trainable_parameters_regex", "norm"],
            ["."], ["^lm_head", "norm"], "",
        ),
        (["--freeze_parameters_ratio", "0.5"], [], [], "which parameters a share is depends on their sizes"),
        (["--trainable_parameters", "lm_head"], [], [], "nothing is frozen that would be an exception"),
        (["--freeze_parameters", "lm_head", "--tuner_type", "lora"], [], [], "reads it without an adapter alone"),
    ],
)  # fmt: skip
def test_ms_swifts_frozen_parameters_are_regular_expressions(
    words: list[str], frozen: list[str], trained: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    text, said = imported(capsys, "swift", "rlhf", *SWIFT, "--model", "m", "--tuner_type", "full", *words)
    model = yaml.safe_load(text)["model"]
    assert model.get("freeze_parameters_regex", []) == frozen
    assert model.get("trainable_parameters_regex", []) == trained
    assert told in said


@pytest.mark.parametrize(
    ("asked", "name", "told"),
    [
        ("adamw_torch", "adamw", ""),
        ("adamw_8bit", "adamw_8bit", ""),
        ("paged_adamw_8bit", "adamw_8bit", "deepspeed.offload_optimizer keeps it in CPU memory"),
        ("paged_adamw_32bit", "adamw", "deepspeed.offload_optimizer keeps it in CPU memory"),
        ("sgd", "sgd", ""),
        ("lion_8bit", "adamw", "there is no optimizer lion_8bit; there are adamw, adamw_8bit, sgd, and adamw stands"),
        ("adafactor", "adamw", "it needs whole matrices, and ZeRO gives an optimizer flat parts"),
    ],
)
def test_the_optimizer_is_the_one_that_is_asked_for_or_is_named(
    asked: str, name: str, told: str, capsys: pytest.CaptureFixture[str]
):
    text, said = imported(capsys, *TRL, "--num_processes", 1, "--optim", asked, "--adam_beta2", 0.9)
    optimizer = yaml.safe_load(text)["optimizer"]
    assert optimizer["name"] == name
    assert told in said
    assert ("pip install 'grpo-trainer[bitsandbytes]'" in text) == (name == "adamw_8bit")
    assert ("adam_beta2" in optimizer) == (name != "sgd")
    assert ("not needed: --adam_beta2 0.9: sgd does not read it" in said) == (name == "sgd")


def test_lora_plus_has_pefts_name(capsys: pytest.CaptureFixture[str]):
    text, _ = imported(capsys, "swift", "rlhf", *SWIFT, "--model", "m", "--lorap_lr_ratio", 16)
    assert yaml.safe_load(text)["optimizer"]["loraplus_lr_ratio"] == 16
    command = ("swift", "rlhf", *SWIFT, "--model", "m")
    assert "not needed: --lorap_lr_ratio 0: off, as here" in imported(capsys, *command, "--lorap_lr_ratio", 0)[1]
    _, said = imported(capsys, *command, "--train_type", "full", "--lorap_lr_ratio", 16, "--lora_rank", 4)
    for shown in ("--lorap_lr_ratio 16", "--lora_rank 4"):
        assert f"otherwise: {shown}: nothing reads it beside the other options of the command" in said
    assert "did you mean" not in said
