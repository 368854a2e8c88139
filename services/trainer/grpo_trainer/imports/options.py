"""The options that a command of another trainer gives, and which of them have been read."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config.look_alikes import BLANKS, DASHES, WIDE_COLON
from ..config.peer_options import OFF_WITHOUT_VALUE, PeerOptions
from ..errors import UsageError

_SECRET = re.compile(r"(api_?key|access_?key|secret|secret_?key|token|password|passwd|webhook_url)$", re.IGNORECASE)
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_GLUED = re.compile(r"([^-].*?)(--([A-Za-z][\w-]*)(?:=.*)?)", re.DOTALL)
_MEANT = re.compile(rf"[-{DASHES}]{{1,3}}([A-Za-z][\w-]*)(?:[=:{WIDE_COLON}{BLANKS}]+(.*))?", re.DOTALL)
"""Forms of an option in a copied command: `—beta`, `-beta`, `--beta: 0.1`, or a blank that is no blank."""
GATHERED = ("external_plugins",)
"""Options whose older name may stand beside the newer: ms-swift reads the files of both."""
LONGEST_SHOWN = 200
"""Characters of a value in a comment: a chat template has thousands."""


class Options:
    """Option → its values, under the name that the peer has for it now. What nobody reads is reported at the end."""

    def __init__(self, peer: PeerOptions):
        self.peer = peer
        self.given: dict[str, list[str]] = {}
        self.written_as: dict[str, str] = {}
        self.remarks: list[str] = []
        self._read: set[str] = set()

    def add_words(self, words: Sequence[str]) -> list[str]:
        """Read `--option value …` and return the words before the first option."""
        before: list[str] = []
        name: str | None = None
        for word in self._taken_apart(words):
            option = _OPTION.fullmatch(word)
            if option is None:
                (before if name is None else self.given[name]).append(word)
                continue
            name = self._begin(option[1])
            if option[2] is not None:
                self.given[name].append(option[2])
        for name, values in self.given.items():
            self.given[name] = self._without_commas(name, values)
        return before

    def _without_commas(self, name: str, values: list[str]) -> list[str]:
        """Read `--option "a", "b"` as a shell's list, as documents have it; a list in JSON stays as it is."""
        if len(values) < 2 or values[0].startswith(("[", "{")) or not any(value.endswith(",") for value in values):
            return values
        self.remarks.append(f"the commas in --{name} {' '.join(values)} are left out")
        return [value.rstrip(",") for value in values if value != ","]

    def add_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Read the keys of a YAML file. Options that are there already stay: a flag overrides a file."""
        for name, value in mapping.items():
            plain = self.peer.older.get(str(name), str(name))
            if plain in GATHERED and self.written_as.get(plain, name) != name:
                self.given[plain] += [_text(item) for item in (value if isinstance(value, list) else [value])]
                continue
            if plain in self.given or value == [] or (value is None and plain not in OFF_WITHOUT_VALUE):
                continue
            self.given[plain] = [_text(item) for item in value] if isinstance(value, list) else [_text(value)]
            self.written_as[plain] = str(name)

    def _taken_apart(self, words: Sequence[str]) -> list[str]:
        found: list[str] = []
        for word in words:
            glued, meant = _GLUED.fullmatch(word), _MEANT.fullmatch(word)
            if meant and not _OPTION.fullmatch(word) and self._knows(meant[1]):
                written = word[: meant.start(2)] if meant[2] else word  # without its value, which may be a secret
                self.remarks.append(f"{written} is read as --{meant[1]}")
                found += [f"--{meant[1]}", *([meant[2]] if meant[2] else [])]
            elif word == "=" and found and _OPTION.fullmatch(found[-1]):
                self.remarks.append(f"{found[-1]} = is read as {found[-1]}")
            elif glued and self._knows(glued[3]):
                self.remarks.append(
                    f"{word} is read as {glued[1]} {glued[2]}: there is no blank before the \\ at the end of its line"
                )
                found += [glued[1], glued[2]]
            else:
                found.append(word)
        return found

    def _knows(self, written: str) -> bool:
        name = written.replace("-", "_")
        return name in self.peer.known or name in self.peer.older

    def _begin(self, written: str) -> str:
        name = written.replace("-", "_")
        positive = name.removeprefix("no_")
        values = []
        if name not in self.peer.known and name != positive and positive in self.peer.known:
            name, values = positive, ["false"]
        name = self.peer.older.get(name, name)
        if name in GATHERED and self.written_as.get(name, written) != written:
            return name
        if name in self.given:
            self.remarks.append(f"--{written} is there twice: the last one counts")
        self.given[name], self.written_as[name] = values, written
        return name

    def shown(self, name: str) -> str:
        """The option as it was given; a secret is not shown."""
        written, values = self.written_as[name], self.given[name]
        if written.replace("-", "_") == f"no_{name}":
            return f"--{written}"
        text = " ".join("…" if _SECRET.search(name) else value for value in values)
        text = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} …"
        return f"--{written} {text}".rstrip()

    def has(self, name: str) -> bool:
        return name in self.given

    def note_read(self, names: Iterable[str]) -> None:
        self._read.update(names)

    def values(self, name: str) -> list[str] | None:
        """The values of an option, or None where it is not given. A flag without a value is `true`. Raises UsageError
        for another option without one."""
        self._read.add(name)
        if name not in self.given:
            return None
        if not self.given[name] and not self._is_flag(name):
            raise UsageError(
                f"--{self.written_as[name]} has no value", hint="write one, or see which variable behind it is empty"
            )
        return self.given[name] or ["true"]

    def _is_flag(self, name: str) -> bool:
        try:
            return isinstance(self.peer.default(name), bool)
        except KeyError:  # nothing is set by it
            return True

    def text(self, name: str) -> str | None:
        values = self.values(name)
        if values is None:
            return None
        if len(values) > 1:
            raise UsageError(f"{self.shown(name)} has {len(values)} values, and one is expected")
        return values[0]

    def number(self, name: str) -> int | float | None:
        """Raises UsageError for a value that is no number."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
            return int(value) if value == int(value) else value
        except (ValueError, OverflowError) as error:  # infinity is no number of anything
            raise UsageError(f"{self.shown(name)} is no number") from error

    def whole(self, name: str) -> int | None:
        """Raises UsageError for a value that is no whole number."""
        value = self.number(name)
        if isinstance(value, float):
            raise UsageError(f"{self.shown(name)} is no whole number")
        return value

    def truth(self, name: str) -> bool | None:
        """Raises UsageError for a value that is neither true nor false."""
        self._read.add(name)
        if self.given.get(name) == []:
            return True
        text = self.text(name)
        return None if text is None else truth_of(text, self.shown(name))

    def or_default(self, name: str) -> Any:
        """The text of an option, or the peer's default."""
        text = self.text(name)
        return self.peer.default(name) if text is None else text

    @property
    def unread(self) -> list[str]:
        """The given options that nothing has read."""
        return [name for name in self.given if name not in self._read]


def given(options: Options, *names: str) -> list[str]:
    """Those of some options that are given, as they were. They count as read: the caller says something of them."""
    options.note_read(names)
    return [options.shown(name) for name in names if options.has(name)]


def truth_of(text: str, shown: str) -> bool:
    """What argparse's and transformers' parsers take for a truth value. Raises UsageError."""
    plain = text.lower()
    if plain in ("true", "t", "yes", "y", "1", "on"):
        return True
    if plain in ("false", "f", "no", "n", "0", "off"):
        return False
    raise UsageError(f"{shown} is neither true nor false")


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)
