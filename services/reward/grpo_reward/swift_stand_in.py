"""What a reward plugin for ms-swift imports, where ms-swift is not installed: `ORM`, `AsyncORM`, `orms`, `get_logger`.

Its plugins begin with `from swift.rewards import ORM, orms` (`swift.plugin` in older ones). To run such a file
unchanged those names are all that is needed; the real package brings torch and a trainer with it.
"""

import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any

REGISTRIES = ("swift.rewards", "swift.rewards.orm", "swift.plugin", "swift.plugin.orm")


class ORM:
    """An outcome reward: a subclass has `__call__(self, completions, **columns)` and returns a list of numbers."""

    def __init__(self, args: Any = None, **kwargs: Any):
        self.args = args


class AsyncORM(ORM):
    """The same with an `async` `__call__`."""


def stand_in() -> None:
    """Make `import swift.rewards` and `import swift.plugin` work. Does nothing where ms-swift is installed."""
    if "swift" in sys.modules or importlib.util.find_spec("swift") is not None:
        return
    contents = {
        "ORM": ORM, "AsyncORM": AsyncORM, "orms": {}, "prms": {}, "rm_plugins": {},
        "get_logger": lambda *_, **__: logging.getLogger("swift"),
    }  # fmt: skip
    for name in ("swift", "swift.utils", *REGISTRIES):
        module = ModuleType(name, __doc__)
        module.__path__ = []  # a package, so that what is missing in it is a ModuleNotFoundError with its name
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def registered() -> dict[str, type[Any]]:
    """Name → class in `orms`, of ms-swift's or of this stand-in's; empty when no plugin has imported it."""
    for name in REGISTRIES:
        found = getattr(sys.modules.get(name), "orms", None)
        if isinstance(found, dict):
            return dict(found)
    return {}


def orm_classes() -> tuple[type[Any], ...]:
    """`ORM` and `AsyncORM`, of ms-swift's or of this stand-in's; empty when no plugin has imported them."""
    found = [getattr(sys.modules.get(name), key, None) for name in REGISTRIES for key in ("ORM", "AsyncORM")]
    return tuple({one for one in found if isinstance(one, type)})
