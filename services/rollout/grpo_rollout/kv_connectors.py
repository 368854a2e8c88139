"""Which of vLLM's KV connectors may stand beside weights that change.

A push has the engine forget all KV of the weights before, and vLLM asks its connector to do the same. A connector whose
class does not override `reset_cache` answers None, which counts as success: what it keeps is served under the new
version. So only those that forget are taken, by name: to import another's class may need packages that are not there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

FORGETFUL = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"})
"""Stores that empty themselves when they are told to."""
IN_CPU_MEMORY = "CPUOffloadingSpec"
"""Where OffloadingConnector keeps KV by itself. vLLM leaves the tiers of its other, files and networks, as they are."""
TRANSFERS = frozenset(
    {"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MoRIIOConnector", "MooncakeConnector"}
)
"""They take KV from another server, whose weight version nobody compares with this one's."""
SEVERAL = "MultiConnector"


def why_not(config: Any, *, offloading_backend: str | None) -> str | None:
    """Return what is wrong with the KV connector of vLLM's `KVTransferConfig`, by its name; None if nothing is.

    `offloading_backend`: where `--kv-offloading-size` keeps its KV; None without it.
    """
    if offloading_backend not in (None, "native"):
        return f"--kv-offloading-backend {offloading_backend} {_KEEPS}; use native"
    fields = {name: getattr(config, name, None) for name in (_NAME, _MODULE, _EXTRA)}
    if offloading_backend:  # vLLM puts its own in the place of whatever is named, with the same further settings
        fields[_NAME] = "OffloadingConnector"
    if fields[_NAME] is None:
        return None
    reasons = map(_why_not_one, _connectors(fields))
    return next((f"--kv-transfer-config: {reason}" for reason in reasons if reason), None)


_NAME, _MODULE, _EXTRA = "kv_connector", "kv_connector_module_path", "kv_connector_extra_config"
_KEEPS = "keeps the KV of earlier weights over a push and would serve it under the new version"


def _connectors(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield each connector that holds KV, whatever contains it."""
    if fields.get(_NAME) != SEVERAL or fields.get(_MODULE):
        yield fields
        return
    for child in (fields.get(_EXTRA) or {}).get("connectors", []):
        yield from _connectors(child)


def _why_not_one(fields: Mapping[str, Any]) -> str | None:
    known = f"use one of {', '.join(sorted(FORGETFUL))}, or none"
    name, module, extra = fields.get(_NAME), fields.get(_MODULE), fields.get(_EXTRA) or {}
    if name == "OffloadingConnector":
        module = module or extra.get("spec_module_path")
        if (spec := extra.get("spec_name", IN_CPU_MEMORY)) != IN_CPU_MEMORY:
            return f"{spec} of {name} {_KEEPS} in its further tiers; leave spec_name out"
    if module:
        return f"nobody knows whether {name} of {module} forgets KV at a push; {known}"
    if name in TRANSFERS:
        return f"{name} takes KV from another server, whose weights may be of another version; leave it out"
    if name not in FORGETFUL:
        return f"{name} {_KEEPS}, as far as is known; {known}"
    return None
