"""Where a request belongs in the record of its session, and which token ids, and images among them, are new there.

Waits for: the thread that renders whole prompts, and the processor of images.
"""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from grpo_proto.server.refusal import Refusal

from ..completion_text import CompletionText
from .chat_form import BadMessagesError, ChatMessage, as_texts, check_new, digest, images_of, text_of
from .forest import Attachment, Shown
from .pictures import Pictures
from .session import Session
from .template import ChatTemplate, Suffix, TemplateError
from .wanted import Wanted

logger = logging.getLogger("vllm.grpo_rollout.sessions")


@dataclass(frozen=True)
class NewPrompt:
    """What a turn is to be sampled from: `suffix` behind `place`, and the images `shown` in it, from its first id.

    `images`: by name, the base64 of those, which the session keeps once the turn begins.
    """

    tools_key: bytes
    place: Attachment
    suffix: Suffix
    shown: Sequence[Shown] = ()
    images: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return _length_before(self.place) + len(self.suffix.token_ids)

    @property
    def forks(self) -> bool:
        """Whether a turn there begins a segment."""
        if self.place.prompt is not None and self.place.prompt.prompt is not None:
            segment, end = self.place.prompt.prompt
        elif self.place.turn is not None:
            segment, end = self.place.turn.segment, self.place.turn.end or 0
        else:
            return True
        return segment.sampling or len(segment.token_ids) != end


@dataclass(frozen=True)
class Prompts:
    """Finds and renders the prompts of turns; one instance per server.

    `template`: None when the chat template cannot continue a turn; turns then take token ids. `thread` renders whole
    prompts. `placeholder`: the text of the token that stands for an image, None for a model without vision.
    """

    template: ChatTemplate | None
    pictures: Pictures
    text: CompletionText
    thread: Executor | None
    default_kwargs: Mapping[str, Any]
    vocab_size: int
    placeholder: str | None = None

    def kwargs_of(self, session: Session) -> dict[str, Any]:
        """Return what a session's chat template is given beside messages and tools."""
        return {**self.default_kwargs, **session.request.chat_template_kwargs}

    def tools_key(self, session: Session, wanted: Wanted) -> bytes:
        return digest([wanted.tools, self.kwargs_of(session)])

    def place(self, session: Session, wanted: Wanted, tools_key: bytes) -> Attachment:
        """Return where a request belongs."""
        if wanted.token_ids is not None:
            return self._by_prefix(session, wanted.token_ids, tools_key)
        if self.template is None:
            raise Refusal(400, "no_chat_template", "the chat template cannot continue a turn; send token_ids")
        parent = wanted.parent
        if parent is not None and parent.tools_key == tools_key:
            return session.forest.find_behind(parent, wanted.messages)
        return session.forest.find(tools_key, wanted.history())

    async def rendered(self, session: Session, wanted: Wanted, tools_key: bytes, place: Attachment) -> NewPrompt:
        """Return what is new behind `place`, its images expanded. Raises Refusal (400) for what cannot be rendered."""
        if place.prompt is not None:
            return NewPrompt(tools_key, place, Suffix([]))
        before = len(place.turn.segment.shown_before(place.turn.end or 0)) if place.turn is not None else 0
        # Before the chat template, which a model without vision may have for texts alone.
        self.pictures.check_count(before + len(images_of(place.new)))
        if wanted.token_ids is not None:
            new = wanted.token_ids[_length_before(place) :]
            return await self._with_images(session, wanted, NewPrompt(tools_key, place, Suffix(new)))
        try:
            prompt = await self._messages_rendered(session, wanted, tools_key, place)
        except (BadMessagesError, TemplateError) as error:
            raise Refusal(400, "invalid_messages", str(error)) from error
        return await self._with_images(session, wanted, prompt)

    async def _messages_rendered(
        self, session: Session, wanted: Wanted, tools_key: bytes, place: Attachment
    ) -> NewPrompt:
        template, kwargs = self.template, self.kwargs_of(session)
        if template is None:
            raise RuntimeError("place has refused this request")
        if place.turn is not None and place.turn.answer is not None:
            answer = place.turn.answer
            check_new(place.new, before=[answer.message or {}], position=wanted.position(place.new))
            system = wanted.system() if template.asks_for_all else None
            new = as_texts(place.new, self.placeholder)
            try:
                suffix = template.suffix(answer.message, new, tools=wanted.tools, system=system, kwargs=kwargs)
                return NewPrompt(tools_key, place, template.joined(place.turn.token_ids, suffix))
            except TemplateError as error:
                logger.warning("session %s: a full render for a turn: %s", session.session_id, error)
                place = Attachment(None, None, wanted.history(), "template")
        messages = wanted.history()
        if any(message["role"] == "context" for message in messages):
            raise BadMessagesError("a turn of token ids goes on by messages with the tools of its own alone")
        check_new(messages)
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(
            self.thread, template.prompt, as_texts(messages, self.placeholder), wanted.tools, kwargs
        )
        again = session.forest.find(tools_key, messages)
        if again.prompt is not None:
            return NewPrompt(tools_key, again, Suffix([]))
        return NewPrompt(tools_key, place, Suffix(context))

    async def _with_images(self, session: Session, wanted: Wanted, prompt: NewPrompt) -> NewPrompt:
        """Expand the images of what is new. Another request may have begun with the same prompt meanwhile."""
        place, suffix = prompt.place, prompt.suffix
        names = images_of(place.new)
        if not suffix.token_ids or not (names or self.pictures.takes_any):
            return prompt
        encoded = ChainMap(dict(wanted.images), session.images)
        ids, shown = await self.pictures.expanded(suffix.token_ids, names, encoded)
        if not shown:
            return prompt
        again = self.place(session, wanted, prompt.tools_key)
        if again.prompt is not None:
            return NewPrompt(prompt.tools_key, again, Suffix([]))
        images = {name: encoded[name] for name in names}
        return NewPrompt(prompt.tools_key, place, Suffix(ids, suffix.doubled), shown, images)

    def _by_prefix(self, session: Session, token_ids: list[int], tools_key: bytes) -> Attachment:
        """Attach a whole prompt of ids to the longest turn that it begins with."""
        if max(token_ids) >= self.vocab_size:
            raise Refusal.invalid(
                "unknown_token",
                f"the prompt holds token {max(token_ids)}; the vocabulary ends at {self.vocab_size - 1}",
            )
        best = session.forest.longest_prefix(token_ids)
        context = token_ids[best.end or 0 :] if best is not None else token_ids
        (text,) = self.text.decode([context])
        message: ChatMessage = {"role": "context", "content": text, "token_ids": digest(context).hex()}
        node = best.answer if best is not None else session.forest.roots.get(tools_key)
        known = node.prompt_behind(message) if node is not None else None
        if known is not None:
            return Attachment(best, known, [], "branch")
        reason = "branch" if best is not None else ("other_prompt" if session.forest.segments else None)
        return Attachment(best, None, [message], reason)

    def count_control_tokens(self, session: Session, place: Attachment) -> None:
        if self.template is not None:
            texts = (text_of(message["content"]) for message in place.new if message["role"] in ("user", "tool"))
            session.forest.counts["control_tokens"] += self.template.control_tokens(texts)


def _length_before(attachment: Attachment) -> int:
    if attachment.prompt is not None and attachment.prompt.prompt is not None:
        return attachment.prompt.prompt[1]
    return attachment.turn.end or 0 if attachment.turn is not None else 0
