"""A tiny randomly initialised Qwen2 model with a character-level tokenizer, saved like any checkpoint.

Everything that needs a real model in the tests makes one here: it takes a second, half a megabyte, and no network.
"""

import string
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

PAD, EOS, UNKNOWN, IM_START, IM_END = "<pad>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [PAD, EOS, UNKNOWN, IM_START, IM_END]
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_LENGTH = 512


def make_tokenizer() -> Qwen2Tokenizer:
    """One token for each printable ASCII character, five special tokens, 101 in all.

    It is Qwen2's own class, byte-level without merges, on purpose: `AutoTokenizer` loads every tokenizer beside a
    Qwen2 model as that class and replaces the pre-tokenizer of any other, which then loses spaces without a word.
    """
    byte_level = {" ": "Ġ", "\n": "Ċ"}
    vocabulary = [*SPECIAL_TOKENS, *(byte_level.get(character, character) for character in CHARACTERS)]
    return Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[IM_START, IM_END],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
    )


def make_model(
    *,
    tied: bool,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    hidden_size: int = 128,
    num_layers: int = 2,
    vocab_size: int | None = None,
) -> Qwen2ForCausalLM:
    """A Qwen2 model with random weights. `tied`: the output head is the embedding."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    config = Qwen2Config(
        vocab_size=vocab_size or len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 2,
        num_hidden_layers=num_layers,
        # vLLM's attention on CPUs takes heads of 32 and more.
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=max(1, hidden_size // 64),
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=tied,
        # Wider than usual: logits so far apart that wrong weights show, and not so far that bfloat16 rounds them much.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).to(dtype).eval()


def save_tiny_model(
    folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0, num_layers: int = 2
) -> Path:
    """Write model and tokenizer to `folder` as `save_pretrained` does, and return it."""
    make_model(tied=tied, dtype=dtype, seed=seed, num_layers=num_layers).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_half_billion_shape(folder: Path) -> None:
    """The configuration of Qwen2.5-0.5B, without weights: for what is reckoned from shapes."""
    Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
