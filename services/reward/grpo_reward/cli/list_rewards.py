"""`grpo-reward list`: what rewards there are, and everything about one."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .options import CommandParser
from .output import console, print_json, table
from .scorers import KnownReward, known_reward, open_scorer

MAX_VALUE_CHARS = 30
"""Longest default shown in the table of all rewards, in characters."""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser("list", "Show the rewards there are; with NAME everything about one.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="A reward; write it before --plugin.")
    parser.add_place()
    return asyncio.run(_list(parser.parse(arguments)))


async def _list(options: argparse.Namespace) -> int:
    async with open_scorer(options, workers=1) as scorer:
        if options.name is None:
            rewards = [described(reward) for _, reward in sorted(scorer.rewards.items())]
            if options.json:
                print_json({"rewards": rewards})
            else:
                _show_all(rewards)
            return 0
        reward = described(known_reward(scorer, options.name))
    if options.json:
        print_json(reward)
    else:
        _show_one(reward)
    return 0


def described(reward: KnownReward) -> dict[str, Any]:
    """The reward as JSON. What a running server does not tell is null."""
    description, loaded = reward.description, reward.loaded
    schema = description.params_schema
    return {
        "name": description.name,
        "summary": description.documentation.partition("\n")[0],
        "columns": description.columns,
        "optional_columns": sorted(set(loaded.columns) - set(description.columns)) if loaded else None,
        "fields": loaded.fields if loaded else None,
        "of_plugin": loaded.of_plugin if loaded else None,
        "scores": "groups" if description.batch else "samples",
        "params": {name: _param(name, schema) for name in schema.get("properties", {})},
        "documentation": description.documentation,
        "code_hash": description.code_hash,
    }


def _param(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Its JSON schema, and whether it has to be given."""
    described = {key: value for key, value in schema["properties"][name].items() if key != "title"}
    return {"required": name in schema.get("required", []), **described}


def _show_all(rewards: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (_named(reward), ", ".join(reward["columns"]) or "–", _params_in_short(reward["params"]), reward["summary"])
        for reward in rewards
    ]
    console().print(table("", ("reward", "columns", "params", "what it is"), rows, left=4))


def _named(reward: Mapping[str, Any]) -> str:
    return f"{reward['name']} (plugin)" if reward["of_plugin"] else reward["name"]


def _params_in_short(params: Mapping[str, Mapping[str, Any]]) -> str:
    """`name=default`; a name alone has none and may be left out."""
    shown = []
    for name, param in params.items():
        default = param.get("default")
        shown.append(
            f"{name} (required)" if param["required"] else name if default is None else f"{name}={_short(default)}"
        )
    return ", ".join(shown) or "–"


def _show_one(reward: Mapping[str, Any]) -> None:
    out = console()
    scored = {"groups": "all samples of a request in one call", "samples": "one sample at a time"}
    facts = [
        ("name", _named(reward)),
        ("columns", ", ".join(reward["columns"]) or "none"),
        ("optional columns", ", ".join(reward["optional_columns"] or []) or None),
        ("fields", ", ".join(reward["fields"] or []) or None),
        ("scores", scored.get(reward["scores"])),
        ("code", f"SHA-256 {reward['code_hash']}"),
    ]
    for name, value in facts:
        if value is not None:
            out.print(f"{name:18}{value}", soft_wrap=True)
    if reward["params"]:
        rows = [
            (name, _type(param), "required" if param["required"] else _value(param.get("default")))
            for name, param in reward["params"].items()
        ]
        out.print()
        out.print(table("", ("param", "type", "default"), rows, left=3))
    out.print()
    out.print(reward["documentation"], soft_wrap=True)


def _type(param: Mapping[str, Any]) -> str:
    if "enum" in param:
        return " | ".join(_value(value) for value in param["enum"])
    if "anyOf" in param:
        return " | ".join(_type(part) for part in param["anyOf"])
    name = str(param.get("type", param.get("$ref", "any")))
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {param[key]}" for key, sign in bounds.items() if key in param]
    return " ".join([name, *limits])


def _short(value: Any) -> str:
    text = _value(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _value(value: Any) -> str:
    """`value` as it can be written behind `--param NAME=`."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
