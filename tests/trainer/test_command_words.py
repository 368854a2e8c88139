"""The command line: files and flags in any order, and hints that name flags which exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import yaml

from grpo_trainer.config.command_words import split_words
from grpo_trainer.config.keys import Keys
from grpo_trainer.config.other_names import OTHER_NAMES
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.errors import UsageError

KEYS = Keys(RunConfig, ["dry-run", "resume"])


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    content = {"run_dir": "run", "model": {"name_or_path": "some/model"}, "data": {"dataset": "rows.jsonl"}}
    file.write_text(yaml.safe_dump(content | {"reward": {"reward_funcs": ["format"]}}))
    return file


def read(*argv: object) -> RunConfig:
    return read_config(
        RunConfig,
        [str(word) for word in argv],
        program="grpo-train",
        env_prefix="GRPO_TRAIN__",
        switches=["dry-run", "resume"],
    )


def mistake(*argv: object) -> UsageError:
    with pytest.raises(UsageError) as refused:
        read(*argv)
    return refused.value


def hinted(name: str) -> list[str]:
    hint = mistake(name, "1").hint or ""
    assert hint.startswith("did you mean --"), f"{name}: {hint}"
    return re.findall(r"--([\w.-]+)", hint)


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Every flag, as the help lists it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        read("--help")
    return set(re.findall(r"--([\w.]+)", printed.getvalue()))


def test_flags_may_stand_before_the_run_file(run_file: Path, tmp_path: Path):
    later = tmp_path / "later.yaml"
    later.write_text("seed: 7\n")
    config = read("--rollout.num_generations", "4", run_file, "--rollout.top_k=-0", later, "--weights.port", "9")
    assert (config.rollout.num_generations, config.seed, config.weights.port) == (4, 7, 9)
    assert read("--logging.project=-x=y", run_file).logging.project == "-x=y"


def test_the_last_part_of_every_setting_leads_to_a_flag_that_exists(flags: set[str]):
    assert len(flags) > 150
    assert flags >= KEYS.known
    for key in sorted(KEYS.known):
        last = key.rpartition(".")[2]
        assert set(hinted(f"--{key}x")) <= flags, "a letter too many"
        if last not in KEYS.known:
            found = hinted(f"--{last}")
            assert set(found) <= flags
            assert key in found or len(found) == 3


def test_a_name_of_trl_or_ms_swift_leads_to_the_setting_that_means_the_same(flags: set[str], run_file: Path):
    for name, key in OTHER_NAMES.items():
        assert key in flags
        if name in KEYS.known:
            assert mistake(run_file, f"--{name}", "x").hint == f"did you mean --{key}?"
        else:
            assert hinted(f"--{name}") == hinted(f"--{name.replace('_', '-')}") == [key]
    lasts = {known.rpartition(".")[2] for known in KEYS.known}
    assert not {name for name in OTHER_NAMES if name in lasts} - {"model", "deepspeed"}, "one of ours has that name"


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("--num_generations", "rollout.num_generations"),
        ("--num-generations", "rollout.num_generations"),
        ("--num_generation", "rollout.num_generations"),
        ("--rollout.num-generations", "rollout.num_generations"),
        ("--optimizer.lr", "optimizer.learning_rate"),
        ("--Temperature", "rollout.temperature"),
        ("-lr", "optimizer.learning_rate"),
        ("--dry_run", "dry-run"),
        ("--dryrun", "dry-run"),
        ("--resume_from_checkpoint", "resume"),
        ("--trainer.max_steps", "max_steps"),
    ],
)
def test_the_hint_of_a_flag(name: str, flag: str):
    assert hinted(name) == [flag]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed"], r"the flag --seed has no value \(write --seed VALUE"),
        (["--model.gradient_checkpointing", "--seed", "1"], "the flag --model.gradient_checkpointing has no value"),
        (["--reward.params.format", "{}"], r"unknown flag .*JSON: --reward\.params '\{\"format\": …\}'"),
        (["--data.datasets.math.ratio", "1"], r"unknown flag .*JSON: --data\.datasets '\{\"math\": …\}'"),
        (["--model", "Qwen/Qwen3"], r"--model is a section .*did you mean --model\.name_or_path\?"),
        (["--optimizer", "adamw"], r"--optimizer is a section of settings, and adamw is none \(did you mean --opti"),
        (["rollout.num_generations=8"], r"is no file \(a setting is a flag: --rollout\.num_generations 8"),
        (["num_generations=8"], r"is no file \(.*did you mean --rollout\.num_generations\?"),
        (["more.yaml"], r"more\.yaml: No such file .*\(what is no flag is a YAML file"),
        (["--data.system", "\udcff"], r"\\udcff is not UTF-8 text"),
    ],
)  # fmt: skip
def test_words_that_are_no_settings_are_refused(run_file: Path, words: list[str], message: str):
    assert re.search(message, str(mistake(run_file, *words)))


def test_a_key_of_a_file_gets_the_same_hints_and_those_of_named_datasets_their_own_name(tmp_path: Path):
    def hint_for(content: dict[str, object]) -> str:
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
        return str(mistake(tmp_path / "run.yaml"))

    assert "num_generations: unknown key; did you mean rollout.num_generations?" in hint_for({"num_generations": 8})
    assert "val_dataset: unknown key; did you mean data.eval_dataset?" in hint_for({"val_dataset": "x"})
    assert "Rollout: unknown key; did you mean rollout?" in hint_for({"Rollout": {}, "rollout": {}})
    sets = {"math": {"dataset": "x", "ratio": 1, "promt_column": "q"}}
    said = hint_for({"data": {"datasets": sets}})
    assert "data.datasets.math.promt_column: unknown key; did you mean data.datasets.math.prompt_column?" in said


@pytest.mark.parametrize("words", [["--run_dir="], ["--run_dir", ""]])
def test_a_flag_with_an_empty_value_is_refused(words: list[str]):
    """As of a variable of a shell that is not set: the run would train with another value than the command says."""
    with pytest.raises(UsageError, match=r"the flag --run_dir has an empty value .*--run_dir null takes a value back"):
        split_words(words, KEYS)
