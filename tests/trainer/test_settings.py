"""The run file: precedence, and one readable message for every mistake."""

import json
from pathlib import Path

import pytest
import yaml

from grpo_trainer.config.doubts import doubts
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config, write_resolved
from grpo_trainer.errors import UsageError

MINIMAL = {
    "run_dir": "runs/test",
    "model": {"name_or_path": "some/model"},
    "data": {"dataset": "rows.jsonl"},
    "reward": {"reward_funcs": ["countdown", "format"]},
}

TWO_SERVERS = ("--rollout.urls", '["http://127.0.0.1:8000", "http://127.0.0.1:8002"]')


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    return file


def read(*argv: object) -> RunConfig:
    return read_config(RunConfig, [str(word) for word in argv], program="grpo-train", env_prefix="GRPO_TRAIN__")


def test_an_empty_variable_says_nothing(run_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_TRAIN__LOGGING__OTLP_ENDPOINT", "")
    monkeypatch.setenv("GRPO_TRAIN__OPTIMIZER__LEARNING_RATE", "")
    assert read(run_file) == read_without(run_file, monkeypatch)


def read_without(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.delenv("GRPO_TRAIN__LOGGING__OTLP_ENDPOINT")
    monkeypatch.delenv("GRPO_TRAIN__OPTIMIZER__LEARNING_RATE")
    return read(run_file)


@pytest.mark.parametrize(("flags", "groups"), [((), 16), (("--rollout.prompts_per_request", 3), 3), (TWO_SERVERS, 8)])
def test_a_request_is_a_quarter_of_a_servers_share_of_the_batch(flags: tuple[object, ...], groups: int, run_file: Path):
    assert read(run_file, "--rollout.generation_batch_size", 512, *flags).rollout.groups_per_request == groups


def test_a_batch_smaller_than_that_is_requested_group_by_group(run_file: Path):
    assert read(run_file, "--rollout.generation_batch_size", 16).rollout.groups_per_request == 1


def test_a_later_file_wins_over_an_earlier_one_section_by_section(run_file: Path, tmp_path: Path):
    later = tmp_path / "later.yaml"
    later.write_text("optimizer: {learning_rate: 0.5}\nmodel: {dtype: float32}\n")
    config = read(run_file, later)
    assert config.optimizer.learning_rate == 0.5
    assert (config.model.name_or_path, config.model.dtype) == ("some/model", "float32")


def test_environment_wins_over_files_and_flags_over_both(run_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_TRAIN__OPTIMIZER__LEARNING_RATE", "0.25")
    monkeypatch.setenv("GRPO_TRAIN__ALGORITHM__BETA", "0.1")
    config = read(run_file, "--optimizer.learning_rate", "0.125")
    assert (config.optimizer.learning_rate, config.algorithm.beta) == (0.125, 0.1)


def test_a_choice_between_numbers_is_taken_from_a_flag(run_file: Path):
    assert read(run_file, "--deepspeed.zero_stage", "3").deepspeed.zero_stage == 3


def test_lists_are_written_as_json_or_with_commas(run_file: Path):
    assert read(run_file, "--rollout.urls", "http://a:1,http://b:2").rollout.urls == ["http://a:1", "http://b:2"]
    assert read(run_file, "--reward.reward_weights", "[1, 0.1]").reward.reward_weights == [1.0, 0.1]


def test_in_the_environment_too(run_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_TRAIN__LOGGING__REPORT_TO", "wandb")
    monkeypatch.setenv("GRPO_TRAIN__ROLLOUT__URLS", '["http://a:1", "http://b:2"]')
    monkeypatch.setenv("GRPO_TRAIN__REWARD__REWARD_WEIGHTS", "1, 0.1")
    monkeypatch.setenv("GRPO_TRAIN__REWARD__PARAMS", '{"countdown": {"x": 1}}')
    config = read(run_file, "--reward.reward_funcs", "countdown,format")
    assert config.logging.report_to == ["wandb"]
    assert config.rollout.urls == ["http://a:1", "http://b:2"]
    assert config.reward.reward_weights == [1.0, 0.1]
    assert config.reward.params == {"countdown": {"x": 1}}
    monkeypatch.setenv("GRPO_TRAIN__REWARD__PARAMS", "x=1")
    with pytest.raises(UsageError, match="params: 'x=1' in the environment is not JSON"):
        read(run_file)


def test_a_reward_may_name_its_file(run_file: Path):
    flags = ["--reward.params", '{"mine": {"x": 1}}']
    reward = read(run_file, "--reward.reward_funcs", "countdown,rewards/my.py:mine", *flags).reward
    assert (reward.names, reward.files) == (["countdown", "mine"], {"mine": Path("rewards/my.py")})
    with pytest.raises(UsageError, match="a name twice: mine, mine"):
        read(run_file, "--reward.reward_funcs", "mine,my.py:mine")


def mixture(*, dataset: str | None = None, **ratios: float) -> list[str]:
    sets = {name: {"dataset": dataset or name, "ratio": ratio} for name, ratio in ratios.items()}
    return ["--data.dataset", "null", "--data.datasets", json.dumps(sets)]


def test_ratios_may_be_thirds_with_six_digits(run_file: Path):
    config = read(run_file, *mixture(a=0.333333, b=0.333333, c=0.333333))
    assert list(config.data.datasets) == ["a", "b", "c"]


TAUGHT = ["--teacher.url", "http://127.0.0.1:8010"]
UNCORRECTED = ["--algorithm.importance_sampling_correction", "false"]


def test_a_run_with_a_teacher_needs_no_rewards(run_file: Path):
    config = read(run_file, *TAUGHT, "--reward.reward_funcs", "[]", "--data.eval_dataset", "a")
    assert (config.reward.names, config.reward.weights, config.teachers[""].coef) == ([], {}, 1.0)
    assert config.evaluation_metrics == ["eval_completions/mean_length"]


def two_datasets(**more: dict[str, object]) -> list[str]:
    """The flags of a run on the datasets a and b, with these settings of theirs."""
    sets = {name: {"dataset": name, "ratio": 0.5} | more.get(name, {}) for name in ("a", "b")}
    return ["--data.dataset", "null", "--data.datasets", json.dumps(sets)]


OWN_TEACHER = {"teacher": {"url": "http://127.0.0.1:8020", "coef": 0.5}}


def test_a_dataset_has_its_own_teacher_that_of_the_run_or_none(run_file: Path):
    urls = {name: teacher.url for name, teacher in read(run_file, *two_datasets(a=OWN_TEACHER)).teachers.items()}
    assert urls == {"a": "http://127.0.0.1:8020"}
    both = read(run_file, *TAUGHT, *two_datasets(a=OWN_TEACHER | {"rewards": {}})).teachers
    assert {name: (teacher.url, teacher.coef) for name, teacher in both.items()} == {
        "a": ("http://127.0.0.1:8020", 0.5),
        "b": ("http://127.0.0.1:8010", 1.0),
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--optimizer.learning_rat", "1"], r"unknown flag --optimizer\.learning_rat .*--optimizer\.learning_rate"),
        (["--learning_rate", "1"], r"did you mean --optimizer\.learning_rate"),
        (["—seed", "1"], r"—seed begins with U\+2014 \(em dash\), and a flag with two hyphens.*did you mean --seed\?"),
        (["--optimizer.learning_rate", "fast"], r"optimizer\.learning_rate: .*number.*'fast'"),
        (["--rollout.num_generations", "7"], r"num_generations 7 does not divide .* 512; take 511 or 518"),
        (["--algorithm.steps_per_generation", "3"], r"steps_per_generation 3 does not divide"),
        (["--reward.reward_weights", "[1]"], r"1 reward_weights for 2 reward_funcs"),
        (["--algorithm.loss_type", "ppo"], r"algorithm\.loss_type: .*'grpo'.*'dapo'"),
        (["--data.eval_dataset", "a", "--data.eval_datasets", '{"b": {"dataset": "b"}}'], r"make data\.eval_dataset a"),
        (["--data.eval_datasets", '{"a": {"dataset": "a", "pass_at": [1, 4]}}'], r"a\.num_generations to 4 or more"),
        (["--data.eval_datasets", '{"a/b": {"dataset": "a"}}'], r"eval_datasets\.a/b.*pattern"),
        (["--data.dataset", "null"], r"data\.dataset is missing: .* several sets in data\.datasets"),
        (["--data.datasets", '{"b": {"dataset": "b", "ratio": 1}}'], r"make data\.dataset \S+ one of data\.datasets"),
        (mixture(a=0.5, b=0.4), r"add up to 0\.9 and have to add up to 1: a 0\.5, b 0\.4"),
        (mixture(a=0.0, b=1.0), r"data\.datasets\.a\.ratio: .*greater than 0"),
        (mixture(a=0.5, b=0.5, dataset="x"), r"datasets\.a and data\.datasets\.b are the same rows .* the ratio 1 "),
        (mixture(**{"a b": 1.0}), r"datasets\.a b.*pattern"),
        (
            ["--data.eval_datasets", '{"a": {"dataset": "a", "rewards": {"accuracy": 1}}}'],
            r"the dataset eval/a .* accuracy is none of the reward\.reward_funcs countdown, format; add it there",
        ),
        (["--checkpoint.patience", "3"], r"patience needs checkpoint\.metric_for_best"),
        (["--guards.kl", "rollback", "--checkpoint.save_steps", "0"], r"guards\.kl rollback .* set it above 0"),
        (["--checkpoint.metric_for_best", "eval_accuracy"], r"needs an evaluation; set data\.eval_dataset or"),
        (["--data.eval_dataset", "a", "--checkpoint.metric_for_best", "eval_x"], r"known are eval_accuracy, eval_gre"),
        (["--rollout.temperature", "0"], r"rollout\.temperature: .*greater than or equal to 0\.01"),
        (["--reward.reward_funcs", "[]"], r"reward_funcs is empty: name a reward, or set teacher\.url"),
        ([*TAUGHT, "--rollout.temperature", "0.7"], r"temperature 0\.7: a teacher's logprobs are of temperature 1"),
        ([*TAUGHT, *UNCORRECTED, "--rollout.top_k", "5"], r"rollout\.top_k 5: a teacher's logprobs"),
        (
            ["--teacher.url", "http://127.0.0.1:8000/"],
            r"teacher\.url http://127\.0\.0\.1:8000/ is one of rollout\.urls",
        ),
        (
            [*TAUGHT, "--teacher.only", "true", "--data.difficulty", "{}"],
            r"data\.difficulty looks at rewards, which teach nothing with teacher\.only true",
        ),
        (
            [*TAUGHT, "--teacher.only", "true", "--algorithm.dynamic_sampling", "true"],
            r"nothing with teacher\.only true",
        ),
        (["--callbacks_params", '{"B": {}}', "--callbacks", "a.py:A"], r"params\.B is none of the callbacks: A"),
        (
            ["--callbacks_params", '{"A": {"x": 1}}', "--callbacks", "a.py:A,b.py:A"],
            r"callbacks_params\.A may be of 2 callbacks; rename",
        ),
        (
            [*TAUGHT, "--algorithm.off_policy_mask_threshold", "0.1"],
            r"off_policy_mask_threshold reads one advantage for a whole completion",
        ),
        (
            ["--reward.url", "nonsense"],
            r"^reward\.url: 'nonsense' is no URL of a server, such as \S+:8001 \(grpo-train",
        ),
        (["--teacher.url", "ftp://x"], r"teacher\.url: 'ftp://x' is no URL of a server"),
        (["--rollout.urls", "http://a:1,http://b:x"], r"rollout\.urls\.1: 'http://b:x' is no URL: Port"),
        (
            two_datasets(a={"rewards": {}}),
            r"datasets\.a has neither a reward nor a teacher: .*datasets\.a\.teacher\.url",
        ),
        (
            [*two_datasets(a=OWN_TEACHER), "--reward.reward_funcs", "[]"],
            r"datasets\.b has neither a reward nor a teacher",
        ),
        (
            [*two_datasets(a=OWN_TEACHER), "--rollout.urls", "http://127.0.0.1:8020"],
            r"data\.datasets\.a\.teacher\.url http://127\.0\.0\.1:8020 is one of rollout\.urls",
        ),
        (
            [*two_datasets(a=OWN_TEACHER | {"rewards": {}}), "--algorithm.dynamic_sampling", "true"],
            r"nothing with a teacher without rewards \(dataset a\)",
        ),
        (
            [*two_datasets(b=OWN_TEACHER), "--rollout.temperature", "0.7"],
            r"sample so, or leave data\.datasets\.b\.teacher out",
        ),
        ([*TAUGHT, "--teacher.coef", "0"], r"teacher\.coef: .*greater than 0"),
    ],
)
def test_a_wrong_flag_is_named_with_what_to_change(run_file: Path, argv: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        read(run_file, *argv)


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [
        ("reward.timeout_s", 120, "reward.timeout_s 120 is not below reward.deadline_s 120"),
        ("weights.bucket_timeout_s", 300, "weights.bucket_timeout_s 300 is not below weights.push_deadline_s 300"),
        ("weights.lease_s", 30, "weights.bucket_timeout_s 30 is not below weights.lease_s 30"),
        ("algorithm.loss", "cispo", "cispo is without what loss_type cispo sets beside it: epsilon_high 5.0"),
        ("algorithm.epsilon", 0.4, "algorithm.epsilon 0.4 is the clip of loss_type gmpo, and loss_type is dapo"),
        ("algorithm.max_refills", 5, "algorithm.max_refills has no effect: algorithm.dynamic_sampling is off"),
        ("algorithm.ref_model_sync_steps", 9, "ref_model_sync_steps has no effect: algorithm.sync_ref_model is off"),
        ("eval.eval_steps", 1, "eval.eval_steps has no effect: there are no held-out rows"),
        ("checkpoint.save_merged", True, "save_merged has no effect: without model.lora"),
        ("checkpoint.greater_is_better", False, "has no effect: checkpoint.metric_for_best is absent"),
    ],
)
def test_settings_that_are_seldom_intended_are_named(run_file: Path, flag: str, value: object, named: str):
    assert doubts(read(run_file)) == []
    [doubt] = doubts(read(run_file, f"--{flag}", str(value)))
    assert named in doubt


def test_clips_that_a_loss_does_not_read_or_reads_otherwise_are_named(run_file: Path):
    cispo = ["--algorithm.loss_type", "cispo"]
    assert doubts(read(run_file, *cispo)) == []
    assert doubts(read(run_file, *cispo, "--algorithm.delta", "4", "--algorithm.epsilon", "0.1")) == [
        "algorithm.epsilon has no effect: the loss cispo does not read it",
        "algorithm.delta has no effect: the loss cispo does not read it",
    ]
    loss = ["--algorithm.loss", "cispo", "--algorithm.epsilon", "0.9"]
    assert not any("has no effect" in doubt for doubt in doubts(read(run_file, *loss))), "without epsilon_high"
    preset = ["--algorithm.loss_type", "gmpo", "--algorithm.loss", "reinforce"]
    assert not any("has no effect" in doubt for doubt in doubts(read(run_file, *preset))), "nobody gave it"
    gspo = ["--algorithm.epsilon", "3e-4", "--algorithm.epsilon_high", "4e-4"]
    assert len(doubts(read(run_file, *gspo))) == 2
    assert doubts(read(run_file, *gspo, "--algorithm.importance_sampling_level", "sequence")) == []
    [bound] = doubts(read(run_file, *cispo, "--algorithm.epsilon_high", "0.28"))
    assert "epsilon_high 0.28 bounds the ratios themselves" in bound
    uncorrected = ["--algorithm.importance_sampling_correction", "false"]
    [idle] = doubts(read(run_file, *uncorrected, "--algorithm.importance_sampling_clip_max", "2"))
    assert (
        idle == "algorithm.importance_sampling_clip_max has no effect: algorithm.importance_sampling_correction is off"
    )


def test_a_stop_text_is_not_empty(run_file: Path):
    with pytest.raises(UsageError, match=r"rollout\.stop\.1: .*at least 1 character"):
        read(run_file, "--rollout.stop", "END,")


def test_an_unknown_key_in_a_file_names_the_nearest_one(run_file: Path, tmp_path: Path):
    later = tmp_path / "later.yaml"
    later.write_text("rollout: {num_generation: 4}\n")
    with pytest.raises(
        UsageError, match=r"rollout\.num_generation: unknown key; did you mean rollout\.num_generations"
    ):
        read(run_file, later)
    later.write_text("algorithm: {sapo_temperature_pos: 0.8}\n")
    with pytest.raises(UsageError, match=r"temperature_pos: unknown key; did you mean algorithm\.params\?"):
        read(run_file, later)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_stage": 0}, "zero_stage 0 reduces gradients once an update as it is"),
        ({"zero_stage": 2}, "zero_stage 1 keeps them whole and reduces them once an update: set that"),
        ({"zero_stage": 3, "overlap_comm": True}, "set one of them"),
    ],
)
def test_one_reduction_an_update_is_refused_where_it_has_no_use(
    run_file: Path, settings: dict[str, object], message: str
):
    run_file.write_text(yaml.safe_dump(MINIMAL | {"deepspeed": {"coalesce_grad_reduction": True, **settings}}))
    with pytest.raises(UsageError, match=message):
        read(run_file)


def test_an_unknown_variable_of_ours_is_refused(run_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_TRAIN__OPTIMIZER__LR", "1")
    with pytest.raises(UsageError, match="GRPO_TRAIN__OPTIMIZER__LR"):
        read(run_file)


@pytest.mark.parametrize("name", ["GRPO_TRAIN_OPTIMIZER__LEARNING_RATE", "GRPO_TRAIN_OPTIMIZER_LEARNING_RATE"])
def test_a_variable_with_too_few_underscores_is_refused(run_file: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv("GRPO_TRAIN_ARGS", "--max_steps 3")  # of compose.yaml
    read(run_file)
    monkeypatch.setenv(name, "1")
    with pytest.raises(UsageError, match=f"{name} in the environment .*by GRPO_TRAIN__OPTIMIZER__LEARNING_RATE"):
        read(run_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "is not YAML"), ("- 1", "not a mapping"), (None, "No such file")],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: str | None, message: str):
    file = tmp_path / "broken.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=rf"broken\.yaml.*{message}"):
        read(file)


def test_missing_keys_are_all_named_at_once():
    with pytest.raises(UsageError, match=r"(?s)run_dir: missing.*model: missing.*data: missing.*reward: missing"):
        read()


def test_the_resolved_file_gives_the_same_configuration(run_file: Path, tmp_path: Path):
    params = '{"format": {"think": false}}'
    loss = ["--algorithm.loss", "own.py:loss", "--algorithm.params", '{"limit": 3.0, "span": [null, 1]}']
    config = read(run_file, "--optimizer.learning_rate", "0.125", "--reward.params", params, *loss)
    write_resolved(config, tmp_path / "resolved.yaml")
    assert read(tmp_path / "resolved.yaml") == config


def test_packing_of_earlier_files_is_ignored_with_a_warning(run_file: Path, caplog: pytest.LogCaptureFixture):
    run_file.write_text(yaml.safe_dump(MINIMAL | {"deepspeed": {"packing": True}}))
    config = read(run_file)
    assert config.deepspeed.share_prefixes == "auto"
    assert "deepspeed.packing is no setting any more" in caplog.text


def test_rewards_of_the_run_that_every_dataset_replaces_are_named(run_file: Path):
    rewards = ["--reward.reward_funcs", '["format", "accuracy"]', "--reward.reward_weights", "[5.0, 7.0]"]
    own = {"rewards": {"format": 1.0}}
    assert doubts(read(run_file, *two_datasets(a=own, b=own), *rewards)) == [
        "reward accuracy scores nothing: every dataset has rewards of its own",
        "reward.reward_weights has no effect: every dataset has rewards of its own, with their weights",
    ]
    assert doubts(read(run_file, *two_datasets(a=own, b={}), *rewards)) == []
