"""A user's own code beside the training: `callbacks: [FILE.py:NAME, …]`, on rank 0, in the order of the run file.

A function is called after each step. A class is instantiated once, with `callbacks_params`, and has some of the hooks

    on_step(step, metrics)          after each step, with what metrics.jsonl has of it
    on_evaluation(step, metrics)    after each evaluation, with its metrics; the one before the first step has step 0
    on_end(step)                    once, after the last step and the final model, however the training ended

What a function takes beyond `step` and `metrics` are its parameters. `metrics` cannot be changed. A hook ends the run
by raising `StopRun`. The run keeps nothing of a callback in its checkpoints: a resumed run has new instances.
"""

import inspect
import logging
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Self

from .errors import CallbackError, UsageError
from .extension import failure_of, named
from .observe.decisions import Decision
from .parameters import with_parameters

log = logging.getLogger(__name__)

Hooks = Mapping[str, Callable[..., Any]]
"""The functions of a callback, by their names in `PARAMETERS`."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "on_step": ("step", "metrics"),
    "on_evaluation": ("step", "metrics"),
    "on_end": ("step",),
}


class StopRun(Exception):  # noqa: N818 - a request, not an error
    """Raise it in a hook to end the run after this step, which is saved, as if it were the last; its text is why."""


def load_callbacks(names: Sequence[str], params: Mapping[str, Mapping[str, Any]]) -> dict[str, Hooks]:
    """Import every FILE.py:NAME, and instantiate the classes with their `params`, which are by NAME.

    Raises UsageError for a callback that cannot be made, or whose hooks would not be called or not take what they get.
    """
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise UsageError(f"callbacks: {twice} stands there twice", hint="name it once")
    return {name: _hooks_of(name, params.get(name.rpartition(":")[2], {})) for name in names}


def _hooks_of(name: str, params: Mapping[str, Any]) -> Hooks:
    found: Callable[..., Any] = named(name, {}, setting="callbacks")
    with_params = with_parameters(
        found,
        params,
        called_with=() if isinstance(found, type) else PARAMETERS["on_step"],
        name=name,
        setting="callbacks",
        key=f"callbacks_params.{name.rpartition(':')[2]}",
    )
    if isinstance(found, type):
        try:
            callback = with_params()
        except Exception as error:
            raise UsageError(f"callbacks: {failure_of(name, error)}", hint="it is instantiated once") from error
        named_so = {hook: getattr(callback, hook) for hook in dir(callback) if hook.startswith("on_")}
        hooks = {hook: function for hook, function in named_so.items() if callable(function)}
    else:
        return {"on_step": with_params}
    unknown = sorted(hooks.keys() - PARAMETERS)
    if unknown or not hooks:
        has = f"{', '.join(unknown)}, which nobody calls" if unknown else "no hook"
        raise UsageError(f"callbacks: {name} has {has}", hint=f"known are {', '.join(PARAMETERS)}")
    for hook, function in hooks.items():
        try:
            inspect.signature(function).bind(*PARAMETERS[hook])
        except TypeError as error:
            called = f"{hook}({', '.join(PARAMETERS[hook])})"
            raise UsageError(f"callbacks: {name} cannot be called as {called}: {error}") from error
    return hooks


class Callbacks:
    """The callbacks of a run that trains. Use as a context manager: leaving it calls `on_end`.

    What a hook raises never leaves `on_step` and `on_evaluation`: it is logged and kept until the step is complete.
    """

    def __init__(self, loaded: Mapping[str, Hooks], *, step: int = 0):
        """`step`: finished steps."""
        self._loaded, self._step = loaded, step
        self._stage: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        self.stop: Decision | None = None
        """The first callback that asked for the end of the run, and why."""
        self.failure: CallbackError | None = None
        """The first error of a callback."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raises CallbackError when nothing else has failed."""
        self._call("on_end", self._step)
        if error is None and self.failure is not None:
            raise self.failure

    def begin(self, step: int, *, stage: Callable[[str], AbstractContextManager[None]]) -> None:
        """Train from `step` finished steps on: at the start, and after a rollback. The time of a hook is that of a
        `stage` of its own."""
        self._step, self._stage = step, stage

    @property
    def end_the_run(self) -> bool:
        return self.stop is not None or self.failure is not None

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._call("on_step", step, MappingProxyType(dict(metrics)))

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("on_evaluation", step, MappingProxyType(dict(metrics)))

    def _call(self, hook: str, *arguments: Any) -> None:
        """Call all, also after one that stops the run: it is the last step for each of them."""
        for name, function in [(name, hooks[hook]) for name, hooks in self._loaded.items() if hook in hooks]:
            try:
                with self._stage("callbacks") if hook != "on_end" else nullcontext():
                    function(*arguments)
            except StopRun as request:
                self.stop = self.stop or Decision("callbacks", "stop", f"{name}: {request}")
            except (Exception, SystemExit, CancelledError, GeneratorExit) as error:
                message = f"callbacks: {failure_of(name, error)}"
                log.error("%s", message, exc_info=error)
                self.failure = self.failure or CallbackError(message, hint="mend it, then go on with --resume")
