"""Read the words that stand in a shell script, with what is known of its variables. No shell is run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config.look_alikes import BLANKS, UNSEEN, described
from .shell_values import arithmetic, computed, end_of, trimmed

ENDS_COMMAND = "\n;&|"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ITEMS = re.compile(r'("?)\$\{(\w+)\[[@*]\](?:\+("\$\{\2\[[@*]\]\}"))?(?::-)?\}\1')
"""All items of an array, also as scripts write it that may not read an empty one: `"${A[@]+"${A[@]}"}"`."""
_ARGUMENTS = re.compile(r'("?)\$(?:[@*]|\{[@*](?::(\d+))?\})\1(?![^\s;&|])')
_VARIABLE = re.compile(r"\$(?:#(?!\w)|\{#\}|(\w+)|\{(\w+)(?:(:?)([-=])((?:[^{}]|\{[^{}]*\})*))?\})")
"""A variable and its default: with `:` also of an empty one, by `=` set for what comes behind it."""
_TRIMMED = re.compile(r"\$\{(\w+)(##?|%%?)([^{}]+)\}")
_BRACED = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
_QUOTED = re.compile("\"([^\"]*)\"|'([^']*)'")
_CONTINUED = re.compile(r"\\[ \t]+(#[^\n]*)?\n")
_CURLY = re.compile("“[^”]*”|‘[^’]*’")
_TO_NOWHERE = re.compile(r"(?:[0-9]*>>?|&>)[ \t]*(?:/dev/null|&[0-9])")


@dataclass(frozen=True)
class Command:
    """One command: the variables that it is started with, and its words."""

    variables: dict[str, str]
    words: list[str]


@dataclass
class Script:
    """The commands of a file, and what could not be read as a shell would."""

    commands: list[Command] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    expanded: set[str] = field(default_factory=set)
    """Variables that stand in other words."""

    def remark(self, remark: str) -> None:
        if remark not in self.remarks:
            self.remarks.append(remark)


@dataclass
class Shell:
    """What a script has set up to where it is read."""

    arguments: Sequence[str] = ()
    known: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    """Variables that are set on a line of their own."""
    functions: dict[str, str] = field(default_factory=dict)
    """Function → its body."""
    called: set[str] = field(default_factory=set)
    calling: tuple[str, ...] = ()
    """The functions that are being read, the innermost last."""
    local: set[str] = field(default_factory=set)
    """Variables of the innermost function."""
    found: Script = field(default_factory=Script)

    def set_arguments(self, arguments: Sequence[str]) -> None:
        """Replace the arguments, `$1` and so on."""
        self.arguments = arguments
        named = {name: value for name, value in self.known.items() if name == "0" or not name.isdecimal()}
        self.known = named | {str(number): argument for number, argument in enumerate(arguments, start=1)}

    def is_as(self, other: "Shell") -> bool:
        """Return whether the same commands are read with the same variables."""
        mine, others = ((one.known, one.exported, one.arrays, one.found.commands) for one in (self, other))
        return mine == others


class WordReader:
    """`shell` is what is known where it reads; `at` is the place in `text`. `knows_all`: an argument that is not there
    is empty, as in a loop over the arguments."""

    def __init__(self, text: str, shell: Shell, *, knows_all: bool = False):
        self.text, self.at, self.shell, self.knows_all = text, 0, shell, knows_all

    def tokens(self, text: str) -> list[str] | None:
        """Return words and operators of a line; None where it is more than tests and commands that `&&` joins."""
        reader, found = WordReader(text, self.beside(), knows_all=self.knows_all), list[str]()
        while reader.at < len(text):
            if reader.skip():
                continue
            if nowhere := _TO_NOWHERE.match(text, reader.at):
                reader.at = nowhere.end()
            elif (operator := text[reader.at : reader.at + 2]) in ("&&", "||"):
                reader.at += 2
                found.append(operator)
            elif operator == "((" or text[reader.at] in ENDS_COMMAND:
                return None
            elif text[reader.at] in "()":
                found.append(text[reader.at])
                reader.at += 1
            else:
                found.append(" ".join(reader.words(ends=")")))
        return found

    def beside(self) -> Shell:
        """What is known, without a place for remarks: what they name is named where it stays."""
        return Shell(self.shell.arguments, self.shell.known, arrays=self.shell.arrays,
                     found=Script(expanded=self.shell.found.expanded))  # fmt: skip

    def skip(self) -> bool:
        """Go past what stands between words, and return whether something does: a blank, the end of a line that goes
        on, a comment."""
        character = self.text[self.at]
        if self.text.startswith("\\\n", self.at):
            self.at += 2
        elif continued := _CONTINUED.match(self.text, self.at):
            what = "a comment" if continued[1] else "a blank"
            self.shell.found.remark(f"{what} behind the \\ at the end of a line, which would end the command there")
            self.at = continued.end()
        elif character in BLANKS + UNSEEN:
            what = "left out" if character in UNSEEN else "read as a blank"
            self.shell.found.remark(f"{described(character)} is {what}")
            self.at += 1
        elif character in " \t":
            self.at += 1
        elif character == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif comment := re.compile(r"`#[^`]*`").match(self.text, self.at):  # inside of a command: it is nothing
            self.at = comment.end()
        else:
            return False
        return True

    def words(self, *, ends: str = "", may_assign: bool = False) -> list[str]:
        """Read the words that stand here: several for a variable with blanks or an array, none for an empty one."""
        if items := _ITEMS.match(self.text, self.at):
            self.at = items.end()
            if items[2] not in self.shell.arrays:
                self.shell.found.remark(f"${items[2]} is not set in what is imported: write its values in its place")
            found = self.shell.arrays.get(items[2], [])
            return list(found) if items[1] or items[3] else [word for item in found for word in item.split()]
        if every := _ARGUMENTS.match(self.text, self.at):
            self.at = every.end()
            return list(self.shell.arguments[max(int(every[2] or 1), 1) - 1 :])
        words, written = [""], False
        while self.at < len(self.text):
            character, rest = self.text[self.at], self.text[self.at :]
            if character in " \t" + BLANKS + ENDS_COMMAND + ends or _CONTINUED.match(rest):
                break
            if character in "$`":
                text = self._substitution()
                value = self.expanded(text)
                keeps = text.startswith(("$(", "`")) or (may_assign and ASSIGNMENT.match(words[0]))
                first, *others = [value] if keeps else re.split(r"\s+", value)
                words[-1] += first
                words += others
            elif rest.startswith("\\\n"):
                self.at += 2
            else:
                words[-1] += self._literal(at_start=words[-1] == "" or words[-1].endswith("="))
                written = True
        return [word for word in words if word or (written and len(words) == 1)]

    def _literal(self, *, at_start: bool) -> str:
        """Read what stands here, quoted or not. `at_start` of a word or a value, curly quotation marks quote, too."""
        character, rest = self.text[self.at], self.text[self.at :]
        if character in "'\"":
            inside = self._quoted(character)
            if character == "'":
                return inside
            return self.expanded(re.sub(r'\\([\\"$`\n])', lambda m: m[1].strip("\n"), inside))
        if at_start and (curly := _CURLY.match(rest)):
            self.shell.found.remark(f"{curly[0][0]} and {curly[0][-1]} are read as quotation marks")
            self.at += curly.end()
            return curly[0][1:-1]
        if character == "\\" and len(rest) > 1:
            self.at += 2
            return rest[1]
        self.at += 1
        if character in UNSEEN:
            self.shell.found.remark(f"{described(character)} is left out")
            return ""
        return character

    def _quoted(self, mark: str) -> str:
        end, start = end_of(self.text, self.at), self.at + 1
        if end is None:
            self.shell.found.remark(f"a {mark} without its end")
            self.at = len(self.text)
            return self.text[start:]
        self.at = end
        return self.text[start : end - 1]

    def _substitution(self) -> str:
        """The text of `$NAME`, `${…}`, `$(…)` or a pair of backticks."""
        start, end = self.at, None
        if self.text.startswith(("$(", "${"), start):
            end = end_of(self.text, start)
        elif found := re.compile(r"\$\w+|\$#|`[^`]*`").match(self.text, start):
            end = found.end()
        self.at = start + 1 if end is None else end
        return self.text[start : self.at]

    def _with_computed(self, text: str) -> str:
        """Put the values of sums and of places into a text, where they are known."""
        at = text.find("$(")
        while at >= 0 and (end := end_of(text, at)) is not None:
            value = self._computed(text[at:end])
            text, end = (text, end) if value is None else (text[:at] + value + text[end:], at + len(value))
            at = text.find("$(", end)
        return text

    def _computed(self, text: str) -> str | None:
        """Return what `$(…)` or `$((…))` stands for, where it is known."""
        if text.startswith("$((") and text.endswith("))"):
            names = _VARIABLE.sub(self._value, text[3:-2])
            return arithmetic(re.sub(r"[A-Za-z_]\w*", lambda name: self.shell.known.get(name[0], "?"), names))
        commands: list[list[str]] = [[]]
        for word in self.tokens(text[2:-1]) or ["$"]:
            if word == "&&":
                commands.append([])
            else:
                commands[-1].append(word)
        return computed(commands)

    def expanded(self, text: str) -> str:
        text = _TRIMMED.sub(self._trimmed, self._with_computed(text))
        for written in _BRACED.findall(text):
            if not _VARIABLE.fullmatch(written):
                self.shell.found.remark(f"no shell is run: {written} stays as it is written")
                self.shell.found.expanded.update(re.findall(r"\w+", written)[:1])
        if "$(" in text or "`" in text:
            self.shell.found.remark(f"no shell is run: {text} stays as it is written")
        return _VARIABLE.sub(self._value, text)

    def _trimmed(self, match: re.Match[str]) -> str:
        """Return `${NAME#PATTERN}` and its like, where the value and the pattern are known."""
        name, ends, pattern = match.groups()
        if name not in self.shell.known or "$" in pattern:
            return match[0]
        self.shell.found.expanded.add(name)
        return trimmed(self.shell.known[name], ends, pattern.strip("\"'"))

    def _value(self, match: re.Match[str]) -> str:
        if (name := match[1] or match[2]) is None:  # $#
            return str(len(self.shell.arguments))
        if name in self.shell.known and (self.shell.known[name] or not match[3]):
            self.shell.found.expanded.add(name)
            return self.shell.known[name]
        if (default := match[5]) is not None:
            value = _VARIABLE.sub(self._value, _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", default))
            if match[4] == "=":
                self.shell.known[name] = value
            return value
        if self.knows_all and name.isdecimal():
            return ""
        what = (
            "give the arguments of the script behind its file"
            if name.isdecimal() and name != "0"
            else "write its value in its place"
        )
        self.shell.found.remark(f"${name} is not set in what is imported: {what}")
        return match[0]
