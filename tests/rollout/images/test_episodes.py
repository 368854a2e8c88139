"""Episodes that show images: what the server records is what the trainer computes."""

import string
from pathlib import Path

import pytest
import torch
from PIL import Image

from grpo_proto import Sampling
from grpo_proto.client.sessions import SessionsClient
from grpo_proto.images import decode_image
from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.image_tokens import are_places
from grpo_trainer.algorithm.sequences import untrained_sequence
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.sent_images import ImagesOfPrompts
from grpo_trainer.engine.images import see
from grpo_trainer.engine.policy import Policy
from grpo_trainer.engine.vision_tower import VisionTower
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.recording import Place
from grpo_trainer.episodes.runner import EpisodeRunner
from tests.tiny_vision_model import IMAGE, make_vision_tokenizer

from .conftest import VisionServer, encoded, picture

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]
GAME = Path(__file__).parents[2] / "trainer/episodes/picture_games.py"
TOKEN = make_vision_tokenizer().convert_tokens_to_ids(IMAGE)
LARGE = encoded(picture(1, (112, 80)), "JPEG")


async def test_the_trainer_computes_the_turns_of_an_environment_with_images(vision: VisionServer, tmp_path: Path):
    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "count"}]}]
    row = PromptRow(0, [], prompt, {"prompt": prompt}, images=(LARGE,), image_column=("image", False))
    config = EpisodesConfig(environment=f"{GAME}:Mirror", max_turns=4)
    images = ImagesOfPrompts(TOKEN, max_pixels=56 * 40)
    async with (
        SessionsClient(vision.url) as client,
        EpisodeRunner(config, run="test", log_dir=tmp_path / "agents", images=images) as runner,
    ):
        place = Place(client, Sampling(max_tokens=60, stop=list(string.ascii_letters)), None, None, retry_for_s=2.0)
        found = await runner.run_episode(EpisodeAsked(0, 0, row, seed=1), place)
    assert found.ending.status in ("completed", "truncated"), found.ending
    [segment] = found.episode.segments
    assert len(segment.turns) == 2
    one, turned = map(decode_image, segment.images)
    assert one.size == (56, 40)
    assert turned.transpose(Image.Transpose.ROTATE_180).tobytes() == one.tobytes()
    sequence = untrained_sequence(segment)
    assert not are_places(sequence.token_ids_L[sequence.loss_mask_L]).any()
    model = vision.model_of(0)
    tower = VisionTower.of(model, str(vision.folder), device=torch.device("cpu"), sharded=False)
    assert tower is not None
    batch = collate([sequence], version=0, update_tokens=1, pad_token_id=0, device="cpu", images=see(tower, [sequence]))
    with torch.no_grad():
        computed = Policy(model, temperature=1.0, chunk_tokens=8)(*batch.inputs)[0]
    assert (computed - batch.rollout_logprobs_N).abs().max() < 1e-4
