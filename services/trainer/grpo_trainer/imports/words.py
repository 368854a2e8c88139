r"""Read the commands of a shell script, or of an argument list. No shell is run.

Understood are line continuations, quotes, comments, `VAR=value` before a command or by `export`, the script of a
`bash -c`, and `$VAR`, `${VAR}`, `${VAR:-default}` and `${ARRAY[@]}` of what the script sets itself, by `+=`, too, and
`$0`, `$1`, `"$@"` of the arguments that it is given. The environment is not looked at: what it holds may be a secret,
and another machine's. Conditions and loops are decided where all that they test is known (shell_conditions.py,
shell_loops.py). Of what a shell
would compute, sums and places of files are known (shell_values.py); all else stays as it is written, and is reported.

Slips of documents are read as they were meant, and reported: a blank or a comment behind the `\` that ends a line,
options on a line of their own behind a line without `\`, and what a page makes of blanks and quotation marks.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from .shell_conditions import CASE, ELSE, IF, PATTERN, TEST, Branches, matches, truth
from .shell_functions import HERE, function_at, script_in
from .shell_loops import BREAKS, FOR, MOST_TURNS, WHILE, Loop, breaks_by_itself, getopts, plain_test
from .shell_sets import DECLARES, sets
from .shell_words import ASSIGNMENT, ENDS_COMMAND, Command, Script, Shell, WordReader

_APPENDED = re.compile(r"([A-Za-z_]\w*)\+=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
NOT_CALLED = "called nowhere that is read"
_OPENS, _CLOSES, _BETWEEN = ("if", "for", "while", "until", "select"), ("fi", "done", "esac"), ("then", "else", "do")
_THIS_FILE = re.compile(r"\$\{BASH_SOURCE(?:\[0\])?\}|\$BASH_SOURCE\b")
_REDIRECTION = re.compile(r"[0-9]*[<>][>&]*[ \t]*")


def commands_of(
    text: str, arguments: Sequence[str] = (), *, path: str | None = None, variables: Mapping[str, str] | None = None
) -> Script:
    """Read a shell script that is started with `arguments`, as the file `path`, and with `variables` before it."""
    shell = Shell(known=dict(variables or {}) | ({} if path is None else {"0": path}), exported=dict(variables or {}))
    shell.set_arguments(arguments)
    return _Reader(f"{_THIS_FILE.sub('${0}', text)}\n".replace("\r\n", "\n"), shell).script()


def command_of(words: Sequence[str]) -> Command:
    """Read words that a shell has made, such as `NPROC_PER_NODE=2 swift rlhf --model …`."""
    variables: dict[str, str] = {}
    rest = list(words)
    while rest and (assigned := ASSIGNMENT.fullmatch(rest[0])):
        variables[assigned[1]] = assigned[2]
        rest.pop(0)
    return Command(variables, rest)


def _restore(known: dict[str, Any], earlier: Mapping[str, Any], names: set[str]) -> None:
    """Make variables again what they were."""
    for name in names:
        known.pop(name, None)
    known |= {name: earlier[name] for name in names & earlier.keys()}


class _Reader:
    """Reads the commands of a text; `source` reads their words."""

    def __init__(self, text: str, shell: Shell, *, is_within_undecided: bool = False):
        self.source = WordReader(text, shell, knows_all=bool(shell.calling))
        self.is_within_undecided = is_within_undecided
        self.words: list[str] = []
        self.replaced: dict[str, str | None] = {}
        """What the variables were that stand before a command; None: not set."""
        self.subshells = 0
        """Count of the subshells around what is read."""
        self.around: list[Branches] = []
        """The conditions and loops around it, the innermost last."""
        self.one: Branches | None = None
        """The condition of one command, behind `&&` or `||`."""
        self.turns = Counter[int]()
        """Of each `while`, by its place, how often its test was decided."""
        self.listed_from = 0
        """Where the commands begin that `&&` and `||` join."""

    @property
    def shell(self) -> Shell:
        return self.source.shell

    @property
    def is_undecided(self) -> bool:
        """Whether nothing is known of a condition or a loop around what is read."""
        return self.is_within_undecided or any(not one.decides for one in (*self.around, self.one) if one is not None)

    def script(self) -> Script:
        self.read()
        shell = self.shell
        for name in sorted(shell.assigned - shell.found.expanded - shell.exported.keys()):
            shell.found.remark(f"{name} is set and not exported, so the commands do not get it")
        for name in sorted(shell.functions.keys() - shell.called):
            shell.found.remark(f"the function {name} is {NOT_CALLED}, and is left out")
        return shell.found

    def read(self) -> None:
        source = self.source
        while source.at < len(source.text):
            if source.skip() or (not self.words and (self._defines() or self._control())):
                continue
            if source.text[source.at] in ENDS_COMMAND:
                self._operator()
            elif source.text[source.at] == "(" and not self.words:
                source.at, self.subshells = source.at + 1, self.subshells + 1
            elif source.text[source.at] == ")" and self.subshells:
                source.at, self.subshells = source.at + 1, self.subshells - 1
                self._end_command()
            elif here := HERE.match(source.text, source.at):
                self._leave_out_lines(here.end(), here[2])
            elif redirection := _REDIRECTION.match(source.text, source.at):
                source.at = redirection.end()
                target = " ".join(source.words())
                if not redirection[0].strip().endswith("&"):  # 2>&1 is a part of the one before
                    self.shell.found.remark(f"output is not redirected: {redirection[0].strip()} {target}")
            elif array := _ARRAY.match(source.text, source.at):
                self._assigns(array[1])
                source.at = array.end()
                before = self.shell.arrays.get(array[1], []) if array[2] else []
                self.shell.arrays[array[1]] = before + self._array()
            else:
                for word in source.words(ends=")" if self.subshells else "", may_assign=self._may_assign()):
                    self._add(word)
        self._end_command()

    def _defines(self) -> bool:
        """Go past the definition of a function, and return whether there is one."""
        found = function_at(self.source.text, self.source.at)
        if found is None:
            return False
        name, self.shell.functions[name], self.source.at = found
        return True

    def _control(self) -> bool:
        """Go past what opens or parts a condition, where it is decided; return whether something does."""
        source, inner = self.source, self.around[-1] if self.around else None
        if inner is not None and inner.waits and (pattern := PATTERN.match(source.text, source.at)):
            inner.waits, source.at = False, pattern.end()
            self._enter(inner, matches(inner.tested, pattern[1]))
        elif case := CASE.match(source.text, source.at):
            tested = (source.tokens(case[1]) or ["$"])[0]
            self.around.append(Branches(f"case {case[1]}", tested=None if "$" in tested else tested, waits=True))
            source.at = case.end()
        elif self._loop():
            pass
        elif inner is not None and ELSE.match(source.text, source.at):
            self._leave(inner)
            self._enter(inner, True if inner.decides else None)
            source.at += len("else")
        elif (test := IF.match(source.text, source.at)) and (test[1] == "if" or inner is not None):
            holds = truth(source.tokens(test[2]))
            if test[1] == "if" or inner is None:
                inner = Branches("")
                self.around.append(inner)
            self._leave(inner)
            inner.shown = f"{test[1]} {' '.join(test[2].split())}"
            self._enter(inner, holds)
            # Of a condition that is not decided the commands are read, too.
            source.at = test.start(2) if holds is None and inner.before is None else test.end()
        else:
            return False
        self.listed_from = source.at
        return True

    def _loop(self) -> bool:
        """Begin a turn of a loop that is decided, and return whether one does."""
        source, shell = self.source, self.shell
        if (begun := FOR.match(source.text, source.at)) is not None:
            items = [*shell.arguments] if begun[2] is None else self._items(begun[2])
            if items is None:
                return False
            loop = Loop(begun.end(), source.text, begun[1], items[1:])
            holds: bool | None = bool(items)
            shell.known |= {begun[1]: items[0]} if items else {}
        elif (begun := WHILE.match(source.text, source.at)) is not None:
            loop = Loop(source.at, source.text)
            self.turns[loop.begins] += 1
            holds = self._goes_on(begun[1], source.text[begun.end() :])
            if holds is None or self.turns[loop.begins] > MOST_TURNS:
                return False
        else:
            return False
        self._begin_turn(Branches(" ".join(begun[0].split()), loop=loop if holds else None, is_loop=True), begun.end())
        self._enter(self.around[-1], holds)
        return True

    def _begin_turn(self, branches: Branches, at: int) -> None:
        self.around.append(branches)
        self.source.at, self.source.knows_all = at, True

    def _goes_on(self, test: str, body: str) -> bool | None:
        shell, source = self.shell, self.source
        if (found := getopts(test, shell.arguments, shell.known)) is not None or breaks_by_itself(test, body):
            return found is not False
        plain = plain_test(test)
        beside = WordReader(source.text, shell, knows_all=True)
        return None if plain is None else truth(beside.tokens(plain))

    def _items(self, text: str) -> list[str] | None:
        """Return the words that a `for` goes through; None where only a shell would know them."""
        reader, found = WordReader(text, self.source.beside(), knows_all=self.source.knows_all), list[str]()
        while reader.at < len(text):
            if not reader.skip():
                found += reader.words()
        return None if any(mark in word for word in found for mark in "$`*?{") else found

    def _end_turn(self, branches: Branches) -> None:
        """Go back to where the next turn of a loop begins, if there is one."""
        source, loop = self.source, branches.loop
        if branches.is_loop:
            source.knows_all = bool(self.shell.calling) or any(one.is_loop for one in self.around)
        if loop is None or loop.items == []:
            return
        source.text, source.at = loop.text, loop.begins
        if loop.items:
            self.shell.known[loop.name] = loop.items.pop(0)
            self._begin_turn(branches, loop.begins)

    def _breaks(self, word: str, shown: str) -> bool:
        """Leave out the rest of a turn, or of a loop, at `break`, `continue` or `exit`; return whether there is one."""
        loops = [one for one in self.around if one.is_loop]
        if not loops or self.is_undecided:
            return False
        if any(one.before is not None for one in (*self.around, self.one) if one is not None):
            return True  # it stands where nothing is taken
        if word == "exit":
            self.shell.found.remark(f"the script would end at `{shown}` with these arguments")
        for one in loops if word == "exit" else loops[-1:]:
            one.before = deepcopy(self.shell)
            one.loop = one.loop if word == "continue" else None
        return True

    def _enter(self, branches: Branches, holds: bool | None) -> None:
        if branches.enter(holds):
            branches.before = deepcopy(self.shell)

    def _leave(self, branches: Branches) -> None:
        """End a branch; of one that is left out all is as it was before."""
        if branches.before is None:
            return
        is_as_before = branches.before.is_as(self.shell)
        self.source.shell, branches.before = branches.before, None
        if not is_as_before and not any(one.is_loop for one in (branches, *self.around)):
            self.shell.found.remark(f"what stands under `{branches.shown}` is left out: the script sets what is tested")

    def _operator(self) -> None:
        """End the command before `;`, a line's end, `&&` or `||`, and decide whether the one behind it is read."""
        source, start = self.source, self.source.at
        operator = source.text[start : start + 2]
        joins = operator in ("&&", "||")
        source.at += 2 if joins or operator == ";;" else 1
        self._end_command()
        if self.one is not None:
            self._leave(self.one)
            self.one = None
        listed = source.text[self.listed_from : start].strip()
        if joins and TEST.match(listed):
            holds = truth(source.tokens(listed))
            self.one = Branches(f"{' '.join(listed.split())} {operator}")
            self._enter(self.one, holds if holds is None or operator == "&&" else not holds)
        elif not joins:
            self.listed_from = source.at
        if operator == ";;" and self.around and self.around[-1].shown.startswith("case "):
            self._leave(self.around[-1])
            self.around[-1].waits = True

    def _leave_out_lines(self, at: int, end: str) -> None:
        """Leave out the lines that a command is given, up to the word `end`."""
        source = self.source
        source.at, line = at, source.text.find("\n", at)
        close = re.compile(rf"^[ \t]*{end}[ \t]*$", re.MULTILINE).search(source.text, max(line, at))
        if line >= 0 and close is not None:
            source.text = source.text[: line + 1] + source.text[close.end() + 1 :]

    def _add(self, word: str) -> None:
        if not self.words and word in (*_BETWEEN, "{", "}"):
            self._group(word)
            return
        appended = _APPENDED.fullmatch(word)
        if appended and not self.words:
            word = f"{appended[1]}={self.shell.known.get(appended[1], '')}{appended[2]}"
        assigned = ASSIGNMENT.fullmatch(word)
        if assigned and self._may_assign():
            self._assigns(assigned[1])
            if self.words[:1] == [] or self.words[0] not in DECLARES:
                self.replaced.setdefault(assigned[1], self.shell.known.get(assigned[1]))
            self.shell.known[assigned[1]] = assigned[2]
        self.words.append(word)

    def _group(self, word: str) -> None:
        """Begin or end `{ …; }`: the test before its `&&` decides on all of it."""
        if word == "{":
            group, self.one = self.one or Branches("{"), None
            group.is_group = True
            self.around.append(group)
        elif word == "}" and self.around and self.around[-1].is_group:
            self._leave(self.around.pop())

    def _assigns(self, name: str) -> None:
        if self.is_undecided:
            self.shell.found.remark(
                f"{name} is set in a condition or a loop, which is not decided here: what stands last counts"
            )

    def _may_assign(self) -> bool:
        declares = bool(self.words) and self.words[0] in DECLARES
        return declares or all(ASSIGNMENT.fullmatch(earlier) for earlier in self.words)

    def _array(self) -> list[str]:
        """Read the items of `NAME=(…)`, behind its parenthesis."""
        found, source = list[str](), self.source
        while source.at < len(source.text) and source.text[source.at] != ")":
            if source.skip():
                continue
            if source.text[source.at] in ENDS_COMMAND:  # a new line; an array has no operators
                source.at += 1
            else:
                found += source.words(ends=")")
        source.at += 1
        return found

    def _end_command(self) -> None:
        words, self.words = self.words, []
        replaced, self.replaced = self.replaced, {}
        if words:
            if command_of(words).words:  # it alone gets them
                _restore(self.shell.known, {k: v for k, v in replaced.items() if v is not None}, {*replaced})
            self._do(words)

    def _do(self, words: list[str]) -> None:
        if words[0] in _CLOSES:
            if self.around:
                ended = self.around.pop()
                self._leave(ended)
                self._end_turn(ended)
            return
        if words[0] in _OPENS:
            self.around.append(Branches(words[0], decides=False))
        if words[0] in BREAKS and self._breaks(words[0], " ".join(words)):
            return
        if words[0] == "return" and self.shell.calling:
            if not self.is_undecided and all(one is None or one.before is None for one in (*self.around, self.one)):
                self.source.at = len(self.source.text)
            return
        if words[0] == ":":  # its words alone count, as those of : "${X:=d}"
            return
        if sets(self.shell, words, is_undecided=self.is_undecided):
            return
        shell, command = self.shell, command_of(words)
        if command.words and command.words[0] in shell.functions:
            self._call(command)
        elif command.words[:1] == ["eval"] and not any(mark in " ".join(words) for mark in ("$(", "`")):
            self._read_here(" ".join(command.words[1:]))
        elif command.words and command.words[0].startswith("--") and shell.found.commands:
            shell.found.remark(
                f"{command.words[0]} stands behind a line without \\, and is read as part of the command"
            )
            shell.found.commands[-1].words.extend(command.words)
        elif (inner := script_in(command.words)) is not None:
            self._read_inner(inner, shell.exported | command.variables)
        elif command.words:
            shell.found.commands.append(Command(shell.exported | command.variables, command.words))
        else:
            shell.assigned |= command.variables.keys()
            shell.exported |= {name: shell.known[name] for name in command.variables.keys() & shell.exported.keys()}

    def _call(self, command: Command) -> None:
        """Read the body of a function, with the arguments and the variables that it is called with."""
        shell, (name, *arguments) = self.shell, command.words
        shell.called.add(name)
        if name in shell.calling:
            shell.found.remark(f"the function {name} calls itself, which is not followed")
            return
        around, outer, before = shell.arguments, shell.local, (shell.known, shell.exported, shell.arrays)
        shell.known, shell.exported = shell.known | command.variables, shell.exported | command.variables
        shell.arrays, shell.local, shell.calling = dict(shell.arrays), set(command.variables), (*shell.calling, name)
        shell.set_arguments(arguments)
        self._read_here(shell.functions[name])
        shell = self.shell
        _restore(shell.known, before[0], shell.local)
        _restore(shell.exported, before[1], shell.local)
        _restore(shell.arrays, before[2], shell.local)
        shell.calling, shell.local = shell.calling[:-1], outer
        shell.set_arguments(around)

    def _read_here(self, text: str) -> None:
        """Read commands as if they stood here."""
        inner = _Reader(f"{text}\n", self.shell, is_within_undecided=self.is_undecided)
        inner.read()
        self.source.shell = inner.shell

    def _read_inner(self, text: str, variables: dict[str, str]) -> None:
        """Read the script that a shell is given by `-c`, which sees `variables`."""
        inner = _Reader(text, Shell(known=dict(variables), exported=dict(variables))).script()
        self.shell.found.commands += inner.commands
        self.shell.found.expanded |= inner.expanded
        for remark in inner.remarks:
            self.shell.found.remark(remark)
