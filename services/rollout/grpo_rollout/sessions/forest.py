"""The record of one session: an append-only forest of token sequences, and the messages that lead to each place in it.

Pure: no clock, engine or tokenizer. A *segment* is a whole sequence of token ids from position 0; a *turn* is a span of
it that was sampled. Everything outside turns is context. A segment that branches off repeats the ids before the fork as
context, so each sampled token is in one turn of one segment.

Messages form a tree beside it. A request is attached to the deepest turn whose messages begin the request's messages.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chat_form import ChatMessage, key, keys

Versions = list[tuple[int, int]]
"""Run-length: (policy version, number of tokens)."""


@dataclass(slots=True, eq=False)
class Node:
    """A message in its place after all messages before it.

    `turn`: the turn that sampled this message. `prompt`: where the prompt of turns that follow this message ends, as
    (segment, number of tokens).
    """

    message: ChatMessage | None
    parent: "Node | None"
    children: dict[bytes, list["Node"]] = field(default_factory=dict)
    turn: "Turn | None" = None
    prompt: "tuple[Segment, int] | None" = None

    def messages(self) -> list[ChatMessage]:
        """Return all messages up to this one, in order."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.message or {})
            node = node.parent
        return found[::-1]

    def child(self, message: ChatMessage) -> "Node":
        """Return the node of a message that was not sampled, behind this one."""
        for node in self.children.get(key(message), ()):
            if node.turn is None:
                return node
        return self.add(message)

    def add(self, message: ChatMessage, turn: "Turn | None" = None) -> "Node":
        node = Node(message, self, turn=turn)
        for found in keys(message):
            self.children.setdefault(found, []).append(node)
        return node

    def also(self, message: ChatMessage) -> None:
        """Let `message` stand for this one in later requests: a program was shown it so."""
        if self.parent is not None:
            known = self.parent.children.setdefault(key(message), [])
            if self not in known:
                known.append(self)


@dataclass(slots=True, eq=False)
class Segment:
    """A sequence of token ids; `logprobs` has one number for each token of its turns, in order."""

    index: int
    token_ids: "array[int]"
    parent: int | None
    fork_at: int | None
    fork_reason: str | None
    leaf: Node
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    turns: "list[Turn]" = field(default_factory=list)
    sampling: bool = False


@dataclass(slots=True, eq=False)
class Turn:
    """Tokens `start` to `end` of a segment, sampled in one go.

    `node`: the last message of its prompt. `answer`: the message that its tokens were parsed to, once sampled; `calls`:
    its calls as they were written.
    """

    number: int
    segment: Segment
    node: Node
    start: int
    label: str = ""
    end: int | None = None
    versions: Versions = field(default_factory=list)
    finish_reason: str | None = None
    answer: Node | None = None
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: int | str | None = None
    tools: list[dict[str, Any]] | None = None
    masked: str | None = None
    delivered: bool = False
    rewards: dict[str, float | None] = field(default_factory=dict)

    @property
    def num_sampled(self) -> int:
        return (self.end or self.start) - self.start

    @property
    def message(self) -> ChatMessage | None:
        return self.answer.message if self.answer is not None else None

    @property
    def token_ids(self) -> "array[int]":
        return self.segment.token_ids[self.start : self.end]

    @property
    def logprobs(self) -> "array[float]":
        before = 0
        for turn in self.segment.turns:
            if turn is self:
                break
            before += turn.num_sampled
        return self.segment.logprobs[before : before + self.num_sampled]

    @property
    def masked_reason(self) -> str | None:
        """Why this turn is not to be trained on: an answer that nobody got is `undelivered`."""
        return self.masked or (None if self.delivered else "undelivered")


@dataclass(frozen=True)
class Attachment:
    """Where a request belongs.

    `turn`: the deepest turn whose messages begin the request; None calls for a full render. `prompt`: the place where
    this very prompt has been rendered before. `new`: the messages behind the turn. `reason`: why this will be a fork,
    if it is one.
    """

    turn: Turn | None
    prompt: Node | None
    new: list[ChatMessage]
    reason: str | None


class Forest:
    """Everything that one session has sampled."""

    def __init__(self) -> None:
        self.roots: dict[bytes, Node] = {}
        self.segments: list[Segment] = []
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()

    # --- where a request belongs ---------------------------------------------------------------------------------

    def find(self, tools: bytes, messages: Sequence[ChatMessage]) -> Attachment:
        """Return where `messages` belong. `tools` is the digest of all else that a template renders."""
        turn, matched, reached = self._walk(tools, messages)
        prompt = next((node for node in reached if node.prompt), None)
        if prompt is not None:
            return Attachment(turn, prompt, [], "branch")
        if turn is not None:
            new = list(messages[matched:])
            edited = any(message["role"] == "assistant" for message in new)
            return Attachment(turn, None, new, "edited" if edited else "branch")
        return Attachment(None, None, list(messages), self._fork_reason(tools, messages))

    def _walk(self, tools: bytes, messages: Sequence[ChatMessage]) -> tuple[Turn | None, int, list[Node]]:
        """Return the deepest turn on the way, how many messages lead to it, and the nodes of all messages.

        Equal messages may have been sampled more than once: follow them all, and prefer the latest.
        """
        nodes = [self.roots[tools]] if tools in self.roots else []
        turn, matched = None, 0
        for count, message in enumerate(messages, 1):
            found = key(message)
            nodes = [child for node in nodes for child in node.children.get(found, ())]
            turned = [node.turn for node in nodes if node.turn is not None]
            if turned:
                turn, matched = turned[-1], count
        return turn, matched, nodes[::-1]

    def _fork_reason(self, tools: bytes, messages: Sequence[ChatMessage]) -> str | None:
        if not self.segments:
            return None
        for other in self.roots:
            turn, _, reached = self._walk(other, messages)
            if other != tools and (turn is not None or reached):
                return "tools"
        before = 0
        while before < len(messages) and messages[before]["role"] != "assistant":
            before += 1
        nodes = self._walk(tools, messages[:before])[2]
        answered = any(child.turn for node in nodes for group in node.children.values() for child in group)
        return "edited" if before < len(messages) and answered else "other_prompt"

    # --- recording -----------------------------------------------------------------------------------------------

    def begin(
        self,
        tools: bytes,
        attachment: Attachment,
        context: Sequence[int],
        *,
        label: str = "",
        masked: str | None = None,
    ) -> Turn:
        """Begin a turn: put `context` behind the attachment; the prompt is then `segment.token_ids` of the turn.

        Without a turn and a prompt to attach to, `context` is the whole prompt.
        """
        if attachment.prompt is not None and attachment.prompt.prompt is not None:
            node = attachment.prompt
            segment = self._place(attachment.prompt.prompt, node, attachment.reason)
        else:
            if attachment.turn is not None and attachment.turn.answer is not None:
                node = attachment.turn.answer
                place = (attachment.turn.segment, attachment.turn.end or attachment.turn.start)
                segment = self._place(place, node, attachment.reason)
            else:
                node = self.roots.setdefault(tools, Node(None, None))
                segment = self._segment(array("i"), None, None, attachment.reason, node)
            for message in attachment.new:
                node = node.child(message)
            segment.token_ids.extend(context)
            node.prompt = (segment, len(segment.token_ids))
        segment.leaf, segment.sampling = node, True
        turn = Turn(len(self.turns), segment, node, len(segment.token_ids), label=label, masked=masked)
        self.turns.append(turn)
        segment.turns.append(turn)
        return turn

    def _place(self, place: tuple[Segment, int], node: Node, reason: str | None) -> Segment:
        """Return the segment of `place` when it ends there and nobody samples in it, else one that branches off."""
        segment, end = place
        if len(segment.token_ids) == end and not segment.sampling:
            return segment
        return self._segment(segment.token_ids[:end], segment.index, end, reason or "branch", node)

    def _segment(
        self, token_ids: "array[int]", parent: int | None, fork_at: int | None, reason: str | None, leaf: Node
    ) -> Segment:
        segment = Segment(len(self.segments), token_ids, parent, fork_at, reason, leaf)
        self.segments.append(segment)
        return segment

    def finish(
        self,
        turn: Turn,
        *,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Versions,
        finish_reason: str,
        message: ChatMessage,
        text: str,
    ) -> None:
        """Record what was sampled. `token_ids` and `logprobs` have T entries each, and `versions` count T tokens."""
        counted = sum(count for _, count in versions)
        if not len(token_ids) == len(logprobs) == counted:
            raise ValueError(f"{len(token_ids)} tokens, {len(logprobs)} logprobs and {counted} versions")
        turn.segment.token_ids.extend(token_ids)
        turn.segment.logprobs.extend(logprobs)
        turn.segment.sampling = False
        turn.end = turn.start + len(token_ids)
        turn.versions, turn.finish_reason, turn.text = versions, finish_reason, text
        turn.segment.leaf = turn.answer = turn.node.add(message, turn)

    def abandon(self, turn: Turn) -> None:
        """Forget a turn of which nothing was sampled. Its context stays, for the turn that takes its place."""
        turn.end, turn.finish_reason = turn.start, "error"
        turn.segment.sampling = False
        turn.segment.turns.remove(turn)

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def sampled_segments(self) -> Iterator[Segment]:
        return (segment for segment in self.segments if segment.turns)

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_sampled for turn in self.turns)

    @property
    def num_turns(self) -> int:
        return sum(len(segment.turns) for segment in self.segments)

    @property
    def num_segments(self) -> int:
        return sum(1 for _ in self.sampled_segments)

    def stats(self) -> dict[str, Any]:
        """Count what was recorded: `sampled` tokens are those in turns, `masked` tokens by reason are among them."""
        forks = [segment for segment in self.sampled_segments if segment.fork_reason]
        masked: Counter[str] = Counter()
        for turn in self.turns:
            if turn.masked_reason is not None and turn.num_sampled:
                masked[turn.masked_reason] += turn.num_sampled
        return {
            "turns": self.num_turns,
            "forks": len(forks),
            "fork_reasons": dict(Counter(segment.fork_reason for segment in forks)),
            "sampled": self.num_sampled,
            "masked": dict(masked),
            "overruled": self.counts["overruled"],
            "control_tokens": self.counts["control_tokens"],
            "doubled_openers": self.counts["doubled_openers"],
        }
