"""A teacher that reads another prompt, the policy as its own teacher, and the forms in which it enters an advantage."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.tiny_model import make_tokenizer
from tests.tiny_vision_model import IMAGE, make_vision_tokenizer
from tests.trainer.made_episodes import VERSION, completion, two_segments
from tests.trainer.made_run_file import write_run_file

from grpo_proto import RolloutClient
from grpo_proto.messages.logprobs import LogprobsRequest, LogprobsResponse, SequenceLogprobs
from grpo_trainer.__main__ import main as grpo_train
from grpo_trainer.algorithm.distillation import taught
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.algorithm.teacher_view import behind, sequences_to_teach, take_logprobs
from grpo_trainer.config.doubts import doubts
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.teacher import TeacherConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.rendering import Renderer
from grpo_trainer.data.teacher_prompts import TeacherPrompts
from grpo_trainer.errors import UsageError
from grpo_trainer.sampling.teacher import TeacherStage

CONTENT = {
    "run_dir": "r",
    "model": {"name_or_path": "m"},
    "data": {"dataset": "d"},
    "reward": {"reward_funcs": ["x"]},
}
OF_ITSELF = {"of_itself": True, "prompt_column": "shown"}


def teacher(**settings: Any) -> TeacherConfig:
    return TeacherConfig.model_validate(OF_ITSELF | settings)


def reweighted(
    advantages: torch.Tensor, log_ratios: torch.Tensor, coef: float, clip: float, only_negative: bool
) -> Any:
    """RLSD's formula (arXiv 2604.03128), step by step."""
    weights = torch.exp(torch.sign(advantages) * log_ratios).clamp(1 - clip, 1 + clip)
    factors = (1 - coef) + coef * weights
    if only_negative:
        factors = torch.where(advantages < 0, factors, 1.0)
    return advantages * factors


@pytest.mark.parametrize("only_negative", [False, True])
def test_reweighting_is_rlsds(only_negative: bool):
    generator = torch.Generator().manual_seed(0)
    advantages, ratios = (torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(2))
    found = taught(
        advantages.numpy(),
        ratios.numpy(),
        teacher(form="reweight", coef=0.7, reweight_clip=0.3, negative_only=only_negative),
    )
    expected = reweighted(advantages, ratios, 0.7, 0.3, only_negative)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    assert (np.sign(found) == np.sign(advantages.numpy())).all()


def test_the_gate_has_the_gradient_of_sdars_loss():
    """arXiv 2605.15155: its loss is the mean of g · (log π_teacher − log π), g without a gradient."""
    generator = torch.Generator().manual_seed(0)
    policy, of_teacher = (-torch.rand(50, generator=generator, dtype=torch.float64) * 5 for _ in range(2))
    policy.requires_grad_()
    difference = of_teacher - policy
    (0.1 * (torch.sigmoid(5.0 * difference).detach() * difference).mean()).backward()
    ratios = difference.detach().numpy()
    found = taught(np.zeros(50), ratios, teacher(form="gate", coef=0.1, gate_beta=5.0))
    np.testing.assert_allclose(-found / 50, policy.grad.numpy(), rtol=1e-12, atol=1e-15)  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["reweight", "gate"])
def test_a_ratio_beyond_every_exponent_makes_no_infinite_advantage(form: str):
    found = taught(np.array([1.0, -1.0, 1.0, -1.0]), np.array([2000.0, 2000.0, -2000.0, -2000.0]), teacher(form=form))
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "neither a url nor of_itself"),
        ({"url": "http://t:1", **OF_ITSELF}, "both a url and of_itself"),
        ({"of_itself": True}, "reads its own prompt finds of its tokens what it found"),
        (OF_ITSELF | {"prompt_template": "{x}"}, "prompt_column and prompt_template both"),
        (OF_ITSELF | {"gate_beta": 2.0}, "gate_beta is read with form gate, and form is add"),
        (OF_ITSELF | {"form": "reweight", "only": True}, "only leaves them out"),
        (OF_ITSELF | {"form": "reweight", "coef": 1.5}, "at most 1, not 1.5"),
        (OF_ITSELF | {"retry_for_s": 3.0}, "retry_for_s is for a teacher that is a server"),
    ],
)
def test_a_section_that_does_not_fit_together_is_refused(settings: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        TeacherConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"teacher": OF_ITSELF | {"form": "reweight"}, "reward": {"reward_funcs": []}}, "and there are none"),
        ({"teacher": OF_ITSELF, "episodes": {"environment": "e.py:E"}}, "leave teacher or episodes out"),
        ({"teacher": OF_ITSELF, "rollout": {"temperature": 0.7}}, "temperature 0.7"),
    ],
)
def test_a_run_that_it_does_not_fit_is_refused(changes: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        RunConfig.model_validate(CONTENT | changes)


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ({"teacher": OF_ITSELF, "reward": {"reward_funcs": []}}, True),
        ({"teacher": OF_ITSELF | {"only": True}}, True),
        ({"teacher": OF_ITSELF}, False),
        ({"teacher": OF_ITSELF | {"only": True}, "algorithm": {"beta": 0.01}}, False),
        ({"teacher": {"url": "http://t:1", "only": True, "prompt_column": "shown"}}, False),
    ],
)
def test_a_policy_that_nothing_holds_beside_itself_is_warned_of(changes: dict[str, Any], warns: bool):
    told = doubts(RunConfig.model_validate(CONTENT | changes))
    assert any("nothing keeps them from agreeing" in doubt for doubt in told) is warns


@pytest.mark.parametrize(("form", "acts"), [("add", False), ("gate", False), ("reweight", True)])
def test_only_a_sum_teaches_groups_of_equal_rewards(form: str, acts: bool):
    run = RunConfig.model_validate(CONTENT | {"teacher": OF_ITSELF | {"form": form}, "guards": {"zero_spread": "stop"}})
    assert run.untaught == (None if acts else [])
    assert any("zero_spread stop never acts" in doubt for doubt in doubts(run)) is not acts


def prompts_of(**settings: Any) -> TeacherPrompts:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    config = TeacherConfig.model_validate({"of_itself": True, **settings})
    return TeacherPrompts(config, Renderer(tokenizer, {}), dataset="math", setting="teacher")


def row(columns: dict[str, Any], *messages: tuple[str, str], index: int = 0) -> PromptRow:
    prompt = [{"role": role, "content": content} for role, content in messages]
    return PromptRow(index, [1, 2], prompt or "plain", columns, dataset="math")


TURNS = (("system", "be brief"), ("user", "2+2?"))


@pytest.mark.parametrize(
    ("settings", "columns", "turns", "text"),
    [
        ({"prompt_column": "shown"}, {"shown": "2+2? It is 4."}, TURNS,
         "<system>be brief<user>2+2? It is 4.<assistant>"),
        ({"prompt_template": "{q} It is {a}."}, {"q": "2+2?", "a": "4"}, TURNS,
         "<system>be brief<user>2+2? It is 4.<assistant>"),
        ({"prompt_column": "shown"}, {"shown": [{"role": "user", "content": "4"}]}, TURNS, "<user>4<assistant>"),
        ({"prompt_column": "shown"}, {"shown": "4"}, (*TURNS, ("assistant", "5"), ("user", "No?")),
         "<system>be brief<user>2+2?<assistant>5<user>4<assistant>"),
        ({"prompt_column": "shown"}, {"shown": "plain, and more"}, (), "plain, and more"),
    ],
    ids=["a column", "a template", "messages", "the last of several", "text"],
)  # fmt: skip
def test_the_last_message_of_the_user_is_another(
    settings: dict[str, Any], columns: dict[str, Any], turns: tuple[tuple[str, str], ...], text: str
):
    [ids] = prompts_of(**settings).token_ids([row(columns, *turns)])
    assert make_tokenizer().decode(ids) == text


def test_a_row_without_it_is_found_before_the_first_step():
    prompts = prompts_of(prompt_column="shown")
    rows = [row({"shown": "a"}, *TURNS), row({"shown": "abc"}, *TURNS, index=1)]
    prompts.make_all(rows)
    assert prompts.longest == len(prompts.token_ids(rows)[1])
    with pytest.raises(UsageError, match=r"math, row 2 has no value in column shown, which teacher.prompt_column"):
        prompts.make_all([rows[0], row({"shown": None}, *TURNS, index=1)])
    with pytest.raises(UsageError, match=r"math, row 8 has no value in column shown"):  # the sixth is left out before
        prompts.make_all([rows[0], row({"shown": None}, *TURNS, index=7)])
    with pytest.raises(UsageError, match=r"math, row 1: teacher.prompt_column is neither text nor .*, but 4"):
        prompts.make_all([row({"shown": 4}, *TURNS)])
    with pytest.raises(UsageError, match=r"row 1: teacher.prompt_column is empty"):
        prompts.make_all([row({"shown": " "}, *TURNS)])
    with pytest.raises(UsageError, match=r"row 1: teacher.prompt_template: {shown} holds messages"):
        prompts_of(prompt_template="{shown}").make_all([row({"shown": [{"role": "user", "content": "4"}]}, *TURNS)])


def test_a_teacher_reads_the_images_before_what_it_is_shown():
    tokenizer = make_vision_tokenizer()
    config = TeacherConfig(url="http://t:1", prompt_column="shown")
    image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
    prompts = TeacherPrompts(
        config, Renderer(tokenizer, {}), dataset="math", setting="teacher", image_token_id=image_token_id
    )
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "which?"}]}]
    seen = PromptRow(0, [1], asked, {"shown": "it is red"}, dataset="math", images=["file:a.png"])
    [ids] = prompts.token_ids([seen])
    before, _, behind_image = tokenizer.decode(ids).partition(IMAGE)
    assert "it is red" in behind_image
    assert IMAGE not in behind_image
    assert "which?" not in before + behind_image
    told = replace(seen, columns={"shown": [{"role": "user", "content": "it is red"}]})
    with pytest.raises(UsageError, match=r"row 1: teacher.prompt_column has 1 images, and its tokens have 0 times"):
        prompts.make_all([told])


def test_what_the_policy_would_read_beyond_its_context_is_refused():
    prompts = prompts_of(prompt_column="shown")
    prompts.make_all([row({"shown": "abc"}, *TURNS)])
    prompts.check_context(prompts.longest + 5, max_completion_length=5)
    with pytest.raises(UsageError, match=r"teacher.prompt_column makes a prompt of \d+ tokens .*context ends at"):
        prompts.check_context(prompts.longest + 4, max_completion_length=5)


def test_sampled_tokens_stand_behind_another_prompt():
    segment = completion("e", [5, 6, 7], [-1.0, -2.0, -3.0], "x", "stop", [(VERSION, 3)], prompt=[1, 2]).segments[0]
    seen = behind([8, 9, 10, 11], segment)
    assert (seen.token_ids, [(turn.start, turn.end) for turn in seen.turns]) == ([8, 9, 10, 11, 5, 6, 7], [(4, 7)])


def test_masked_turns_are_scored_too_and_each_episode_gets_its_own():
    episodes = [two_segments(), two_segments()]
    [*first, last] = sequences = sequences_to_teach([(one, [30, 31]) for one in episodes], version=VERSION)
    sampled = [segment.num_sampled for one in episodes for segment in one.segments]
    assert [one.num_trained for one in sequences] == sampled
    assert last.episode == 1
    assert first[0].token_ids_L[:2].tolist() == [30, 31]
    assert (last.versions_L[last.loss_mask_L] == VERSION).all()
    take_logprobs(episodes, {0: [-0.5], 1: [-0.25]})
    assert [one.teacher_logprobs for one in episodes] == [[-0.5], [-0.25]]


async def test_a_server_scores_the_completion_behind_its_own_prompt():
    asked: list[LogprobsRequest] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(LogprobsRequest.model_validate_json(request.content))
        scored = [
            SequenceLogprobs(logprobs=[-0.1] * (len(one.token_ids) - one.num_prompt_tokens), version=0)
            for one in asked[-1].sequences
        ]
        response = LogprobsResponse(sequences=scored, server_id="t")
        return httpx.Response(200, text=response.model_dump_json())

    config = TeacherConfig(url="http://127.0.0.1:1", prompt_column="shown")
    prompts = prompts_of(prompt_column="shown")
    client = RolloutClient(str(config.url), transport=httpx.MockTransport(answer))
    stage = TeacherStage(client, config, prompts={"math": prompts})
    told = row({"shown": "the answer is 4"}, *TURNS)
    group = Group(0, told, [completion("e", [5, 6], [-1.0, -2.0], "x", "stop", [(1, 2)])])
    await stage.score([group])
    [ids] = prompts.token_ids([told])
    assert (asked[0].sequences[0].token_ids, asked[0].sequences[0].num_prompt_tokens) == ([*ids, 5, 6], len(ids))
    assert group.episodes[0].teacher_logprobs == [-0.1, -0.1]


def test_a_dataset_that_lacks_the_column_ends_the_start_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "shown.jsonl").write_text(json.dumps({"prompt": "2+2?", "showed": "4"}) + "\n")
    run = write_run_file(tmp_path, rollout={}, data={"dataset": str(tmp_path / "shown.jsonl")}, teacher=OF_ITSELF)
    assert grpo_train([str(run), "--dry-run"]) == 2
    assert "no column shown, which teacher.prompt_column needs; the nearest: showed" in capsys.readouterr().err
