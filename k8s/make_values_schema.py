"""Writes k8s/chart/values.schema.json from the pydantic models.

    python k8s/make_values_schema.py            write it
    python k8s/make_values_schema.py --check    exit 1 when the committed one is another

`trainer.run` is the trainer's RunConfig and `reward.settings` the reward server's Settings, without what the chart
decides itself. Nothing in them is required: what a run needs is checked in the templates, where an error can say more.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from grpo_reward.config import Settings
from grpo_trainer.config.run_config import RunConfig

HERE = Path(__file__).parent
SCHEMA = HERE / "chart" / "values.schema.json"

Schema = dict[str, Any]

DECIDED_FOR_THE_TRAINER = {
    "WeightsConfig": ("host", "port"),  # the pod's own address, networkPolicy.rendezvousPort
    "ServerConfig": ("enabled", "host", "port"),  # the probes need it there
}
# values.yaml has every section: one is missing only where somebody set it to null. For these the templates take null as
# empty.
MAY_BE_NULL = (
    *("global", "kueue", "tests", "podSecurityContext", "resources", "workerResources", "headResources"),
    *("tolerations", "topologySpreadConstraints", "resourceClaims", "extraEnv", "extraVolumes", "extraVolumeMounts"),
    *("egress", "allowFrom", "dns", "weightPeers", "extraEgress", "Autoscaling.metrics"),
    *("shmSize", "cacheSize", "tmpSize"),  # without a limit
)
DECIDED_FOR_THE_REWARD_SERVER = ("host", "port", "executor")  # reward.executor


def values_schema() -> Schema:
    schema: Schema = _values_model().model_json_schema(by_alias=True, mode="validation")
    for part in [schema, *schema["$defs"].values()]:
        _require_what_has_a_default(part)
    run, settings = _run_schema(), _reward_schema()
    schema["$defs"] |= run.pop("$defs") | settings.pop("$defs", {})
    schema["$defs"]["RunConfig"], schema["$defs"]["RewardSettings"] = run, settings
    schema["$defs"]["Trainer"]["properties"]["run"] = {"$ref": "#/$defs/RunConfig"}
    schema["$defs"]["Reward"]["properties"]["settings"] = {"$ref": "#/$defs/RewardSettings"}
    # Helm before 3.18 knows draft 7 and nothing later; nothing here needs more.
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_plain(schema)}


def _require_what_has_a_default(part: Schema) -> None:
    """A number, a switch or a word has its default in values.yaml: it is missing only where somebody set it to null,
    which would be 0, false or nothing in a template. Null is none of them.
    """
    required = part.get("required", [])
    for name, item in part.get("properties", {}).items():
        default = item.get("default")
        filled = isinstance(default, int | float) or (default and isinstance(default, str))
        if filled and {"type": "null"} not in item.get("anyOf", []):
            required.append(name)
    if required:
        part["required"] = required


def _values_model() -> Any:
    """k8s/ is no package: the file is loaded from beside this one."""
    spec = importlib.util.spec_from_file_location("grpo_chart_values_model", HERE / "values_model.py")
    if spec is None or spec.loader is None:
        raise ImportError("values_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Values


def _run_schema() -> Schema:
    schema = RunConfig.model_json_schema(mode="validation")
    for name, keys in DECIDED_FOR_THE_TRAINER.items():
        for key in keys:
            del schema["$defs"][name]["properties"][key]
    for part in [schema, *schema["$defs"].values()]:
        part.pop("required", None)
    return schema


def _reward_schema() -> Schema:
    schema = Settings.model_json_schema(mode="validation")
    for key in DECIDED_FOR_THE_REWARD_SERVER:
        del schema["properties"][key]
    models = schema["properties"]["reward_model"]  # one model needs no list, and null is none, as in the environment
    kinds = [{"type": models.pop("type"), "items": models.pop("items")}, {"type": "string"}, {"type": "null"}]
    models["anyOf"] = kinds
    schema.pop("required", None)
    schema["additionalProperties"] = False
    return schema


def _plain(node: Any, definition: str = "") -> Any:
    """Without titles and defaults: values.yaml has the defaults, and a title repeats the key."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {}
    for key, value in node.items():
        if key in ("title", "default") and not isinstance(value, dict):
            continue
        if key == "default" and "type" in node:
            continue
        if key == "required" and isinstance(value, list):
            value = [name for name in value if not {name, f"{definition}.{name}"} & set(MAY_BE_NULL)]
            if not value:
                continue
        if key in ("properties", "$defs"):
            plain[key] = {name: _plain(item, name) for name, item in value.items()}
        else:
            plain[key] = _plain(value, definition)
    return plain


def as_text(schema: Schema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    text = as_text(values_schema())
    if arguments == ["--check"]:
        current = SCHEMA.exists() and SCHEMA.read_text() == text
        if not current:
            print(f"error: {SCHEMA} is out of date; run: python k8s/make_values_schema.py", file=sys.stderr)
        return 0 if current else 1
    SCHEMA.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
