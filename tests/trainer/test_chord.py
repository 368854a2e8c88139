"""CHORD: which demonstrations an update imitates, what they add to its gradient, and where the settings come from."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.tiny_model import make_model, make_tokenizer
from tests.trainer.made_episodes import build_updates
from tests.trainer.made_run_file import write_run_file

from grpo_trainer import loop
from grpo_trainer.__main__ import main as grpo_train
from grpo_trainer.algorithm.demonstrations import Demonstrations, chord_doubts, mu_of
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.chord import ChordConfig
from grpo_trainer.config.data import DataConfig
from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.data.demonstrations import Example, check_context, load_demonstrations
from grpo_trainer.data.run_rows import HeldOutRows, TrainingRows, check_vocabulary
from grpo_trainer.engine.imitation import Imitation
from grpo_trainer.engine.policy import Policy
from grpo_trainer.errors import UsageError
from grpo_trainer.parts import Parts


def chord(**changes: Any) -> ChordConfig:
    return ChordConfig.model_validate({"sft_dataset": "d.jsonl", "sft_batch_size": 4, "mu_peak": 0.5, **changes})


def examples(*completions: int) -> list[Example]:
    """A prompt of two tokens each, and completions of so many."""
    return [
        Example(input_ids=[7 + k, 8, *range(9, 9 + n)], completion_mask=[0, 0] + [1] * n)
        for k, n in enumerate(completions)
    ]


def test_mu_rises_along_a_line_and_falls_along_a_cosine():
    config = chord(mu_peak=0.9, mu_valley=0.1, mu_warmup_steps=2, mu_decay_steps=4)
    expected = [0.0, 0.45, 0.9, 0.5 + 0.4 / 2**0.5, 0.5, 0.5 - 0.4 / 2**0.5, 0.1, 0.1]
    assert [mu_of(config, number) for number in range(8)] == pytest.approx(expected)
    assert [mu_of(chord(), number) for number in (0, 1000)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu_valley": 0.6}, "mu_valley 0.6 is above mu_peak 0.5"),
        ({"mu_valley": 0.1}, "mu_valley 0.1 without mu_decay_steps"),
        ({"mu_decay_steps": 3}, "mu_decay_steps 3 has no effect: mu_valley is mu_peak 0.5"),
        ({"mu_peak": 1.5}, "less than or equal to 1"),
    ],
)
def test_a_schedule_that_does_not_fall_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        chord(**changes)


def test_what_is_seldom_meant_is_said():
    falls = chord(mu_valley=0.1, mu_warmup_steps=2, mu_decay_steps=4)
    assert list(chord_doubts(falls, num_examples=4, total_updates=6)) == []
    late, few = chord_doubts(falls, num_examples=3, total_updates=5)
    assert late.startswith("chord: μ changes for 6 updates, and the run makes 5: it ends at 0.3")
    assert few.startswith("chord.sft_batch_size 4 is more than the 3 demonstrations of d.jsonl")
    assert list(chord_doubts(None, num_examples=0, total_updates=5)) == []


def test_updates_go_through_all_demonstrations_epoch_after_epoch():
    made = examples(1, 2, 3, 4, 5, 6)
    taken = [Demonstrations(made, chord(), seed=3).of_update(number, version=9) for number in range(3)]
    firsts = [int(sequence.token_ids_L[0]) for of_update in taken for sequence in of_update]
    assert Counter(firsts) == dict.fromkeys(range(7, 13), 2)
    assert Counter(firsts[:6]) == dict.fromkeys(range(7, 13), 1)
    again = Demonstrations(made, chord(), seed=3).of_update(2, version=9)
    assert [list(one.token_ids_L) for one in again] == [list(one.token_ids_L) for one in taken[2]]
    for of_update in taken:
        assert sum(float(one.weights_L.sum()) for one in of_update) == pytest.approx(1.0)
        assert len({one.episode for one in of_update}) == 4
        assert all(set(one.versions_L[one.loss_mask_L]) == {9} for one in of_update)


@pytest.mark.parametrize("enable_phi_function", [False, True])
def test_the_loss_is_that_of_fine_tuning(enable_phi_function: bool):
    """transformers' own cross-entropy over the completions; with φ its tokens weighed by p · (1 − p)."""
    made = examples(3, 7, 1, 12)
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=1.0, chunk_tokens=8)
    sequences = Demonstrations(made, chord(), seed=0).of_update(0, version=1)
    ((batch,),) = build_updates(sequences, tokens_per_micro_batch=10_000)
    loss, tally = Imitation([batch], 0.3, enable_phi_function).loss(policy, batch)
    loss.backward()
    found = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()

    longest = max(len(example["input_ids"]) for example in made)
    ids = torch.tensor([[*e["input_ids"], *[0] * (longest - len(e["input_ids"]))] for e in made])
    labels = torch.tensor(
        [
            [token if trained else -100 for token, trained in zip(e["input_ids"], e["completion_mask"], strict=True)]
            + [-100] * (longest - len(e["input_ids"]))
            for e in made
        ]
    )
    outputs = policy.model(input_ids=ids, labels=labels)
    expected = outputs.loss
    if enable_phi_function:
        logprobs = outputs.logits[:, :-1].log_softmax(-1).gather(2, labels[:, 1:, None].clamp(min=0))[..., 0]
        p = logprobs.detach().exp()
        expected = -(logprobs * p * (1 - p))[labels[:, 1:] >= 0].mean()
    expected.backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, [p.grad for p in policy.parameters()], rtol=1e-4, atol=1e-6)
    assert tally.reduce()["chord/loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_what_is_imitated_follows_from_the_number_of_the_update():
    """Of the updates that the engine has made, also before a resume with more of them in a step; none where μ is 0."""
    told: list[Any] = []
    crew = SimpleNamespace(
        ranks=SimpleNamespace(world_size=2),
        gather=lambda command, *arguments, each: told.append((command, arguments[3:], each)) or [None, None],
    )
    parts = Parts(crew, DeepSpeedConfig(tokens_per_micro_batch=64), None)  # type: ignore[arg-type]
    config = SimpleNamespace(algorithm=AlgorithmConfig(num_iterations=2, steps_per_generation=2))
    of_run = Demonstrations(examples(*range(1, 17)), chord(mu_warmup_steps=2), seed=0)
    done = iter(range(8))
    run: Any = SimpleNamespace(
        config=config, crew=crew, parts=parts, demonstrations=of_run, updates_done=lambda: next(done)
    )
    for version in (1, 2):
        for _ in range(4):
            loop.imitate(run, version=version)
    assert [command for command, _, _ in told] == ["imitate"] * 7
    assert [arguments for _, arguments, _ in told] == [(0.25, False)] + [(0.5, False)] * 6
    for k, (_, _, each) in enumerate(told, start=1):
        expected = sorted(len(one.token_ids_L) for one in of_run.of_update(k, version=1))
        assert sorted(length for arrays in each for length in arrays["lengths"]) == expected
    run.demonstrations = None
    loop.imitate(run, version=3)
    assert len(told) == 7


class TestRows:
    def test_prompts_are_those_of_the_run(self, tmp_path: Path):
        (tmp_path / "d.jsonl").write_text(json.dumps({"q": "1+1", "completion": "2"}))
        tokenizer = make_tokenizer()
        data = DataConfig(dataset="x", prompt_template="{q}?", chat_template_kwargs={})
        [found] = load_demonstrations(chord(sft_dataset=str(tmp_path / "d.jsonl")), data, tokenizer)
        prompt = [i for i, trained in zip(found["input_ids"], found["completion_mask"], strict=True) if not trained]
        expected = tokenizer.apply_chat_template([{"role": "user", "content": "1+1?"}], add_generation_prompt=True)
        assert prompt == list(getattr(expected, "input_ids", expected))

    def test_conversations_stand_for_themselves(self, tmp_path: Path):
        talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
        (tmp_path / "d.jsonl").write_text(json.dumps({"messages": talk}))
        data = DataConfig(dataset="x", prompt_template="{q}?")
        config = chord(sft_dataset=str(tmp_path / "d.jsonl"), sft_recipe="none")
        [found] = load_demonstrations(config, data, make_tokenizer())
        assert sum(found["completion_mask"]) > 1
        with pytest.raises(UsageError, match=r"chord: .*has no column q"):
            load_demonstrations(chord(sft_dataset=str(tmp_path / "d.jsonl")), data, make_tokenizer())

    def test_they_may_have_a_template_of_their_own(self, tmp_path: Path):
        (tmp_path / "d.jsonl").write_text(json.dumps({"query": "1+1", "response": "2"}))
        data = DataConfig(dataset="x", recipe="countdown")
        file = str(tmp_path / "d.jsonl")
        own = chord(sft_dataset=file, sft_prompt_template="{query}", completion_column="response")
        [found] = load_demonstrations(own, data, make_tokenizer())
        assert "1+1" in make_tokenizer().decode(found["input_ids"])

    @pytest.mark.parametrize(
        ("row", "changes", "message", "hint"),
        [
            ({"prompt": "", "completion": "2"}, {}, "demonstration 1 of .* has an empty prompt", "give it a prompt"),
            (
                {"prompt": "x" * 40, "completion": "2"},
                {"sft_max_length": 9},
                "chord.sft_max_length 9",
                "raise chord.sft_",
            ),
            ({"prompt": "x", "answer": "2"}, {}, "which chord.completion_column needs", None),
        ],
    )
    def test_mistakes_name_the_setting_of_the_run_file(
        self, tmp_path: Path, row: dict[str, str], changes: dict[str, Any], message: str, hint: str | None
    ):
        (tmp_path / "d.jsonl").write_text(json.dumps(row))
        config = chord(sft_dataset=str(tmp_path / "d.jsonl"), **changes)
        with pytest.raises(UsageError, match=message) as refused:
            load_demonstrations(config, DataConfig(dataset="x"), make_tokenizer())
        assert hint is None or (refused.value.hint or "").startswith(hint)

    def test_the_dry_run_tells_them_and_what_is_odd(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        nowhere = {"urls": ["http://127.0.0.1:9"]}
        section = {"sft_dataset": str(tmp_path / "d.jsonl"), "sft_batch_size": 4, "mu_peak": 0.5}
        file = write_run_file(tmp_path, rollout=nowhere, chord=section)
        (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}))
        assert grpo_train([str(file), "--dry-run", "--reward.url", "http://127.0.0.1:9"]) == 0
        told = capsys.readouterr().out
        assert re.search(
            r"^demonstrations +1, \d+ to \d+ tokens; 4 beside the samples of an update$", told, re.MULTILINE
        )
        assert "chord.sft_batch_size 4 is more than the 1 demonstrations" in told

    def test_a_token_that_the_model_has_not_is_named(self):
        rows, held_out = TrainingRows({}), HeldOutRows()
        check_vocabulary(rows, held_out, examples(3), vocab_size=12)
        with pytest.raises(UsageError, match="the demonstrations hold token 11"):
            check_vocabulary(rows, held_out, examples(3), vocab_size=11)

    def test_one_that_the_model_cannot_hold_is_refused(self):
        check_context(examples(6), context=8)
        check_context(examples(6), context=None)
        with pytest.raises(UsageError, match="has 9 tokens, and the model's context ends at 8"):
            check_context(examples(6, 7), context=8)

    def test_there_are_none_without_the_section(self):
        assert load_demonstrations(None, DataConfig(dataset="x"), make_tokenizer()) == []
        assert Demonstrations.of(None, [], seed=0) is None
