"""The marks with which a chat template separates turns, where a completion writes them as text.

A tokenizer reads `<|im_end|>` in a message as the token that ends the turn. A completion that holds it could end its
own turn in the question to a judge or in the text for a reward model, and write the next one itself.
"""

import re

CHAT_MARK = re.compile(
    r"<[|\uff5c][^\s<>|\uff5c]{1,60}[|\uff5c]>|</?s>|<(?:start|end)_of_turn>|<[be]os>|\[/?(?:INST|SYSTEM_PROMPT)\]|<</?SYS>>"
)
"""Control marks of the usual templates: Qwen, Llama, Phi, GLM, DeepSeek (full-width bars), Gemma, Mistral."""
MAX_ENDINGS = 2


def without_marks(text: str, mark: re.Pattern[str] = CHAT_MARK, *, keep_endings: bool = False) -> str:
    """`text` with a blank in each mark, which makes it text to a tokenizer; unchanged when there is none.

    With `keep_endings` up to two at the end stay what they are: that is how a completion comes that was decoded with
    its special tokens.
    """
    matches = list(mark.finditer(text))
    end = len(text)
    for _ in range(MAX_ENDINGS if keep_endings else 0):
        if not matches or text[matches[-1].end() : end].strip():
            break
        end = matches.pop().start()
    parts, done = [], 0
    for match in matches:
        parts += [text[done : match.start() + 1], " "]
        done = match.start() + 1
    return "".join([*parts, text[done:]])
