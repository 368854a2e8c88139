"""What changes variables or the arguments of a shell script in place of a command: `set --`, `shift`, `declare`."""

from collections.abc import Sequence

from .shell_words import Shell

DECLARES = ("export", "declare", "typeset", "local", "readonly")
_NOT_FOLLOWED = ("read", "mapfile", "readarray", "let")
"""Commands that set variables as only a shell would know."""


def sets(shell: Shell, words: Sequence[str], *, is_undecided: bool) -> bool:
    """Do what `words` change, or name it; return whether they are such a command. `is_undecided`: whether nothing is
    known of a condition or a loop around it."""
    word, *rest = words
    flags = "".join(one[1:] for one in rest if one.startswith("-"))
    names = [one.partition("=")[0] for one in rest if not one.startswith("-")]
    if word in ("shift", "unset") or (word == "set" and rest and ("--" in rest or rest[0][:1] not in ("-", "+"))):
        if is_undecided:
            shell.found.remark(
                f"{word} stands in a condition or a loop, which is not followed: write values in place of "
                f"{', '.join(names) if word == 'unset' else '$1'}"
            )
        elif word == "unset":
            for name in names:
                if "f" in flags:
                    shell.functions.pop(name, None)
                    continue
                shell.known.pop(name, None)
                shell.exported.pop(name, None)
                shell.arrays.pop(name, None)
        else:
            _set_arguments(shell, word, rest)
    elif word in DECLARES:
        _declare(shell, word, flags, rest, names)
    elif word in _NOT_FOLLOWED or (word == "printf" and rest[:1] == ["-v"]):
        shown = names[:1] if word == "printf" else names
        shell.found.remark(f"{word} {' '.join(shown)} is not followed: write values in its place")
    else:
        return False
    return True


def _set_arguments(shell: Shell, word: str, rest: Sequence[str]) -> None:
    if word == "shift":
        shell.set_arguments(shell.arguments[int(rest[0]) if rest and rest[0].isdecimal() else 1 :])
    elif any(mark in one for one in rest for mark in "$`"):
        shell.found.remark("set gives the script arguments that only a shell would know: write values in place of $1")
    else:
        shell.set_arguments(rest[rest.index("--") + 1 :] if "--" in rest else rest)


def _declare(shell: Shell, word: str, flags: str, rest: Sequence[str], names: Sequence[str]) -> None:
    if set(flags) - set("agrxp"):
        shell.found.remark(f"{word} -{flags} {' '.join(names)} is not followed: write values in its place")
    if word in ("declare", "typeset", "local") and "g" not in flags:
        shell.local |= set(names)
    if word == "export" or "x" in flags:
        shell.exported |= {name: shell.known[name] for name in names if name in shell.known}
    else:
        shell.assigned |= {one.partition("=")[0] for one in rest if "=" in one}
