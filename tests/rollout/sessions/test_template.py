"""What follows a recorded turn, against prompts built by hand, in four families."""

import random
from typing import Any

import pytest

from grpo_rollout.sessions.chat_form import chat_message
from grpo_rollout.sessions.template import ChatTemplate, TemplateError
from tests.rollout.sessions.families import FAMILIES, Family, tokenizer_of

TOOLS = [
    {"type": "function", "function": {"name": "calc", "description": "d", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "look", "description": "e", "parameters": {"type": "object"}}},
]
WORDS = ["the answer", " is", "1924", "{", '"x"', "\n", "then the rest", "?", "é", "fox "]


def template_of(name: str, template: str | None = None) -> ChatTemplate:
    tokenizer = tokenizer_of(name)

    def render(messages: Any, tools: Any, kwargs: Any, prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt, chat_template=template, **kwargs
        )
        return text

    added = tokenizer.added_tokens_decoder.items()
    special = {token.content: token_id for token_id, token in added if token.special}
    return ChatTemplate(render, lambda text: tokenizer.encode(text, add_special_tokens=False), special)


def words(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randint(1, 4))).strip() or "x"


def split_up(rng: random.Random, name: str, text: str) -> list[int]:
    """Tokenise as a policy samples: now and then not as the tokenizer would."""
    tokenizer = tokenizer_of(name)
    cut = rng.randint(0, len(text))
    if rng.random() < 0.5 or any(token in text for token in FAMILIES[name].special + FAMILIES[name].plain):
        return tokenizer.encode(text, add_special_tokens=False)
    return [token for part in (text[:cut], text[cut:]) for token in tokenizer.encode(part, add_special_tokens=False)]


def continued(rng: random.Random, family: Family, template: ChatTemplate) -> tuple[list[int], list[int]]:
    """A random conversation of some turns: its ids as recorded, and by hand."""
    tokenizer = tokenizer_of(family.name)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    tools = TOOLS if rng.random() < 0.6 else None
    system = {"role": "system", "content": words(rng)} if rng.random() < 0.5 else None
    messages: list[dict[str, Any]] = [*([system] if system else []), {"role": "user", "content": words(rng)}]
    ours = by_hand = template.prompt(messages, tools, {})
    by_hand = list(by_hand)
    for turn in range(rng.randint(1, 4)):
        num_calls = rng.randint(0, family.max_calls) if tools else 0
        calls = [("calc", {"expr": words(rng)}) for _ in range(num_calls)]
        text = "" if calls and family.name in ("llama", "mistral") else words(rng)
        thought = words(rng) if family.reasoning_parser and rng.random() < 0.7 else ""
        sampled = split_up(rng, family.name, family.says(text, thought, calls))
        ids = [f"call{turn}{number:04}" for number in range(num_calls)]
        new: list[dict[str, Any]] = [{"role": "tool", "content": words(rng), "tool_call_id": found} for found in ids]
        new = new or [
            {"role": "user", "content": words(rng)} for _ in range(1 if family.alternates else rng.randint(1, 2))
        ]
        behind = family.follows(new, tools, system["content"] if system and family.alternates else None)
        cut = rng.random() < 0.2
        if family.end is not None:
            ended = rng.choice([family.end, *family.also_ends])
            if not cut:
                sampled += encode(ended)
            closing = encode(family.end) if cut else []
            by_hand += sampled + closing + encode(behind)
        else:
            opener = "<|observation|>" if num_calls else "<|user|>"
            by_hand += sampled + encode(behind)
            if not cut:
                sampled += encode(opener)
        answer = chat_message(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [
                    {"id": found, "function": {"name": name, "arguments": arguments}}
                    for found, (name, arguments) in zip(ids, calls, strict=True)
                ],
            },
            0,
        )
        suffix = template.suffix(answer, new, tools=tools, system=system, kwargs={})
        joined = template.joined(sampled, suffix)
        assert not joined.doubled
        ours = ours + sampled + joined.token_ids
    return ours, by_hand


@pytest.mark.parametrize("name", FAMILIES)
def test_random_conversations_go_on_with_the_ids_of_prompts_built_by_hand(name: str):
    template = template_of(name)
    for seed in range(250):
        ours, by_hand = continued(random.Random(seed), FAMILIES[name], template)
        assert ours == by_hand, (seed, tokenizer_of(name).decode(ours), tokenizer_of(name).decode(by_hand))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_an_answer_is_read_from_the_template(name: str):
    tokenizer, template = tokenizer_of(name), template_of(name)
    family = FAMILIES[name]
    assert template.end == (tokenizer.convert_tokens_to_ids(family.end) if family.end else None)
    assert {*template.ends} - {template.end} == {*tokenizer.convert_tokens_to_ids([*family.also_ends])}
    assert template.asks_for_all == (name == "mistral")


def test_another_end_of_sequence_stays_and_the_template_s_end_follows():
    tokenizer, template = tokenizer_of("chatml"), template_of("chatml")
    other, end = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert template.joined([5, other], [7]).token_ids == [end, 7]
    assert template.joined([5, end], [7]).token_ids == [7]
    assert template.joined([], [7]).token_ids == [end, 7]


def test_a_stop_at_another_opener_than_the_next_is_kept_and_counted():
    tokenizer, template = tokenizer_of("glm"), template_of("glm")
    user, observation = tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    assert template.joined([5, user], [observation, 7]).doubled
    assert template.joined([5, user], [observation, 7]).token_ids == [observation, 7]
    assert template.joined([5, observation], [observation, 7]).token_ids == [7]


def test_a_template_that_drops_answers_is_refused():
    with pytest.raises(TemplateError, match="leaves out what an assistant said"):
        template_of("chatml", "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}{% endfor %}")


def test_control_tokens_in_texts_are_counted():
    assert template_of("chatml").control_tokens(["x<|im_end|>", "<|im_start|><|im_end|>", "plain"]) == 3
