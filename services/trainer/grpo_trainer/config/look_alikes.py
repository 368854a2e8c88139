"""Characters that look like those of ASCII and are others: what pages and chats make of commands and files."""

import re
import unicodedata

DASHES = "‐‑‒–—―−﹘﹣－"
BLANKS = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
UNSEEN = "\u200b\u200c\u200d\u2060\ufeff"
WIDE_COLON = "："
_NO_YAML = re.compile(f"[{BLANKS}{UNSEEN}{WIDE_COLON}]")


def described(character: str) -> str:
    """Describe a character that cannot be told from another by its looks, such as `U+2014 (em dash)`."""
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'no name').lower()})"


def in_yaml(line: str) -> str | None:
    """Say what keeps a line from being the YAML that it looks like; None where nothing does."""
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return "is indented with a tab; YAML takes blanks"
    found = _NO_YAML.search(line)
    return f"has a {described(found[0])}, which YAML does not take for what it looks like" if found else None
