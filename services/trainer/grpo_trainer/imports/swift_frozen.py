"""ms-swift's frozen parameters: prefixes of names and regular expressions become regular expressions."""

import re

from ..config.swift_options import FROZEN
from .options import Options, given
from .run_file import RunFile, checked


def set_frozen(options: Options, run: RunFile, *, trains_all: bool) -> None:
    """Write which parameters are frozen, in ms-swift's order: first those to freeze, then the exceptions.

    `trains_all`: no adapter is trained; ms-swift reads the options in that case alone.
    """
    if not trains_all:
        run.not_needed += [f"{shown}: ms-swift reads it without an adapter alone" for shown in given(options, *FROZEN)]
        for option in FROZEN:
            options.values(option)
        return
    frozen = _patterns(options, "freeze_parameters", "freeze_parameters_regex")
    share = options.number("freeze_parameters_ratio")
    if share == 1:
        frozen = ["."]
    elif share:
        run.differs.append(
            f"{options.shown('freeze_parameters_ratio')}: which parameters a share is depends on their sizes: name "
            "them in model.freeze_parameters_regex, as '^model\\.(embed_tokens|layers\\.[0-9]\\.)'"
        )
    trained = _patterns(options, "trainable_parameters", "trainable_parameters_regex")
    of_frozen = "; ".join(given(options, "freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio"))
    of_trained = "; ".join(given(options, "trainable_parameters", "trainable_parameters_regex"))
    if frozen:
        run.set("model.freeze_parameters_regex", checked("model.freeze_parameters_regex", frozen, of_frozen), of_frozen)
    elif of_frozen and not share:
        run.not_needed.append(f"{of_frozen}: nothing is frozen")
    if frozen and trained:
        setting = "model.trainable_parameters_regex"
        run.set(setting, checked(setting, trained, of_trained), of_trained)
    elif of_trained:
        run.not_needed.append(f"{of_trained}: nothing is frozen that would be an exception")


def _patterns(options: Options, prefixes: str, regex: str) -> list[str]:
    found = [f"^{re.escape(prefix)}" for prefix in options.values(prefixes) or []]
    pattern = options.text(regex)
    return [*found, *([pattern] if pattern else [])]
