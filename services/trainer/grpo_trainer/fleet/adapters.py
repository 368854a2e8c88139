"""Choose what is pushed in a run with an adapter: the adapter, or the model with the adapter added.

The adapter needs servers that were started with --enable-lora, for its rank and for enough versions at a time. Servers
without that flag get every weight with every push, as in a run without an adapter.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo_proto import RolloutInfo
from grpo_proto.messages.weights import Kind

from ..config.lora import served_rank
from ..config.run_config import RunConfig
from ..errors import UsageError


@dataclass(frozen=True)
class AdapterNeeds:
    """The requirements of this run's adapter on every rollout server that gets it."""

    rank: int
    num_versions: int
    """Versions on a server at a time: the newest arrives while `max_staleness` + 1 may still be sampling."""
    base_digest: str | None
    target_parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, base_digest: str | None) -> "AdapterNeeds | None":
        """Return the needs of the run of `config`; None when it trains all weights."""
        if config.model.lora is None:
            return None
        lora = config.model.lora
        return cls(lora.r, config.algorithm.max_staleness + 2, base_digest, tuple(lora.target_parameters))

    def misfit(self, url: str, info: RolloutInfo) -> UsageError | None:
        """Why this server cannot serve the adapter; None when it can."""
        where, limits = f"the rollout server {url}", info.adapters
        if limits is None:
            return UsageError(
                f"{where} takes no adapters, and this run pushes its adapter",
                hint=f"start it with --enable-lora --max-lora-rank {served_rank(self.rank)} "
                f"--max-loras {self.num_versions}",
            )
        if limits.max_lora_rank < self.rank:
            return UsageError(
                f"{where} takes adapters up to rank {limits.max_lora_rank}; model.lora.r is {self.rank}",
                hint=f"start it with --max-lora-rank {served_rank(self.rank)}, or lower model.lora.r",
            )
        if limits.max_loras < self.num_versions:
            return UsageError(
                f"{where} holds {limits.max_loras} adapters at a time; this run needs {self.num_versions}: the newest "
                f"version, and {self.num_versions - 1} that may still be sampling when it arrives",
                hint=f"start it with --max-loras {self.num_versions}, or lower algorithm.max_staleness",
            )
        if None not in (info.base_digest, self.base_digest) and info.base_digest != self.base_digest:
            return UsageError(
                f"{where} serves another model than the adapter is trained on: {info.model} has the digest "
                f"{info.base_digest}, the model of this run {self.base_digest}",
                hint="start it with the model of model.name_or_path",
            )
        return None


def choose_push_kind(infos: Mapping[str, RolloutInfo], needs: AdapterNeeds | None) -> Kind:
    """Return what to push to the servers, by their URLs: `full` without an adapter, or when no server takes adapters.

    Raises UsageError when only some servers take adapters, and when one of them cannot take this run's. An adapter on
    fused experts is refused: most of vLLM's families expect A and B of each expert by itself, and no other was tried.
    """
    if needs is None:
        return "full"
    without = [url for url, info in infos.items() if info.adapters is None]
    with_adapters = [url for url in infos if url not in without]
    if without and not with_adapters:
        return "full"
    if with_adapters and needs.target_parameters:
        raise UsageError(
            f"the rollout servers take adapters ({', '.join(with_adapters)}), but none on fused parameters is pushed "
            f"to vLLM; model.lora.target_parameters names {', '.join(needs.target_parameters)}",
            hint="start the servers without --enable-lora: every push then sends the whole model, the adapter added; "
            "or drop model.lora.target_parameters",
        )
    if without:
        raise UsageError(
            f"some rollout servers take adapters ({', '.join(with_adapters)}) and some do not ({', '.join(without)})",
            hint="start all of them with --enable-lora, or none",
        )
    for url, info in infos.items():
        misfit = needs.misfit(url, info)
        if misfit is not None:
            raise misfit
    return "lora"
