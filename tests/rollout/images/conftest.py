"""A server with a tiny model of vision, and what that model makes of prompts with images."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from grpo_proto.images import decode_image
from grpo_proto.messages.rollout import Completion, Prompt, RolloutGroup, RolloutRequest, Sampling
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service
from tests.rollout import pace
from tests.rollout.conftest import Server
from tests.tiny_vision_model import IMAGE, make_vision_model, make_vision_tokenizer, save_tiny_vision_model
from tests.warm_python import warm_vllm

MAX_MODEL_LEN = 256
NO_IMAGE = {make_vision_tokenizer().convert_tokens_to_ids(IMAGE): -100.0}
"""Random weights sample the image's own token, which transformers would take for a place of an image."""


class VisionServer(Server):
    """`folder` is that of its model."""

    folder: Path

    @cache  # noqa: B019 - as long as the tests
    def model_of(self, seed: int, *, whole: bool = False) -> Idefics3ForConditionalGeneration:
        """Another decoder and output head behind the tower that the server was started with; `whole`: another tower,
        too."""
        other = make_vision_model(seed=seed)
        if whole:
            return other
        model = make_vision_model()
        text = {name: value for name, value in other.state_dict().items() if is_text(name)}
        model.load_state_dict(text, strict=False)
        return model

    def logprobs(
        self,
        seed: int,
        prompt: Prompt,
        group: RolloutGroup,
        completion: Completion,
        *,
        whole: bool = False,
        bias: Mapping[int, float] = NO_IMAGE,
    ) -> torch.Tensor:
        """What transformers' model computes for the sampled tokens behind the expanded prompt."""
        processor = Idefics3ImageProcessorPil.from_pretrained(self.folder)
        shown = [decode_image(image) for image in prompt.images]
        pictures = processor([shown], return_tensors="pt") if shown else {}
        ids = torch.tensor([group.prompt_token_ids + completion.token_ids])
        with torch.no_grad():
            logits = self.model_of(seed, whole=whole)(input_ids=ids, **pictures).logits[0]
        for token, added in bias.items():
            logits[:, token] += added
        sampled = torch.tensor(completion.token_ids)[:, None]
        return logits.log_softmax(-1)[len(group.prompt_token_ids) - 1 : -1].gather(1, sampled)[:, 0]

    def error(
        self, seed: int, prompts: Sequence[Prompt], groups: Sequence[RolloutGroup], *, whole: bool = False
    ) -> float:
        """The largest difference between the server's logprobs and those of transformers."""
        differences = [
            self.logprobs(seed, prompt, group, one, whole=whole) - torch.tensor(one.logprobs)
            for prompt, group in zip(prompts, groups, strict=True)
            for one in group.completions
        ]
        return max(float(difference.abs().max()) for difference in differences)

    async def groups(self, prompts: Sequence[Prompt], *, n: int = 2, max_tokens: int = 12) -> list[RolloutGroup]:
        async with self.client() as client:
            return (await client.rollouts(request_for(prompts, n=n, max_tokens=max_tokens))).groups


def is_text(name: str) -> bool:
    return name.startswith(("model.text_model.", "lm_head."))


def request_for(prompts: Sequence[Prompt], *, n: int = 2, max_tokens: int = 12, id: str = "r") -> RolloutRequest:
    sampling = Sampling(max_tokens=max_tokens, logit_bias=NO_IMAGE)
    return RolloutRequest(request_id=id, prompts=list(prompts), n=n, sampling=sampling)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> str:
    data = BytesIO()
    image.save(data, format, **options)
    return base64.b64encode(data.getvalue()).decode()


def picture(seed: int, size: tuple[int, int] = (56, 40)) -> Image.Image:
    """Noise of three colours."""
    generator = torch.Generator().manual_seed(seed)
    return Image.frombytes(
        "RGB", size, bytes(torch.randint(256, (3 * size[0] * size[1],), generator=generator).tolist())
    )


def prompt_of(*images: str, placeholders: int | None = None, text: str = "count", seed: int = 3) -> Prompt:
    """A question behind `images`, with as many placeholders unless told otherwise, as the chat template writes it."""
    number = len(images) if placeholders is None else placeholders
    content = [*({"type": "image"} for _ in range(number)), {"type": "text", "text": text}]
    tokenizer = make_vision_tokenizer()
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
    )
    return Prompt(token_ids=ids, images=list(images), seed=seed)


@pytest.fixture(scope="package")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionServer]:
    folder, port = tmp_path_factory.mktemp("vision"), free_port()
    model = save_tiny_vision_model(folder / "model")
    flags = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", "--limit-mm-per-prompt", '{"image": 2}')
    command = rollout_command(model, port, *flags, "--max-model-len", str(MAX_MODEL_LEN))
    environment = ROLLOUT_ENVIRONMENT | {pace.VARIABLE: str(folder / "slow")}
    with service(command, folder / "log", port=port, environment=environment, python=warm_vllm) as running:
        running.wait_until_live()
        server = VisionServer(running, tied=False, dtype=torch.float32)
        server.folder = model
        yield server
