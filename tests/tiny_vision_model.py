"""A tiny randomly initialised Idefics3 model: a vision tower before a decoder as small as that of `tiny_model.py`.

Idefics3 is a family with images whose processor works without torchvision, in vLLM as well. It makes a square image 56
pixels wide and cuts it into four tiles; each tile, and the whole made small, is `TILE_TOKENS` tokens between tags.
"""

from pathlib import Path

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlamaConfig,
    Qwen2Tokenizer,
)
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.tiny_model import CHARACTERS, EOS, IM_END, IM_START, MAX_LENGTH, PAD, SPECIAL_TOKENS, UNKNOWN

IMAGE = "<image>"
TILE_TOKENS = 4
SIDE = 28
TAGS = ["<fake_token_around_image>", IMAGE, "<end_of_utterance>", "<global-img>"] + [
    f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_vision_tokenizer() -> Qwen2Tokenizer:
    """The tokens of `tiny_model.py`, and those that the processor puts around an image."""
    byte_level = {" ": "Ġ", "\n": "Ċ"}
    special = [*SPECIAL_TOKENS, *TAGS]
    vocabulary = [*special, *(byte_level.get(character, character) for character in CHARACTERS)]
    return Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[IM_START, IM_END, *TAGS],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
    )


def make_vision_model(*, seed: int = 0) -> Idefics3ForConditionalGeneration:
    """Random weights, so large in the tower that another image makes other logits."""
    torch.manual_seed(seed)
    tokenizer = make_vision_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=MAX_LENGTH, tie_word_embeddings=False, initializer_range=0.05,
        bos_token_id=None, **ends,
    )  # fmt: skip
    vision = Idefics3VisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=7, initializer_range=0.3,
    )  # fmt: skip
    config = Idefics3Config(
        vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids(IMAGE), scale_factor=2,
        tie_word_embeddings=False, **ends,
    )  # fmt: skip
    return Idefics3ForConditionalGeneration(config).eval()


def save_tiny_vision_model(folder: Path, *, seed: int = 0) -> Path:
    """Write model and processor to `folder` as `save_pretrained` does, and return it."""
    make_vision_model(seed=seed).save_pretrained(folder)
    cut = Idefics3ImageProcessorPil(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})
    tokenizer = make_vision_tokenizer()
    Idefics3Processor(
        image_processor=cut, tokenizer=tokenizer, image_seq_len=TILE_TOKENS, chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    return folder
