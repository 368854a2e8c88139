"""Rewards written for other trainers: TRL's functions and ms-swift's `ORM` classes, loaded as they are.

Both score all samples of a request in one call. What their trainers pass is made from the request: `completions`,
`prompts` and `completion_ids` (TRL), `messages`, `response_token_ids`, `is_truncated` and `finish_reason` (ms-swift),
`trainer_state.global_step`, `log_extra`, `log_metric`, and every dataset column that all samples have. A function gets
of it what its signature takes; a parameter without a default that is none of these is a column that samples must have.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_proto.code_hash import code_hash
from grpo_proto.tool_arguments import parsed_arguments

from .author import CONTEXT, Reward, params_model
from .scorer import finished

TRL_GIVEN = {"completions", "prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"}
TRL_FIELDS = {"prompts": "prompt", "completion_ids": "completion_token_ids", "_messages": "messages"}
"""Parameter of `call` → field of the sample. `_messages`, an episode's whole conversation, is no name of theirs."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
SWIFT_GIVEN = {"messages", "response_token_ids", "is_truncated", "finish_reason", "trainer_state"}


def trl_reward(function: Callable[..., Any], *, name: str, file: Path) -> Reward:
    """A function as TRL's `reward_funcs` takes it, plain or `async`.

    As there, completions are lists of messages where the prompts are, else text; those of an episode are all messages
    behind its prompt. Numbers may be bools, NumPy's or
    torch's.
    """
    signature = _Signature(function, skip=TRL_GIVEN)

    def call(
        completions: list[str], prompts: list[Any], completion_ids: list[Any], _messages: list[Any], **rest: Any
    ) -> Any:
        given = {
            **rest,
            "completions": [
                _behind(prompt, messages)
                if messages is not None
                else [{"role": "assistant", "content": text}]
                if isinstance(prompt, list)
                else text
                for text, prompt, messages in zip(completions, prompts, _messages, strict=True)
            ],
            "prompts": prompts,
            "completion_ids": completion_ids,
        }
        return finished(function(**signature.taken(given)))

    return _reward(call, signature, name, inspect.getdoc(function) or "", file, TRL_FIELDS)


def swift_reward(orm: type[Any], *, name: str, file: Path) -> Reward:
    """A class as ms-swift's `orms` has it: made once, without the trainer's arguments, and called with completions.

    Raises TypeError when it cannot be made without them.
    """
    parameters = inspect.signature(orm).parameters
    takes_args = "args" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    try:
        instance = orm(args=None) if takes_args else orm()
    except Exception as error:
        message = (
            f"{name}: {orm.__name__} cannot be made without a trainer's arguments: {type(error).__name__}: {error}"
        )
        raise TypeError(message) from error
    # The completions come first, whatever the parameter is called.
    signature = _Signature(instance, skip=SWIFT_GIVEN, skip_first=True)

    def call(
        completions: list[str],
        prompts: list[Any],
        completion_ids: list[Any],
        truncated: list[Any],
        _messages: list[Any],
        **rest: Any,
    ) -> Any:
        given = {
            **rest,
            "messages": [
                messages if messages is not None else [*_opening(prompt), {"role": "assistant", "content": text}]
                for text, prompt, messages in zip(completions, prompts, _messages, strict=True)
            ],
            "response_token_ids": completion_ids,
            "is_truncated": truncated,
            "finish_reason": [None if cut is None else "length" if cut else "stop" for cut in truncated],
        }
        return finished(instance(completions, **signature.taken(given)))

    return _reward(call, signature, name, inspect.getdoc(orm) or "", file, TRL_FIELDS | {"truncated": "truncated"})


class _Signature:
    """Which of the things that could be passed a function takes."""

    def __init__(self, function: Callable[..., Any], *, skip: set[str], skip_first: bool = False):
        parameters = list(inspect.signature(function).parameters.values())[int(skip_first) :]
        self.takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        for parameter in parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
                raise TypeError(f"{parameter.name} must be a parameter that can be given by name: take the / out")
        named = [parameter for parameter in parameters if parameter.kind in _BY_NAME]
        self._names = {parameter.name for parameter in named}
        columns = [parameter for parameter in named if parameter.name not in skip]
        self.columns = [parameter.name for parameter in columns]
        self.required_columns = [p.name for p in columns if p.default is inspect.Parameter.empty]

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if self.takes_all or name in self._names}


def _reward(
    call: Callable[..., Any], signature: _Signature, name: str, documentation: str, file: Path, fields: dict[str, str]
) -> Reward:
    return Reward(
        name=name,
        function=call,
        documentation=documentation,
        batch=True,
        fields=fields,
        required_fields=[],
        columns=dict.fromkeys(signature.columns),
        required_columns=signature.required_columns,
        params=params_model(name, {}),
        context=frozenset(CONTEXT) - {"timeout_s"},
        takes_all_columns=signature.takes_all,
        code_hash=code_hash(file),
    )


def _behind(prompt: Any, messages: list[Any]) -> list[Any]:
    """Return the messages of an episode that are not of its prompt, the arguments of calls as TRL has them."""
    behind = copy.deepcopy(messages[len(prompt) :] if isinstance(prompt, list) else messages)
    for message in behind:
        for asked in message.get("tool_calls") or ():
            if isinstance(function := asked.get("function"), dict):
                function["arguments"] = parsed_arguments(function.get("arguments") or "{}")
    return behind


def _opening(prompt: Any) -> Sequence[Any]:
    if isinstance(prompt, list):
        return prompt
    return [] if prompt is None else [{"role": "user", "content": prompt}]
