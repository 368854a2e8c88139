"""Make a small Qwen2-architecture model and its tokenizer for the calculator game.

    python -m examples.calculator.make_model runs/demo-episodes/base-model

The model is that of the Countdown demo. Its chat template is ChatML, and writes calls as the `hermes` parser reads
them; what always stands there is one token, so that a whole game takes 40. It does not write the schemas of tools,
which would take 200 more: there is one tool, and the cold start shows how it is called.
"""

from collections.abc import Sequence

from examples.countdown.make_model import byte_tokenizer, make_and_save
from tokenizers import AddedToken
from transformers import Qwen2Tokenizer

END = "<|im_end|>"
OPENINGS = [f"<|im_start|>{role}\n" for role in ("system", "user", "assistant", "tool")]
PHRASES = ["What is ", "<tool_call>", '{"name": "calc", "arguments": {"expr": "', '"}}', "</tool_call>"]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ '<tool_call>{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>' }}"
    "{%- endfor -%}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"
)


def make_tokenizer() -> Qwen2Tokenizer:
    """256 bytes, and a token for padding, for the end and each opening of a message, and for each phrase."""
    tokenizer = byte_tokenizer(PHRASES, eos=END, chat_template=CHAT_TEMPLATE)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in OPENINGS], special_tokens=True)
    return tokenizer


def main(argv: Sequence[str] | None = None) -> None:
    make_and_save(make_tokenizer(), argv, description=__doc__)


if __name__ == "__main__":
    main()
