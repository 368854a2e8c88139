"""Make a tiny vision-language model with random weights, and its processor.

    python examples/colours/make_model.py runs/colours/base-model

The family is Idefics3, whose processor works without torchvision, in vLLM as well. A picture of 32 × 32 pixels is cut
into four tiles and the whole, four tokens each. The tower stays as random as it is: what it makes of a picture differs
by colour, and the decoder learns to read it.
"""

import argparse
from pathlib import Path

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlamaConfig,
    Qwen2Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

PAD, EOS, IMAGE = "<|pad|>", "<|end|>", "<image>"
AROUND = ["<fake_token_around_image>", IMAGE, "<end_of_utterance>", "<global-img>"]
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
TILE_SIDE, TILE_TOKENS, MAX_LENGTH = 28, 4, 256
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}{{ '<image>' if part['type'] == 'image' else part['text'] }}{%- endfor -%}"
    "{%- endif -%}{{ eos_token if message['role'] == 'assistant' else '\n' }}"
    "{%- endfor -%}"
)


def make_tokenizer() -> Qwen2Tokenizer:
    """Padding and end, the tags around images, and a token for each byte."""
    vocabulary = [PAD, EOS, *AROUND, *TILES, *bytes_to_unicode().values()]
    return Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=None,
        additional_special_tokens=[*AROUND, *TILES],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
    )


def make_model(tokenizer: Qwen2Tokenizer) -> Idefics3ForConditionalGeneration:
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=MAX_LENGTH, tie_word_embeddings=False, bos_token_id=None, **ends,
    )  # fmt: skip
    vision = Idefics3VisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=TILE_SIDE,
        patch_size=7, initializer_range=0.1,
    )  # fmt: skip
    config = Idefics3Config(
        vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids(IMAGE), scale_factor=2,
        tie_word_embeddings=False, **ends,
    )  # fmt: skip
    return Idefics3ForConditionalGeneration(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(folder)
    tiles = Idefics3ImageProcessorPil(size={"longest_edge": 2 * TILE_SIDE}, max_image_size={"longest_edge": TILE_SIDE})
    Idefics3Processor(
        image_processor=tiles, tokenizer=tokenizer, image_seq_len=TILE_TOKENS, chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    print(f"a vision-language model with random weights: {folder}")


if __name__ == "__main__":
    main()
