"""A script or notebook that calls TRL's GRPOTrainer: what it says becomes settings, the rest is named, nothing runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import imported, refused, setting

from grpo_trainer.config.run_config import RunConfig

SCRIPT = """
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward
from my.rewards import polite as kind

open("was_run", "w")
MODEL, OUT = "Qwen/Qwen2.5-3B-Instruct", "out"
LONGEST = 1024
SYSTEM = ("You think first. "
          "Then you answer.")


def rows(split="train"):
    data = load_dataset("openai/gsm8k", "main", split="train[:500]")
    return data.map(lambda row: {"prompt": [{"role": "system", "content": SYSTEM},
                                            {"role": "user", "content": row["question"]}], "answer": row["answer"]})


def short(completions, **kwargs):
    return [0.0 for _ in completions]


config = GRPOConfig(
    output_dir=f"{OUT}/{MODEL}", learning_rate=1e-6, num_generations=4, per_device_train_batch_size=2 * 2,
    max_completion_length=LONGEST - 256, lr_scheduler_type="cosine_with_min_lr",
    lr_scheduler_kwargs={"min_lr_rate": 0.1}, report_to=["wandb"], max_steps=len(range(9)),
    mask_truncated_completions=True, **more,
)
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
trainer = GRPOTrainer(
    model=model, args=config, train_dataset=rows(), reward_funcs=[short, think_format_reward, kind, lambda c: c],
    peft_config=LoraConfig(r=64, target_modules=["q_proj"]), processing_class=AutoTokenizer.from_pretrained(MODEL),
    callbacks=[print],
)
trainer.train()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my/rewards.py").write_text(
        "def polite(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
    )
    return tmp_path


def test_what_a_script_gives_to_the_trainer_becomes_settings(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(SCRIPT)
    text, said = imported(capsys, "train.py", "--num_processes", 2)
    run: dict[str, Any] = yaml.safe_load(text)
    assert not Path("was_run").exists()
    assert run["run_dir"] == "out/Qwen/Qwen2.5-3B-Instruct"
    assert run["model"] == {
        "name_or_path": "Qwen/Qwen2.5-3B-Instruct", "dtype": "bfloat16", "attn_implementation": "sdpa",
        "gradient_checkpointing": True, "lora": {"r": 64, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj"]},
    }  # fmt: skip
    data = {"dataset": "openai/gsm8k:main#500", "split": "train", "prompt_column": "question"}
    assert data.items() <= run["data"].items()
    assert run["data"]["system"] == "You think first. Then you answer."
    assert run["reward"]["reward_funcs"] == ["train.py:short", "regex", "my/rewards.py:polite"]
    assert (run["rollout"]["generation_batch_size"], run["rollout"]["max_completion_length"]) == (8, 768)
    assert run["optimizer"]["lr_scheduler_kwargs"] == {"min_lr_rate": 0.1}
    assert "--plugin train.py --plugin my/rewards.py &" in text
    for named in (
        "GRPOConfig(max_steps=…) is len(range(9)): the script computes it",
        "GRPOConfig gets more by **more, which is not read",
        "reward lambda c: c is no function that a file has by a name: it is left out",
        "the reward server imports train.py, which would train there: put short into a file of their own",
        "callbacks of GRPOTrainer: hooks of your own are `callbacks`",
    ):
        assert f"otherwise: {named}" in said, named
        assert " ".join(f"- {named}".split()) in " ".join(text.replace("\n# ", " ").split()), named


@pytest.mark.parametrize("behind", ["if __name__ == '__main__':", "def main():"])
def test_a_script_that_trains_only_when_it_is_started_can_be_imported(
    behind: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    head, trainer = SCRIPT.split("config = ", 1)
    indented = "\n".join(f"    {line}" for line in f"config = {trainer}".splitlines())
    Path("train.py").write_text(f"{head}{behind}\n{indented}\n")
    text, said = imported(capsys, "train.py")
    assert "train.py:short" in text
    assert "which would train there" not in said
    assert "accelerate starts one for each GPU of the machine" in said


def test_a_notebook_is_read_without_its_commands(folder: Path, capsys: pytest.CaptureFixture[str]):
    codes = [
        "%%capture\nimport os\nif 'COLAB_' in os.environ:\n    !pip install trl \\\n        vllm\n"
        "else:\n    %pip install trl\n",
        "%%bash\nfor i in 1 2; do echo $i; done\n",
        "files = !ls\n%matplotlib inline\n",
        SCRIPT.replace('("You think first. "\n', '("""You think:\n!a\n""" '),
    ]
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "source": ["no code ("]}]
    cells += [{"cell_type": "code", "source": code.splitlines(keepends=True)} for code in codes]
    Path("train.ipynb").write_text(json.dumps({"cells": cells}))
    text, said = imported(capsys, "train.ipynb")
    run = yaml.safe_load(text)
    assert run["reward"]["reward_funcs"][0] == "train.py:short"
    assert run["data"]["system"] == "You think:\n!a\nThen you answer."
    assert "write short into train.py, for the reward server" in said


def test_options_that_a_script_takes_stand_behind_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))\n"
        "script, args, model = parser.parse_args_and_config()\n"
        "def short(completions, **kwargs): return [0.0 for _ in completions]\n"
        "def main():\n    data = load_dataset('d', split='train')\n"
        "    GRPOTrainer(model=model.model_name_or_path, args=args, train_dataset=data, reward_funcs=short).train()\n"
    )
    Path("train.sh").write_text("accelerate launch --num_processes 2 train.py --model_name_or_path m --beta 0.5\n")
    run = yaml.safe_load(imported(capsys, "train.sh")[0])
    assert (run["model"]["name_or_path"], run["algorithm"]["beta"], run["data"]["dataset"]) == ("m", 0.5, "d")
    assert run["reward"]["reward_funcs"] == ["train.py:short"]
    said = refused(capsys, "import-trl", "train.py")
    assert "--model_name_or_path is missing" in said
    assert "the script reads TRL's options from its command line: give them behind it" in said


def test_a_script_without_options_is_started_by_accelerate(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(SCRIPT)
    Path("train.sh").write_text("export CUDA_VISIBLE_DEVICES=0,1\naccelerate launch train.py\n")
    run = yaml.safe_load(imported(capsys, "train.sh")[0])
    assert (run["deepspeed"]["nproc_per_node"], run["rollout"]["num_generations"]) == (2, 4)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('no trainer')\n", "there is no command trl grpo in it"),
        (SCRIPT + SCRIPT, "train.py makes 2 GRPOTrainer, and a run file is one run"),
        ("def broken(:\n", "train.py is no Python: "),
        (
            "x = x + 'a'\nGRPOTrainer(model=x, train_dataset=y, reward_funcs='m')\n",
            "the model is x: the script computes",
        ),
        ("GRPOTrainer(model='m', reward_funcs=make())\n", "reward make() is no function that a file has by a name"),
        (
            "funcs = [f]\nfuncs.insert(0, g)\nGRPOTrainer('m', funcs, train_dataset=y)\n",
            "reward_funcs is funcs, which the script makes in several places",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    script: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(script)
    assert message in refused(capsys, "import-trl", "train.py")


REST = "GRPOTrainer(model='m', args=args, train_dataset=load_dataset('d', split='train'), reward_funcs='r')\n"
ROWS = "GRPOTrainer(model='m', reward_funcs='r', train_dataset=data, eval_dataset=held_out)\n"
LOAD = "from_pretrained('m', {})\nGRPOTrainer(model=model, train_dataset=load_dataset('d'), reward_funcs='r'{})\n"


@pytest.mark.parametrize(
    ("script", "settings", "named"),
    [
        # Find the configuration wherever it is made, and what changes it.
        ("args = GRPOConfig(beta=0.5)\nargs.beta = 0.25\nargs.epsilon = f()\n" + REST,
         {"algorithm.beta": 0.25}, "args.epsilon is f(): the script computes it"),
        ("from trl import GRPOConfig as Cfg\nclass Mine(Cfg): pass\nargs = Cfg(beta=0.5)\n" + REST,
         {"algorithm.beta": 0.5}, ""),
        ("class Mine(GRPOConfig): pass\nargs = Mine(beta=0.5)\n" + REST, {"algorithm.beta": 0.5}, ""),
        ("class T:\n  def __init__(self):\n    self.args = GRPOConfig(beta=0.5)\n  def go(self):\n    "
         + REST.replace("=args", "=self.args"), {"algorithm.beta": 0.5}, ""),
        ("if (args := GRPOConfig(beta=0.5)): pass\n" + REST, {"algorithm.beta": 0.5}, ""),
        ("args = make()\n" + REST, {}, "args of GRPOTrainer is args, which is not read: TRL's defaults stand"),
        ("if x:\n  args = GRPOConfig(beta=1.0)\nelse:\n  args = GRPOConfig(beta=0.5)\n" + REST,
         {"algorithm.beta": 0.5}, "args is made in several places: what line 4 says is read"),
        # A name that something else changes has no value.
        ("b = 0.5\nb *= 2\nargs = GRPOConfig(beta=b)\n" + REST, {}, "GRPOConfig(beta=…) is b: the script computes it"),
        ("b = 0.5\ndef go(b):\n  args = GRPOConfig(beta=b)\n  " + REST, {}, "GRPOConfig(beta=…) is b: the script"),
        ("class A:\n  b: float = 1.0\nb = 0.5\nargs = GRPOConfig(beta=b)\n" + REST, {"algorithm.beta": 0.5}, ""),
        ("b = {'x': 0.5}\nb['x'] = 1.0\nargs = GRPOConfig(beta=b['x'])\n" + REST, {}, "GRPOConfig(beta=…) is b['x']"),
        # Know what a few operations make.
        ("n = 'a/b'\nm = None\nargs = GRPOConfig(n.split('/')[-1] + '-out', beta=m or float('0.5'), "
         "epsilon=0.1 if n != 'x' else f(), run_name=str(n) if not m else n, max_steps=int(9.0))\n" + REST,
         {"run_dir": "b-out", "algorithm.beta": 0.5, "algorithm.epsilon": 0.1, "max_steps": 9}, ""),
        ("import os\nargs = GRPOConfig(beta=float(os.environ.get('BETA', '0.5')), seed=os.getenv('SEED'))\n" + REST,
         {"algorithm.beta": 0.5}, "the script reads BETA of the environment: its defaults stand here"),
        ("more = dict(beta=0.5)\nmore['epsilon'] = 0.1\nargs = GRPOConfig(**more)\n" + REST,
         {"algorithm.beta": 0.5}, "more is changed before GRPOConfig gets it: line 1 is read"),
        ("args = GRPOConfig(**{'beta': 0.5, 'epsilon': f()})\n" + REST,
         {"algorithm.beta": 0.5}, "GRPOConfig(epsilon=…) is f(): the script computes it"),
        ("args = GRPOConfig(**make())\n" + REST, {}, "GRPOConfig gets more by **make(), which is not read"),
        ("args = GRPOConfig(beta=..., run_name=b'x', max_steps=9 ** 2)\n" + REST, {}, "GRPOConfig(run_name=…) is b'x'"),
        ("args = GRPOConfig(num_generations=8)\nargs.num_generations *= 2\n" + REST,
         {}, "args.num_generations is: the script computes it"),
        ("args = GRPOConfig()\nif DEBUG:\n  args.max_steps = 10\n" + REST,
         {"max_steps": 10}, "args.max_steps is 10 under a condition: it counts here"),
        ("args = GRPOConfig(beta=0.5)\nargs = replace(args, beta=0.25)\n" + REST,
         {"algorithm.beta": 0.5}, "args is replace(args, beta=0.25) at last: line 1 is read"),
        ("os.environ['B'] = '0.9'\nargs = GRPOConfig(beta=float(os.environ.get('B', '0.5')))\n" + REST,
         {}, "GRPOConfig(beta=…) is float(os.environ.get('B', '0.5')): the script computes it"),
        ("args = GRPOConfig(**{**base, 'beta': 0.5, K: 4})\n" + REST,
         {"algorithm.beta": 0.5}, "GRPOConfig gets more by base in line 1, which is not read"),
        ("args = GRPOConfig(**dict(base, beta=0.5))\n" + REST,
         {"algorithm.beta": 0.5}, "GRPOConfig gets more by base in line 1"),
        ("more = {'beta': 0.5}\ndel more['beta']\nargs = GRPOConfig(**more)\n" + REST, {}, "more is changed before"),
        ("more = {'beta': 0.5}\ndef go(**more):\n  args = GRPOConfig(**more)\n  " + REST, {}, "more is changed"),
        ("args = GRPOConfig(max_steps=int(float('inf')))\n" + REST, {}, "GRPOConfig(max_steps=…) is int("),
        ("s0 = 'ab'\n" + "".join(f"s{n + 1} = s{n} + s{n}\n" for n in range(40)) + "args = GRPOConfig(run_name=s40)\n"
         + REST, {}, "GRPOConfig(run_name=…) is s40: the script computes it"),
        # The rows.
        ("data = load_dataset('a', split='cot')\ndata = load_dataset('b', 'en', split='train[:9]')\n"
         "data = data.shuffle()\nheld_out = load_dataset('c', split='test')\n" + ROWS,
         {"data.dataset": "b:en#9", "data.split": "train"}, ""),
        ("def main():\n  def ask(row): return {'prompt': [{'role': 'user', 'content': row['q']}]}\n"
         "  data, held_out = load_dataset('d', split=['train[:9]', 'test[:5%]'])\n  data = data.map(ask)\n  " + ROWS,
         {"data.dataset": "d#9", "data.prompt_column": "q"}, "of test all rows are read, not [:5%]"),
        ("raw = load_dataset(path='d')\ndata = raw['train_sft']\nheld_out = None\n" + ROWS,
         {"data.split": "train_sft"}, ""),
        ("data = concatenate_datasets([load_dataset('a'), load_dataset('b')])\nheld_out = {'x': data}\n" + ROWS,
         {"data.dataset": "rows.jsonl"}, "data is of 2 datasets: write them as data.datasets"),
        ("data = load_from_disk('folder').map(lambda x: {'prompt': [{'role': 'user', 'content': x['q']}], "
         "'answer': cut(x['answer'])})\nheld_out = 0\n" + ROWS,
         {"data.dataset": "folder", "data.prompt_column": "q"}, "the column answer is cut(x['answer']) of a row"),
        ("data = load_dataset('json', data_files={'train': 'a.jsonl'})\ndata = data.rename_column('q', 'prompt')\n"
         "held_out = 0\n" + ROWS,
         {"data.dataset": "a.jsonl"}, "the script changes its rows, by rename_column('q')"),
        # The model.
        ("model = AutoModel." + LOAD.format("quantization_config=BitsAndBytesConfig(load_in_4bit=True), revision='x'",
                                            ", peft_config=LoraConfig(r=8, bias='all')"),
         {"model.load_in_4bit": True, "model.lora.r": 8}, "LoraConfig(bias=…) is 'all': there is no such setting here"),
        ("model, tokenizer = FastLanguageModel.from_pretrained(model_name='m', max_seq_length=9)\n"
         "model = FastLanguageModel.get_peft_model(model, r=4)\ntokenizer.chat_template = '{{ messages }}'\n"
         "GRPOTrainer(model=model, train_dataset=load_dataset('d'), reward_funcs='r', processing_class=tokenizer)\n"
         "model = PeftModel.from_pretrained(base, 'adapter')\n",
         {"model.name_or_path": "models/m-nf4", "model.load_in_4bit": True, "model.lora.alpha": 16,
          "model.chat_template": "{{ messages }}"}, ""),
        ("from unsloth import FastLanguageModel\nmodel, _ = FastLanguageModel.from_pretrained('m', load_in_4bit=False, "
         "max_seq_length=2048, gpu_memory_utilization=0.7)\n"
         "args = GRPOConfig(num_generations=4, per_device_train_batch_size=1, gradient_accumulation_steps=2, "
         "max_completion_length=1024, "
         "vllm_sampling_params=SamplingParams(min_p=0.1, top_p=None, seed=3, stop=['x']))\n"
         "GRPOTrainer(model=model, args=args, train_dataset=load_dataset('d'), reward_funcs='r')\n",
         {"rollout.min_p": 0.1, "rollout.generation_batch_size": 8, "data.max_prompt_length": 1024},
         "per_device_train_batch_size 1 is 4, which Unsloth makes of it"),
        ("config = ModelConfig(model_name_or_path='m', torch_dtype='float32', use_peft=True, lora_r=4)\n"
         "GRPOTrainer(model=config.model_name_or_path, train_dataset=load_dataset('d'), reward_funcs='r', "
         "peft_config=get_peft_config(config))\n",
         {"model.name_or_path": "m", "model.lora.r": 4}, ""),
    ],
)  # fmt: skip
def test_what_people_write(
    script: str, settings: dict[str, Any], named: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(script)
    text, said = imported(capsys, "train.py", "--num_processes", 1)
    run = RunConfig.model_validate(yaml.safe_load(text))
    for name, value in settings.items():
        assert setting(run, name) == value, name
    assert named in said


def test_rewards_keep_their_weights(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "import my.rewards as mine\nasync def f(**k): pass\ndef g(**k): pass\ndef main():\n  def inner(**k): pass\n"
        "  GRPOTrainer('m', [f, 'some/model', inner, mine.polite, partial(g, k=2)], reward_weights=[1, 2, 3, 4, 5],"
        " train_dataset=load_dataset('d'))\n"
    )
    text, said = imported(capsys, "train.py", "--num_processes", 1)
    reward = yaml.safe_load(text)["reward"]
    assert reward["reward_funcs"] == ["reward_model", "train.py:f", "my/rewards.py:polite", "train.py:g"]
    assert reward["reward_weights"] == [2.0, 1.0, 4.0, 5.0]
    assert "reward inner is no function that a file has by a name" in said
    assert "reward partial(g, k=2): its arguments are reward.params" in said


def test_a_reward_that_is_made_when_the_script_runs_is_taken_by_its_name_or_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(
        "def make(scale):\n  def f(completions, **k): return [scale] * len(completions)\n  return f\n"
        "short = make(0.5)\ncut = partial(own, x=1)\nfirm = lambda completions, **k: [1.0]\n"
        "def main():\n  inner = make(2)\n"
        "  GRPOTrainer('m', [short, inner, make(0.1), firm, lambda completions: [1.0], cut],"
        " args=GRPOConfig(reward_weights=[1, 2, 3, 4, 5, 6]), train_dataset=load_dataset('d'))\n"
    )
    text, said = imported(capsys, "train.py", "--num_processes", 1)
    reward = yaml.safe_load(text)["reward"]
    assert reward["reward_funcs"] == ["train.py:short", "train.py:firm", "train.py:cut"]
    assert reward["reward_weights"] == [1.0, 4.0, 6.0]
    assert "reward inner is no function that a file has by a name: make is called when the script runs" in said
    assert "write NAME = make(0.1) at the top level of a file, name FILE.py:NAME in reward.reward_funcs" in said
    assert "it is left out; write it as a function of a file" in said


def test_several_reward_models_of_a_script_keep_their_weights(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "def f(**k): pass\nSECOND = 'b/two'\n"
        "judge = AutoModelForSequenceClassification.from_pretrained('c/three', num_labels=1)\n"
        "GRPOTrainer('m', ['a/one', f, SECOND, judge], args=GRPOConfig(reward_weights=[1, 2, 3, 4]),"
        " train_dataset=load_dataset('d'))\n"
    )
    text, _ = imported(capsys, "train.py", "--num_processes", 1)
    reward = yaml.safe_load(text)["reward"]
    assert reward["reward_funcs"] == ["one", "two", "three", "train.py:f"]
    assert reward["reward_weights"] == [1.0, 3.0, 4.0, 2.0]
    assert "--reward-model one=a/one two=b/two three=c/three" in text


def test_variables_of_the_environment_are_read_where_they_stand(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text("args = GRPOConfig(beta=float(os.environ.get('BETA', '0.5')))\n" + REST)
    Path("train.sh").write_text("BETA=0.25 python train.py\n")
    text, said = imported(capsys, "train.sh")
    assert yaml.safe_load(text)["algorithm"]["beta"] == 0.25
    assert "BETA" not in said


def test_flags_of_the_script_are_read_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "p = ArgumentParser()\np.add_argument('--lr', type=float, default=5e-6)\n"
        "p.add_argument('-b', '--beta', default=0.1)\np.add_argument('--model', default='small')\na = p.parse_args()\n"
        "args = GRPOConfig(learning_rate=a.lr, beta=a.beta, weight_decay=other.lr)\n" + REST.replace("'m'", "a.model")
    )
    Path("train.sh").write_text("accelerate launch --num_processes 2 train.py --lr 1e-5 --model Qwen/big\n")
    text, said = imported(capsys, "train.sh")
    run = yaml.safe_load(text)
    assert (run["model"]["name_or_path"], run["optimizer"]["learning_rate"], run["algorithm"]["beta"]) == (
        "Qwen/big",
        1e-5,
        0.1,
    )
    assert "GRPOConfig(weight_decay=…) is other.lr: the script computes it" in said
    assert "no option of TRL" not in said


@pytest.mark.parametrize(
    ("flag", "value", "words", "found"),
    [
        ("'--small', action='store_true'", "0.1 if a.small else 0.5", (), 0.5),
        ("'--small', action='store_true'", "0.1 if a.small else 0.5", ("--small",), 0.1),
        ("'--large', dest='small', action='store_false'", "0.1 if a.small else 0.5", (), 0.1),
        ("'--tag', type=str", "0.1 if a.tag == '7' else 0.5", ("--tag", "7"), 0.1),
        ("'--tag'", "0.1 if a.tag is None else 0.5", (), 0.1),
        ("'--tag', type=float, default='0.1'", "a.tag", (), 0.1),
        ("'--tag', type=truth, default='false'", "0.1 if a.tag else 0.5", (), None),
        ("'--tag', nargs='+', default=0.1", "a.tag", (), 0.1),
        ("'--tag', nargs='+', default=0.1", "a.tag", ("--tag", "1", "2"), None),
        ("'--tag', required=True", "0.1 if a.tag else 0.5", (), None),
    ],
)
def test_a_flag_has_the_value_that_its_parser_gives_it(
    flag: str, value: str, words: tuple[str, ...], found: float | None, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(
        f"p = ArgumentParser()\np.add_argument({flag})\na = p.parse_args()\nargs = GRPOConfig(beta={value})\n{REST}"
    )
    text, said = imported(capsys, "train.py", "--num_processes", 1, *words)
    assert yaml.safe_load(text)["algorithm"].get("beta") == found
    assert ("write its value into the run file" in said) == (found is None)
