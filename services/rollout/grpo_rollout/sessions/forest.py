"""The record of one session: an append-only forest of token sequences, and the messages that lead to each place in it.

Pure: no clock, engine or tokenizer. A *segment* is a whole sequence of token ids from position 0; a *turn* is a span of
it that was sampled. Everything outside turns is context. A segment that branches off repeats the ids before the fork as
context, so each sampled token is in one turn of one segment.

Messages form a tree beside it. A request is attached to the deepest turn whose messages begin the request's messages.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .chat_form import Canonical, ChatMessage, canonical

Versions = list[tuple[int, int]]
"""Run-length: (policy version, number of tokens)."""
Asked = tuple[int | None, tuple[str, ...]]
"""(max_tokens, stop strings) of a request."""


class Node:
    """A message in its place after all messages before it.

    `turn`: the turn that sampled this message. `prompt`: where the prompt of turns that follow this message ends, as
    (segment, number of tokens). `alias`: how else a program was shown this message.
    """

    __slots__ = ("alias", "bare", "children", "full", "message", "parent", "prompt", "turn")

    def __init__(self, message: ChatMessage | None, parent: "Node | None", turn: "Turn | None" = None):
        self.message, self.parent, self.turn = message, parent, turn
        self.children: list[Node] | None = None
        self.prompt: tuple[Segment, int] | None = None
        self.alias: ChatMessage | None = None
        # Hashes with the thought and without; the message itself is compared when one of them is equal.
        self.full = self.bare = 0
        if message is not None:
            self.full = self.bare = hash(canonical(message))
            if "reasoning_content" in message:
                self.bare = hash(canonical(message, thought=False))

    def messages(self) -> list[ChatMessage]:
        """Return all messages up to this one, in order."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.message or {})
            node = node.parent
        return found[::-1]

    def matching(self, message: ChatMessage) -> "list[Node]":
        """Return the nodes behind this one whose message equals `message`, in the order of their recording."""
        children = self.children
        if not children:
            return []
        if len(children) == 1 and children[0].message == message:
            return children  # the common case, without the canonical form
        asked = canonical(message)
        wanted = hash(asked)
        return [node for node in children if node._is(asked, wanted)]

    def _is(self, asked: Canonical, wanted: int) -> bool:
        message = self.message or {}
        return (
            (wanted == self.full and canonical(message) == asked)
            or (wanted == self.bare and canonical(message, thought=False) == asked)
            or (self.alias is not None and asked in (canonical(self.alias), canonical(self.alias, thought=False)))
        )

    def child(self, message: ChatMessage) -> "Node":
        """Return the node of a message that was not sampled, behind this one."""
        for node in self.matching(message):
            if node.turn is None:
                return node
        return self.add(message)

    def add(self, message: ChatMessage, turn: "Turn | None" = None) -> "Node":
        node = Node(message, self, turn=turn)
        if self.children is None:
            self.children = []
        self.children.append(node)
        return node

    def prompt_behind(self, message: ChatMessage) -> "Node | None":
        """Return the node of a message behind this one that has been the end of a prompt."""
        return next((node for node in self.matching(message) if node.prompt), None)


@dataclass(frozen=True, slots=True)
class Shown:
    """An image in a segment: its tokens begin at `start`.

    `name`: of the image. `rendering`, `number`: what it was processed in, see `pictures.py`, and its place there.
    """

    name: str
    start: int
    rendering: Any
    number: int


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
    shown: list[Shown] = field(default_factory=list)
    sampling: bool = False

    def shown_before(self, end: int) -> list[Shown]:
        """Return the images in the first `end` tokens, in order."""
        return [image for image in self.shown if image.start < end]


@dataclass(slots=True, eq=False)
class Turn:
    """Tokens `start` to `end` of a segment, sampled in one go.

    `node`: the last message of its prompt. `answer`: the message that its tokens were parsed to, once sampled; `calls`:
    its calls as they were written. `asked`: the limits of the request, which a retry repeats. `tools_key`: the digest
    of all else that the template rendered. `first_logprob`: the place of its first logprob in the segment's.
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
    calls: Sequence[dict[str, Any]] = ()
    stop_reason: int | str | None = None
    asked: Asked = (None, ())
    tools_key: bytes = b""
    first_logprob: int = 0
    masked: str | None = None
    delivered: bool = False
    rewards: dict[str, float | None] | None = None

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
        return self.segment.logprobs[self.first_logprob : self.first_logprob + self.num_sampled]

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
        self.tools: dict[bytes, list[dict[str, Any]] | None] = {}
        self.segments: list[Segment] = []
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        # Counted along: they are asked for at every turn, whose cost must not grow with the history.
        self.num_turns = self.num_segments = self.num_sampled = 0

    # --- where a request belongs ---------------------------------------------------------------------------------

    def find(self, tools: bytes, messages: Sequence[ChatMessage]) -> Attachment:
        """Return where `messages` belong. `tools` is the digest of all else that a template renders."""
        attachment = self._attach(self._root(tools), messages, None)
        if attachment.turn is None and attachment.prompt is None:
            return Attachment(None, None, list(messages), self._fork_reason(tools, messages))
        return attachment

    def find_behind(self, turn: Turn, messages: Sequence[ChatMessage]) -> Attachment:
        """Return where `messages` belong that follow the answer of a turn."""
        return self._attach([turn.answer] if turn.answer is not None else [], messages, turn)

    def longest_prefix(self, token_ids: Sequence[int]) -> Turn | None:
        """Return the longest turn whose ids, with all before it, begin `token_ids`."""
        given, best = array("i", token_ids).tobytes(), None
        for segment in self.segments:
            for turn in reversed(segment.turns):
                end = turn.end or 0
                if turn.answer is None or end > len(token_ids):
                    continue
                if best is not None and end <= (best.end or 0):
                    break
                if segment.token_ids[:end].tobytes() == given[: end * array("i").itemsize]:
                    best = turn
                    break
        return best

    def _root(self, tools: bytes) -> list[Node]:
        return [self.roots[tools]] if tools in self.roots else []

    def _attach(self, nodes: list[Node], messages: Sequence[ChatMessage], behind: Turn | None) -> Attachment:
        turn, matched, reached = self._walk(nodes, messages)
        turn = turn or behind
        prompt = next((node for node in reached if node.prompt), None)
        if prompt is not None:
            return Attachment(turn, prompt, [], "branch")
        new = list(messages[matched:])
        edited = any(message["role"] == "assistant" for message in new)
        return Attachment(turn, None, new, "edited" if edited else "branch")

    def _walk(self, nodes: list[Node], messages: Sequence[ChatMessage]) -> tuple[Turn | None, int, list[Node]]:
        """Return the deepest turn on the way, how many messages lead to it, and the nodes of all messages.

        Equal messages may have been sampled more than once: follow them all, and prefer the latest.
        """
        turn, matched = None, 0
        for count, message in enumerate(messages, 1):
            if not nodes:
                break
            nodes = [child for node in nodes for child in node.matching(message)]
            turned = [node.turn for node in nodes if node.turn is not None]
            if turned:
                turn, matched = turned[-1], count
        return turn, matched, nodes[::-1]

    def _fork_reason(self, tools: bytes, messages: Sequence[ChatMessage]) -> str | None:
        if not self.segments:
            return None
        for other in self.roots:
            turn, _, reached = self._walk(self._root(other), messages)
            if other != tools and (turn is not None or reached):
                return "tools"
        before = 0
        while before < len(messages) and messages[before]["role"] != "assistant":
            before += 1
        nodes = self._walk(self._root(tools), messages[:before])[2]
        answered = any(child.turn for node in nodes for child in node.children or ())
        return "edited" if before < len(messages) and answered else "other_prompt"

    # --- recording -----------------------------------------------------------------------------------------------

    def begin(
        self,
        tools: bytes,
        attachment: Attachment,
        context: Sequence[int],
        *,
        shown: Sequence[Shown] = (),
        label: str = "",
        masked: str | None = None,
    ) -> Turn:
        """Begin a turn: put `context` behind the attachment; the prompt is then `segment.token_ids` of the turn.

        Without a turn and a prompt to attach to, `context` is the whole prompt. `shown`: the images of `context`.
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
            before = len(segment.token_ids)
            segment.shown += [replace(image, start=before + image.start) for image in shown]
            segment.token_ids.extend(context)
            node.prompt = (segment, len(segment.token_ids))
        segment.leaf, segment.sampling = node, True
        turn = Turn(len(self.turns), segment, node, len(segment.token_ids), label=label, masked=masked, tools_key=tools)
        self.turns.append(turn)
        segment.turns.append(turn)
        self.num_turns += 1
        self.num_segments += len(segment.turns) == 1
        return turn

    def _place(self, place: tuple[Segment, int], node: Node, reason: str | None) -> Segment:
        """Return the segment of `place` when it ends there and nobody samples in it, else one that branches off."""
        segment, end = place
        if len(segment.token_ids) == end and not segment.sampling:
            return segment
        fork = self._segment(segment.token_ids[:end], segment.index, end, reason or "branch", node)
        fork.shown = segment.shown_before(end)
        return fork

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
        turn.first_logprob = len(turn.segment.logprobs)
        turn.segment.token_ids.extend(token_ids)
        turn.segment.logprobs.extend(logprobs)
        self.num_sampled += len(token_ids)
        turn.segment.sampling = False
        turn.end = turn.start + len(token_ids)
        turn.versions, turn.finish_reason, turn.text = versions, finish_reason, text
        turn.segment.leaf = turn.answer = turn.node.add(message, turn)

    def abandon(self, turn: Turn) -> None:
        """Forget a turn of which nothing was sampled. Its context stays, for the turn that takes its place."""
        turn.end, turn.finish_reason = turn.start, "error"
        turn.segment.sampling = False
        turn.segment.turns.remove(turn)
        self.num_turns -= 1
        self.num_segments -= not turn.segment.turns

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def sampled_segments(self) -> Iterator[Segment]:
        return (segment for segment in self.segments if segment.turns)

    def origin(self, segment: Segment) -> tuple[int | None, int | None]:
        """Return the segment that `segment` branched off, and where: the nearest in which something was sampled."""
        parent, fork_at = segment.parent, segment.fork_at
        while parent is not None and not self.segments[parent].turns:
            above = self.segments[parent]
            parent, fork_at = above.parent, min(fork_at or 0, above.fork_at or 0)
        return (parent, fork_at) if parent is not None else (None, None)

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
