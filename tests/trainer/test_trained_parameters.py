"""What a run trains, and by which optimizer, on one rank and on two: see trained_worker.py."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.tiny_model import make_model, make_tokenizer
from tests.tiny_vision_model import make_vision_model
from tests.trainer.spawned_ranks import MARKS, run_ranks
from tests.trainer.test_settings import read, run_file
from tests.trainer.trained_cases import OPTIMIZED

from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import STATE_BYTES, OptimizerConfig
from grpo_trainer.engine import optimizers
from grpo_trainer.engine.model import freeze_tower
from grpo_trainer.engine.optimizers import check_optimizer
from grpo_trainer.engine.trained_parameters import freeze_parameters
from grpo_trainer.errors import UsageError

__all__ = ["run_file"]
pytestmark = MARKS
RUNS = ["1 rank, ZeRO 2", "1 rank, ZeRO 3", "2 ranks, ZeRO 2", "2 ranks, ZeRO 3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for tied in (True, False):
        target = folder / ("tied" if tied else "untied")
        make_model(tied=tied, hidden_size=64).save_pretrained(target)
        make_tokenizer().save_pretrained(target)
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    """What rank 0 saw, by ranks and scenario."""
    found = {}
    for world_size, ranks in ((1, "1 rank"), (2, "2 ranks")):
        of_rank_0 = run_ranks("trained_worker.py", folder, world_size)[0]
        found |= {f"{ranks}, {scenario}": result for scenario, result in of_rank_0.items()}
    return found


def of_run(seen: dict[str, Any], scenario: str, run: str, dtype: str = "") -> dict[str, Any]:
    ranks, stage = run.split(", ZeRO ")
    found: dict[str, Any] = seen[f"{ranks}, {scenario} {stage} {dtype}".rstrip()]
    return found


@pytest.mark.parametrize("run", ["1 rank, ZeRO 0", *RUNS])
def test_what_is_trained_has_the_gradient_of_the_whole_model_and_the_rest_stands_still(seen: dict[str, Any], run: str):
    result = of_run(seen, "gradient", run)
    head = "lm_head" if run.endswith("0") else "model.embed_tokens"  # that of a tied model is its embedding
    parts = {name.rpartition(".")[0] for name in result["still"]}
    assert parts == {head} | {f"model.layers.0.{part}" for part in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "input_layernorm",
        "post_attention_layernorm",
    )}  # fmt: skip
    assert result["differ"] == []


@pytest.mark.parametrize("run", ["1 rank, ZeRO 0", *RUNS])
def test_a_push_sends_what_is_frozen_with_the_rest(seen: dict[str, Any], run: str):
    """A server that has loaded other weights ends with the trainer's."""
    result = of_run(seen, "gradient", run)
    assert result["push_is_the_model"]
    assert set(result["still"]) < set(result["pushed"])
    assert result["absent"] == []


@pytest.mark.parametrize(
    ("run", "dtype"),
    [("1 rank, ZeRO 0", "float32"), *[(run, dtype) for run in RUNS for dtype in ("float32", "bfloat16")]],
)
def test_a_checkpoint_goes_on(seen: dict[str, Any], run: str, dtype: str):
    result = of_run(seen, "continued", run, dtype)
    assert result["goes_on"]
    on_disk, told = result["bytes"]
    assert told <= on_disk < told + 150_000
    if result["after_reshaping"] is not None and dtype == "float32":
        assert result["after_reshaping"] < 1e-5, "not what two ranks get when they go on from one rank's"
    if run.startswith("1"):
        expected = (
            "written with model.train_vision_tower, model.freeze_parameters_regex and "
            "model.trainable_parameters_regex {'freeze_parameters_"
        )
        assert expected in result["message"]


def needs_bitsandbytes(name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes", reason="an optional dependency")


@pytest.mark.parametrize("name", ["sgd", "adamw_8bit"])
@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        ("1 rank, ZeRO 0", "float32"),
        *((f"{ranks}, ZeRO {stage}", dtype) for ranks in ("1 rank", "2 ranks") for stage, dtype in OPTIMIZED.items()),
    ],
)
def test_every_optimizer_goes_on_from_a_checkpoint_to_the_bit(seen: dict[str, Any], run: str, dtype: str, name: str):
    needs_bitsandbytes(name)
    result = of_run(seen, name, run, dtype)
    assert result["goes_on"]
    on_disk, num_weights = result["bytes"]
    # The weights in float32 and the state; of a tiny model what belongs to each tensor counts, too.
    assert on_disk < 1.25 * num_weights * (4 + STATE_BYTES[name]) + 30_000
    if dtype == "float32" and name == "adamw_8bit":
        assert result["from_adamw"] < 0.03 * result["moved"]


def test_blocks_of_eight_bits_are_not_laid_out_anew(seen: dict[str, Any]):
    needs_bitsandbytes("adamw_8bit")
    assert "was written by 1 ranks, and this run has 2" in seen["2 ranks, other ranks"]["message"]


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        ("1 rank, ZeRO 0", "float32"),
        *((f"{ranks}, ZeRO {stage}", dtype) for ranks in ("1 rank", "2 ranks") for stage, dtype in OPTIMIZED.items()),
    ],
)
def test_b_has_a_learning_rate_of_its_own_which_follows_the_schedule(seen: dict[str, Any], run: str, dtype: str):
    result = of_run(seen, "plus", run, dtype)
    assert result["rates"] == pytest.approx([0.0, 0.00025, 0.0005]), "the logged rate is that of A"
    a, b = result["steps"]["A"], result["steps"]["B"]
    assert a[:2] == [0.0, 0.0], "while B is zero, A has no gradient"
    assert b[:2] == pytest.approx([0.0, 8 * 0.00025], rel=0.02), "the first step of Adam is the learning rate"
    assert a[2] == pytest.approx(0.7 * 0.0005, rel=0.5)
    assert b[2] > 0.3 * 8 * 0.0005
    assert result["goes_on"]
    if run.startswith("1"):
        assert "written with optimizer adamw with loraplus_lr_ratio, and this run has adamw" in result["message"]


def test_two_learning_rates_are_of_an_adapter(run_file: Path):
    with pytest.raises(UsageError, match=r"optimizer\.loraplus_lr_ratio is of an adapter; add model\.lora"):
        read(run_file, "--optimizer.loraplus_lr_ratio", "16")


def test_a_library_that_is_missing_is_named_before_the_run_begins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(optimizers, "find_spec", lambda name: None)
    check_optimizer(OptimizerConfig())
    with pytest.raises(UsageError, match="adamw_8bit needs bitsandbytes, which is not installed"):
        check_optimizer(OptimizerConfig(name="adamw_8bit"))


def frozen_of(tied: bool, *patterns: str, but: str | None = None) -> set[str]:
    model = make_model(tied=tied)
    exceptions = {} if but is None else {"trainable_parameters_regex": but}
    freeze_parameters(model, ModelConfig(name_or_path="m", freeze_parameters_regex=list(patterns), **exceptions))
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_a_pattern_is_found_anywhere_and_an_exception_wins():
    assert frozen_of(False, "norm", but=r"^model\.norm") == {
        f"model.layers.{layer}.{norm}.weight"
        for layer in (0, 1)
        for norm in ("input_layernorm", "post_attention_layernorm")
    }
    assert len(frozen_of(False, ".", but="lm_head")) == len(dict(make_model(tied=False).named_parameters())) - 1
    assert frozen_of(True, "lm_head") == {"model.embed_tokens.weight"}
    assert "model.embed_tokens.weight" not in frozen_of(True, "embed_tokens", "norm", but="lm_head")


@pytest.mark.parametrize(
    ("patterns", "but", "told"),
    [
        (["^model.layer.0"], None, "freeze_parameters_regex '^model.layer.0' matches none of the model's parameters"),
        (["norm", "vision"], None, "freeze_parameters_regex 'vision' matches none"),
        (["norm"], "lm_haed", "trainable_parameters_regex 'lm_haed' matches none"),
        (["."], None, "freezes every parameter: nothing is left to train"),
    ],
)
def test_what_matches_nothing_or_leaves_nothing_is_refused(patterns: list[str], but: str | None, told: str):
    with pytest.raises(UsageError, match=re.escape(told)) as refused:
        frozen_of(False, *patterns, but=but)
    near = {"^": "model.layers.0.", "l": "lm_head.weight"}
    assert near.get((but or patterns[0])[0], "") in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trainable_parameters_regex": "lm_head"}, "to train these parameters alone, set freeze_parameters_regex"),
        ({"freeze_parameters_regex": "embed", "lora": {"r": 8}}, "model.lora.target_modules says where it trains"),
        ({"freeze_parameters_regex": ["ok", "layers.(0"]}, r"layers.(0 is no regular expression"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=re.escape(told)):
        ModelConfig(name_or_path="m", **settings)


def test_a_tower_is_trained_where_there_is_one_and_something_of_it_is_left():
    model = make_vision_model()
    freeze_tower(model, ModelConfig(name_or_path="m"))
    assert {name.split(".")[1] for name, one in model.named_parameters() if one.requires_grad} == {
        "text_model",
        "weight",
    }
    model = make_vision_model()
    config = ModelConfig(name_or_path="m", train_vision_tower=True, freeze_parameters_regex=["vision_model"])
    freeze_tower(model, config)
    freeze_parameters(model, config)
    trained = {name.split(".")[1] for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {"connector", "text_model", "weight"}
    frozen = config.model_copy(update={"freeze_parameters_regex": ["vision_model", "connector"]})
    with pytest.raises(UsageError, match="freezes all of the tower"):
        freeze_parameters(make_vision_model(), frozen)
    frozen = config.model_copy(update={"freeze_parameters_regex": ["text_model", "lm_head"]})
    with pytest.raises(UsageError, match="freezes all of the decoder, through which the tower would learn"):
        freeze_parameters(make_vision_model(), frozen)
    with pytest.raises(UsageError, match="of the family qwen2, sees no images here"):
        freeze_tower(make_model(tied=True), config)
    with pytest.raises(ValidationError, match=r"model\.lora trains one on the decoder alone"):
        ModelConfig(name_or_path="m", train_vision_tower=True, lora={"r": 4})
