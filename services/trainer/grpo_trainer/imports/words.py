r"""Read the commands of a shell script, or of an argument list. No shell is run.

Understood are line continuations, quotes, comments, `VAR=value` before a command or by `export`, the script of a
`bash -c`, and `$VAR`, `${VAR}`, `${VAR:-default}` and `${ARRAY[@]}` of what the script sets itself, by `+=`, too, and
`$1`, `"$@"` of the arguments that it is given. The environment is not looked at: what it holds may be a secret, and
another machine's. What a shell would compute stays as it is written, and is reported.

Slips of documents are read as they were meant, and reported: a blank or a comment behind the `\` that ends a line,
options on a line of their own behind a line without `\`, and what a page makes of blanks and quotation marks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config.look_alikes import BLANKS, UNSEEN, described

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_APPENDED = re.compile(r"([A-Za-z_]\w*)\+=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_ITEMS = re.compile(r'("?)\$\{(\w+)\[[@*]\](?:\+("\$\{\2\[[@*]\]\}"))?(?::-)?\}\1')
"""All items of an array, also as scripts write it that may not read an empty one: `"${A[@]+"${A[@]}"}"`."""
_ARGUMENTS = re.compile(r'("?)\$(?:[@*]|\{[@*](?::(\d+))?\})\1(?![^\s;&|])')
_OPENS, _CLOSES, _BETWEEN = ("if", "for", "while", "until", "case"), ("fi", "done", "esac"), ("then", "else", "do")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-((?:[^{}]|\{[^{}]*\})*))?\})")
_BRACED = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
_QUOTED = re.compile("\"([^\"]*)\"|'([^']*)'")
_ENDS_COMMAND = "\n;&|"
_CONTINUED = re.compile(r"\\[ \t]+(#[^\n]*)?\n")
_CURLY = re.compile("“[^”]*”|‘[^’]*’")


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


def commands_of(text: str, arguments: Sequence[str] = ()) -> Script:
    """Read a shell script that is started with `arguments`."""
    return _Reader(text.replace("\r\n", "\n"), arguments).script()


def _script_in(words: Sequence[str]) -> str | None:
    """Return the script in `bash -c SCRIPT`, with whatever starts that shell before it."""
    for program, flag, script in zip(words, words[1:], words[2:], strict=False):
        if program.rpartition("/")[2] in ("bash", "sh") and re.fullmatch("-[a-z]*c", flag):
            return script
    return None


def command_of(words: Sequence[str]) -> Command:
    """Read words that a shell has made, such as `NPROC_PER_NODE=2 swift rlhf --model …`."""
    variables: dict[str, str] = {}
    rest = list(words)
    while rest and (assigned := _ASSIGNMENT.fullmatch(rest[0])):
        variables[assigned[1]] = assigned[2]
        rest.pop(0)
    return Command(variables, rest)


def _positions(arguments: Sequence[str]) -> dict[str, str]:
    return {str(number): argument for number, argument in enumerate(arguments, start=1)}


class _Reader:
    def __init__(self, text: str, arguments: Sequence[str] = ()):
        self.text, self.at, self.arguments = text, 0, arguments
        self.known = _positions(arguments)
        self.exported: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.assigned: set[str] = set()
        """Variables that are set on a line of their own."""
        self.words: list[str] = []
        self.depth = self.subshells = 0
        """Counts of the conditions and loops, and of the subshells, around what is read."""
        self.found = Script()

    def script(self) -> Script:
        while self.at < len(self.text):
            if self._skip():
                continue
            if self.text[self.at] in _ENDS_COMMAND:
                self.at += 1
                self._end_command()
            elif self.text[self.at] == "(" and not self.words:
                self.at, self.subshells = self.at + 1, self.subshells + 1
            elif self.text[self.at] == ")" and self.subshells:
                self.at, self.subshells = self.at + 1, self.subshells - 1
                self._end_command()
            elif redirection := re.compile(r"[0-9]*[<>][>&]*[ \t]*").match(self.text, self.at):
                self.at = redirection.end()
                target = " ".join(self._words())
                if not redirection[0].strip().endswith("&"):  # 2>&1 is a part of the one before
                    self._remark(f"output is not redirected: {redirection[0].strip()} {target}")
            elif array := _ARRAY.match(self.text, self.at):
                self._assigns(array[1])
                self.at = array.end()
                before = self.arrays.get(array[1], []) if array[2] else []
                self.arrays[array[1]] = before + self._array()
            else:
                for word in self._words(ends=")" if self.subshells else ""):
                    self._add(word)
        self._end_command()
        for name in sorted(self.assigned - self.found.expanded - self.exported.keys()):
            self._remark(f"{name} is set and not exported, so the commands do not get it")
        return self.found

    def _skip(self) -> bool:
        """Go past what stands between words, and return whether something does: a blank, the end of a line that goes
        on, a comment."""
        character = self.text[self.at]
        if self.text.startswith("\\\n", self.at):
            self.at += 2
        elif continued := _CONTINUED.match(self.text, self.at):
            what = "a comment" if continued[1] else "a blank"
            self._remark(f"{what} behind the \\ at the end of a line, which would end the command there")
            self.at = continued.end()
        elif character in BLANKS + UNSEEN:
            self._remark(f"{described(character)} is {'left out' if character in UNSEEN else 'read as a blank'}")
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

    def _remark(self, remark: str) -> None:
        if remark not in self.found.remarks:
            self.found.remarks.append(remark)

    def _add(self, word: str) -> None:
        if not self.words and word in _BETWEEN:
            return
        appended = _APPENDED.fullmatch(word)
        if appended and not self.words:
            word = f"{appended[1]}={self.known.get(appended[1], '')}{appended[2]}"
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and self._may_assign():
            self._assigns(assigned[1])
            self.known[assigned[1]] = assigned[2]
        self.words.append(word)

    def _assigns(self, name: str) -> None:
        if self.depth:
            self._remark(f"{name} is set in a condition or a loop, which is not decided here: what stands last counts")

    def _may_assign(self) -> bool:
        return self.words[:1] == ["export"] or all(_ASSIGNMENT.fullmatch(earlier) for earlier in self.words)

    def _array(self) -> list[str]:
        """Read the items of `NAME=(…)`, behind its parenthesis."""
        found: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self._skip():
                continue
            if self.text[self.at] in _ENDS_COMMAND:  # a new line; an array has no operators
                self.at += 1
            else:
                found += self._words(ends=")")
        self.at += 1
        return found

    def _end_command(self) -> None:
        words, self.words = self.words, []
        if not words:
            return
        if words[0] in _CLOSES:
            self.depth = max(0, self.depth - 1)
            return
        if words[0] in _OPENS:
            self.depth += 1
        if words[0] == "shift":
            self._shift(words[1:])
            return
        command = command_of(words)
        if words[0] == "export":
            self.exported |= {
                name: self.known[name] for name in (w.partition("=")[0] for w in words[1:]) if name in self.known
            }
        elif command.words and command.words[0].startswith("--") and self.found.commands:
            self._remark(f"{command.words[0]} stands behind a line without \\, and is read as part of the command")
            self.found.commands[-1].words.extend(command.words)
        elif (inner := _script_in(command.words)) is not None:
            self._read_inner(inner, self.exported | command.variables)
        elif command.words:
            self.found.commands.append(Command(self.exported | command.variables, command.words))
        else:
            self.assigned |= command.variables.keys()

    def _shift(self, words: Sequence[str]) -> None:
        if self.depth:
            self._remark("shift stands in a condition or a loop, which is not followed: write values in place of $1")
            return
        self.arguments = self.arguments[int(words[0]) if words and words[0].isdecimal() else 1 :]
        named = {name: value for name, value in self.known.items() if not name.isdecimal()}
        self.known = named | _positions(self.arguments)

    def _read_inner(self, text: str, variables: dict[str, str]) -> None:
        """Read the script that a shell is given by `-c`, which sees `variables`."""
        reader = _Reader(text)
        reader.known, reader.exported = dict(variables), dict(variables)
        inner = reader.script()
        self.found.commands += inner.commands
        self.found.expanded |= inner.expanded
        for remark in inner.remarks:
            self._remark(remark)

    def _words(self, *, ends: str = "") -> list[str]:
        """Read the words that stand here: several for a variable with blanks or an array, none for an empty one."""
        if items := _ITEMS.match(self.text, self.at):
            self.at = items.end()
            if items[2] not in self.arrays:
                self._remark(f"${items[2]} is not set in what is imported: write its values in its place")
            found = self.arrays.get(items[2], [])
            return list(found) if items[1] or items[3] else [word for item in found for word in item.split()]
        if every := _ARGUMENTS.match(self.text, self.at):
            self.at = every.end()
            return list(self.arguments[max(int(every[2] or 1), 1) - 1 :])
        words, written = [""], False
        while self.at < len(self.text):
            character, rest = self.text[self.at], self.text[self.at :]
            if character in " \t" + BLANKS + _ENDS_COMMAND + ends or _CONTINUED.match(rest):
                break
            if character in "$`":
                text = self._substitution()
                value = self._expanded(text)
                keeps = text.startswith(("$(", "`")) or (self._may_assign() and _ASSIGNMENT.match(words[0]))
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
            return self._expanded(re.sub(r'\\([\\"$`\n])', lambda m: m[1].strip("\n"), inside))
        if at_start and (curly := _CURLY.match(rest)):
            self._remark(f"{curly[0][0]} and {curly[0][-1]} are read as quotation marks")
            self.at += curly.end()
            return curly[0][1:-1]
        if character == "\\" and len(rest) > 1:
            self.at += 2
            return rest[1]
        self.at += 1
        if character in UNSEEN:
            self._remark(f"{described(character)} is left out")
            return ""
        return character

    def _quoted(self, mark: str) -> str:
        # Within double quotes `${NAME:-"…"}` has quotes of its own.
        inner = r'"((?:\$\{(?:[^{}]|\{[^{}]*\})*\}|[^"\\]|\\.)*)"'
        pattern = re.compile(r"'([^']*)'" if mark == "'" else inner, re.DOTALL)
        inside = pattern.match(self.text, self.at)
        if inside is None:
            self._remark(f"a {mark} without its end")
            start, self.at = self.at + 1, len(self.text)
            return self.text[start:]
        self.at = inside.end()
        return inside[1]

    def _substitution(self) -> str:
        """The text of `$NAME`, `${…}`, `$(…)` or a pair of backticks."""
        pattern = re.compile(r"\$\w+|\$\{(?:[^{}]|\{[^{}]*\})*\}|\$\([^)]*\)|`[^`]*`|[$`]")
        found = pattern.match(self.text, self.at)
        text = self.text[self.at] if found is None else found[0]
        self.at += len(text)
        return text

    def _expanded(self, text: str) -> str:
        for written in _BRACED.findall(text):
            if not _VARIABLE.fullmatch(written):
                self._remark(f"no shell is run: {written} stays as it is written")
                self.found.expanded.update(re.findall(r"\w+", written)[:1])
        if "$(" in text or "`" in text:
            self._remark(f"no shell is run: {text} stays as it is written")
        return _VARIABLE.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in self.known:
            self.found.expanded.add(name)
            return self.known[name]
        if match[3] is not None:
            return _VARIABLE.sub(self._value, _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", match[3]))
        what = (
            "give the arguments of the script behind its file"
            if name.isdecimal() and name != "0"
            else "write its value in its place"
        )
        self._remark(f"${name} is not set in what is imported: {what}")
        return match[0]
