"""The words of a command line: YAML files and flags, in any order. Flags are checked before a parser sees them."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from .keys import Keys
from .look_alikes import DASHES, described

_HELP = ("--help", "-h")


def split_words(argv: Sequence[str], keys: Keys) -> tuple[list[Path], list[str]]:
    """The files, from left to right, and the words of the flags, each with its value.

    Raises UsageError for a flag that is no setting, naming the nearest, for one without a value, and for a value that
    is no text.
    """
    for word in argv:
        check_text(word, word)
    files: list[Path] = []
    flags: list[str] = []
    words = iter(enumerate(argv))
    for index, word in words:
        if word in _HELP:
            flags.append(word)
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            has_next = index + 1 < len(argv) and not argv[index + 1].startswith("--")
            _check_flag(name, keys)
            if not equals and not has_next:
                raise UsageError(f"the flag {name} has no value", hint=f"write {name} VALUE, such as true or false")
            value = value if equals else next(words)[1]
            _check_value(name, value, keys)
            flags.append(f"{name}={value}")
        elif word and word[0] in DASHES and not Path(word).exists():
            meant = keys.nearest(word.partition("=")[0].lstrip(f"-{DASHES}"), prefix="--")
            raise UsageError(f"{word} begins with {described(word[0])}, and a flag with two hyphens", hint=meant)
        else:
            files.append(_file(word, keys))
    return files, flags


def check_text(value: str, where: str) -> None:
    """Raise UsageError for bytes that are no UTF-8, which Python gives as halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where.encode(errors='backslashreplace').decode()} is not UTF-8 text") from error


def _file(word: str, keys: Keys) -> Path:
    name, equals, value = word.partition("=")
    if equals and "/" not in name and not Path(word).exists():
        flag = f"--{name} {value}" if name in keys.known else keys.nearest(name, prefix="--")
        raise UsageError(f"{word} is no file", hint=f"a setting is a flag: {flag or '--section.key VALUE'}")
    return Path(word)


def _check_flag(flag: str, keys: Keys) -> None:
    name = flag.removeprefix("--")
    if flag.startswith("--") and name in keys.known:
        return
    if (mapping := keys.mapping_around(name)) is not None:
        key = name.removeprefix(f"{mapping}.").partition(".")[0]
        raise UsageError(f"unknown flag {flag}", hint=f"write the mapping as JSON: --{mapping} '{{\"{key}\": …}}'")
    raise UsageError(f"unknown flag {flag}", hint=keys.nearest(name.lstrip("-"), prefix="--"))


def _check_value(flag: str, value: str, keys: Keys) -> None:
    name = flag.removeprefix("--")
    if not value:
        raise UsageError(
            f"the flag {flag} has an empty value", hint=f"write {flag} VALUE; {flag} null takes a value back"
        )
    if keys.is_section(name) and not value.lstrip().startswith("{") and value not in ("null", "None"):
        raise UsageError(
            f"{flag} is a section of settings, and {value} is none", hint=f"did you mean --{keys.of_section(name)}?"
        )
