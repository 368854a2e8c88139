"""Images in an update: the logprobs of transformers' own forward pass, in padded rows and with shared prefixes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.made_episodes import VERSION, decided
from tests.trainer.made_forests import SHARING, learnt
from tests.trainer.made_vision import FAMILIES, IMAGE_TOKEN, picture, save_family, seen_sequences

from grpo_proto.images import decode_image
from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.image_tokens import are_places, segment_tokens
from grpo_trainer.algorithm.sequences import Episode, Segment, TrainingSequence, Turn
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.engine.family import IMAGE_FAMILIES
from grpo_trainer.engine.images import see
from grpo_trainer.engine.policy import Policy
from grpo_trainer.engine.vision_tower import VisionTower
from grpo_trainer.errors import RunError
from grpo_trainer.lora.adapter import Adapter

CPU = torch.device("cpu")


def by_transformers(model: Any, tower: VisionTower, sequence: TrainingSequence) -> torch.Tensor | None:
    """Logprobs of the trained tokens: the whole model called with token ids and pixels, as its processor would. None
    where the image token is sampled: that is text, and the model would want an image for it."""
    is_place = torch.from_numpy(are_places(sequence.token_ids_L))[None]
    ids = torch.from_numpy(sequence.token_ids_L.copy())[None]
    ids[is_place] = IMAGE_TOKEN
    if ((ids == IMAGE_TOKEN) & ~is_place).any():
        return None
    trained = torch.from_numpy(sequence.loss_mask_L)
    inputs: dict[str, Any] = {"input_ids": ids}
    if sequence.images:
        made = tower.processor(images=[decode_image(one) for one in sequence.images], return_tensors="pt")
        inputs |= {name: value for name, value in made.items() if name in tower.reads}
        if tower.has_positions:
            inputs["mm_token_type_ids"] = is_place.int()
    logprobs = (model(**inputs).logits[0, :-1] / 0.9).log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0][trained[1:]]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_with_images_is_what_transformers_computes_shared_or_not(name: str, tmp_path: Path):
    model = save_family(name, tmp_path)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    sequences = seen_sequences(lambda image: tower.features_of([image]).num_places)
    expected = [by_transformers(model, tower, one) for one in sequences]
    policy = Policy(model, temperature=0.9, chunk_tokens=8)
    both = []
    for prefixes in (None, SHARING):
        batch = collate(
            sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", prefixes=prefixes,
            images=see(tower, sequences),
        )  # fmt: skip
        both.append(learnt(policy, [batch]))
    parts = both[0][0].split([one.num_trained for one in sequences])
    compared = [(own, theirs) for own, theirs in zip(parts, expected, strict=True) if theirs is not None]
    assert len(compared) == 4
    for own, theirs in compared:
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(both[1][0], both[0][0], rtol=1e-6, atol=2e-6)
    assert (both[1][2] - both[0][2]).norm() < 2e-6 * both[0][2].norm()
    red, blue = parts[1], parts[3]
    assert not torch.allclose(red[:1], blue[:1], atol=1e-3), "another image, the same question"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tower_that_is_trained_learns_what_transformers_would_teach_it(name: str, tmp_path: Path):
    model = save_family(name, tmp_path).requires_grad_(True)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False, is_trained=True)
    assert tower is not None
    made = seen_sequences(lambda image: tower.features_of([image]).num_places)
    theirs = [(sequence, by_transformers(model, tower, sequence)) for sequence in made]
    sequences = [sequence for sequence, logprobs in theirs if logprobs is not None]
    torch.cat([logprobs for _, logprobs in theirs if logprobs is not None]).sum().backward()
    expected = taken_gradients(model)
    batch = collate(
        sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", prefixes=SHARING,
        images=see(tower, sequences),
    )  # fmt: skip
    logprobs_N, _ = Policy(model, temperature=0.9, chunk_tokens=8)(*batch.inputs)
    logprobs_N.sum().backward()
    tower.learn(lambda product: product.backward())
    own = taken_gradients(model)
    assert own.keys() == expected.keys()
    decoder = {id(parameter) for parameter in model.get_decoder().parameters()}
    assert sum(id(parameter) not in decoder for parameter in model.parameters()) > 10
    for parameter_name, gradient in expected.items():
        torch.testing.assert_close(own[parameter_name], gradient, rtol=1e-4, atol=1e-4)


def taken_gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def episode(
    tower: VisionTower, number: int, said: list[int], *, first_image: int | None = None, masked: str | None = None
) -> Episode:
    """One that shows an image before each of its two turns, of which the policy has `said` the first."""
    images = (picture(2 * number if first_image is None else first_image), picture(2 * number + 1))
    places = [[97, *[IMAGE_TOKEN] * tower.features_of([image]).num_places, 96] for image in images]
    first, second, answer = [94, *places[0]], [95, *places[1]], [20, 21]
    token_ids = [*first, *said, *second, *answer]
    begin = len(first) + len(said) + len(second)
    turns = [
        Turn(len(first), len(first) + len(said), [(VERSION, len(said))], "stop"),
        Turn(begin, len(token_ids), [(VERSION, len(answer))], "stop", masked=masked),
    ]
    spans = [(turn.start, turn.end) for turn in turns]
    named = segment_tokens(token_ids, images, [1, len(first) + len(said) + 1], IMAGE_TOKEN, spans)
    assert named[turns[0].start : turns[0].end] == said
    return Episode(f"e-{number}", [Segment(named, turns, [-4.0] * (len(said) + 2), images)])


@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_with_an_image_in_each_turn_is_what_transformers_computes(name: str, tmp_path: Path):
    model = save_family(name, tmp_path)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    sequences = decided([(episode(tower, number, [10, 11, 12]), 1.0) for number in range(2)])
    expected = [by_transformers(model, tower, one) for one in sequences]
    batch = collate(
        sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", images=see(tower, sequences)
    )
    own = learnt(Policy(model, temperature=0.9, chunk_tokens=8), [batch])[0]
    assert len(own) == 2 * 5
    torch.testing.assert_close(own, torch.cat([one for one in expected if one is not None]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["idefics3", "qwen2_vl", "qwen3_vl"])
def test_episodes_that_begin_with_one_image_share_it_and_the_tower_looks_once(name: str, tmp_path: Path):
    model = save_family(name, tmp_path)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    sequences = decided([(episode(tower, number, [10, 11, 12], first_image=9), 1.0) for number in range(3)])
    seen = see(tower, sequences)
    assert len(tower._features) == 4
    policy = Policy(model, temperature=0.9, chunk_tokens=8)
    padded, shared = (
        collate(sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", prefixes=prefixes,
                images=seen)
        for prefixes in (None, SHARING)
    )  # fmt: skip
    first = 2 + tower.features_of([picture(9)]).num_places
    assert shared.input_ids_BL.numel() <= sum(one.num_tokens for one in sequences) - 2 * first
    (padded_N, _, gradient), (shared_N, _, same) = learnt(policy, [padded]), learnt(policy, [shared])
    torch.testing.assert_close(shared_N, padded_N, rtol=1e-6, atol=2e-6)
    assert (same - gradient).norm() < 2e-6 * gradient.norm()


def test_what_is_seen_between_a_batch_and_its_update_drops_nothing_of_it(tmp_path: Path):
    """The canary's prompts, and demonstrations, which have no images."""
    model = save_family("idefics3", tmp_path)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    batch, canary = (
        decided([(episode(tower, number, [10, 11]), 1.0) for number in numbers]) for numbers in ((0, 1), (2,))
    )
    shown = see(tower, batch)
    own = dict(tower._features.items())
    assert see(tower, canary) is not None
    assert see(tower, [one for one in seen_sequences(lambda _: 1) if not one.images]) is None
    assert shown is not None
    assert all(tower._features[key] is own[key] for key in shown.prompts)
    see(tower, decided([(episode(tower, 1, [12]), 1.0)]))
    kept = {key for key in own if key in tower._features}
    assert len(kept) == 2, "of the batch before the images that are shown again"
    assert all(tower._features[key] is own[key] for key in kept)


@pytest.mark.parametrize("name", ["idefics3", "qwen2_vl"])
def test_an_image_behind_the_last_trained_turn_is_left_out_of_shared_rows(name: str, tmp_path: Path):
    """Of two episodes, which see other images, one has its last turn masked."""
    model = save_family(name, tmp_path)
    tower = VisionTower.of(model, str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    both = [
        episode(tower, number, [10 + number, IMAGE_TOKEN, 12], masked=masked)
        for number, masked in enumerate((None, "too old"))
    ]
    sequences = decided([(one, 1.0) for one in both])
    assert [len(one.needed_ids) < one.num_tokens - 2 for one in sequences] == [False, True]
    policy = Policy(model, temperature=0.9, chunk_tokens=8)
    padded, shared = (
        learnt(policy, [collate(sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu",
                                prefixes=prefixes, images=see(tower, sequences))])
        for prefixes in (None, SHARING)
    )  # fmt: skip
    torch.testing.assert_close(shared[0], padded[0], rtol=1e-6, atol=2e-6)
    assert (shared[2] - padded[2]).norm() < 2e-6 * padded[2].norm()


@pytest.mark.parametrize("more", [-1, 1])
def test_a_server_that_makes_other_places_of_an_image_is_an_error(more: int, tmp_path: Path):
    tower = VisionTower.of(save_family("idefics3", tmp_path), str(tmp_path), device=CPU, sharded=False)
    assert tower is not None
    count = tower.features_of([picture(1)]).num_places
    sequences = seen_sequences(lambda _: count + more)[:2]
    with pytest.raises(RunError, match=f"{count + more} image tokens, and the trainer's image processor makes {count}"):
        see(tower, sequences)


def test_the_families_are_those_that_are_tried():
    assert set(FAMILIES) == set(IMAGE_FAMILIES)


@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "v_proj"]])
def test_an_adapter_is_on_the_decoder_alone(target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A tower may have layers of the same names, and the update computes nothing of it."""
    model = save_family("smolvlm", tmp_path)
    adapter = Adapter(model, LoraConfig(r=4, alpha=8, target_modules=target), base_name="tiny", seed=1)
    assert len(adapter.layers) == 2 * (7 if target == "all-linear" else 2)
    assert all(name.startswith("model.text_model.") for name in adapter.layers)
    assert "fused" not in caplog.text
