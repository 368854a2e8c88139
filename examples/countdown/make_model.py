"""Make a small Qwen2-architecture model and its tokenizer for the Countdown game.

    python examples/countdown/make_model.py runs/demo/base-model

The model is an ordinary one for transformers and vLLM, only small (0.8 million parameters) and with random weights. In
its tokenizer the fixed phrases of the Countdown question are one token each, so that a question costs 20 tokens and not
300; everything else is a token per byte, digits too, so that any text survives the way to token ids and back.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_trainer.data.recipes.countdown import QUESTION

PAD, EOS = "<|pad|>", "<|end|>"
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
MAX_LENGTH = 256
# A user's message ends with a line break, an assistant's with the end-of-sequence token.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ message['content'] }}{{ eos_token if message['role'] == 'assistant' else '\n' }}"
    "{%- endfor -%}"
)


def fixed_phrases() -> list[str]:
    """What the question always says: the text around {nums} and {target}, less the bracket of the list."""
    before, rest = QUESTION.split("{nums}")
    between, after = rest.split("{target}")
    return [before + "[", "]" + between, after + "\n"]


def make_tokenizer() -> Qwen2Tokenizer:
    """256 bytes, two special tokens, the tags and the phrases."""
    return byte_tokenizer([*TAGS, *fixed_phrases()], eos=EOS, chat_template=CHAT_TEMPLATE)


def byte_tokenizer(phrases: Sequence[str], *, eos: str, chat_template: str) -> Qwen2Tokenizer:
    """Padding and `eos`, 256 bytes, and a token for each of `phrases`.

    It is Qwen2's own class because `AutoTokenizer` loads whatever lies beside a Qwen2 model as that class.
    """
    vocabulary = [PAD, eos, *bytes_to_unicode().values()]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=eos,
        unk_token=None,
        chat_template=chat_template,
        model_max_length=MAX_LENGTH,
        # Blanks before punctuation are part of the text: nothing may tidy them away.
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in phrases])
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer, *, seed: int, hidden_size: int, num_layers: int) -> Qwen2ForCausalLM:
    """A Qwen2 model with random weights."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        # vLLM's attention on CPUs takes heads of 32 and more.
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 64,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        # Wider than the usual 0.02: a model this small and narrow starts to learn sooner.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def main(argv: Sequence[str] | None = None) -> None:
    make_and_save(make_tokenizer(), argv, description=__doc__)


def make_and_save(tokenizer: Qwen2Tokenizer, argv: Sequence[str] | None, *, description: str | None) -> None:
    """The command: a model for `tokenizer`, saved with it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to save model and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=4)
    arguments = parser.parse_args(argv)
    model = make_model(
        tokenizer, seed=arguments.seed, hidden_size=arguments.hidden_size, num_layers=arguments.num_layers
    )
    model.save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)
    print(f"{arguments.folder}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
