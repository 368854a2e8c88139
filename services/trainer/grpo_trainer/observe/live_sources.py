"""What the live page shows of the servers and of the configuration: plain facts, no credentials."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .live_groups import clean
from .live_warnings import RecentWarnings
from .run_status import RunStatus
from .standing_still import standing_still_shown

if TYPE_CHECKING:  # only for the types: parts do not know the conductor
    from ..conductor import Conductor
    from ..config import RunConfig
    from ..fleet import Replica

MAX_REPLICAS = 64
MAX_REASON = 200


def show_servers(status: RunStatus, config: "RunConfig", conductor: "Conductor", warnings: RecentWarnings) -> None:
    """Let the live page read what the conductor knows. Reading is a few attributes, and no lock of the event loop."""
    facts = run_facts(config)
    sources: dict[str, Callable[[], Any]] = {
        "facts": lambda: facts,
        "replicas": lambda: replicas_shown(conductor.fleet.replicas),
        "reward_server": lambda: reward_shown(conductor),
        "stands_still": lambda: standing_still_shown(status, conductor),
        "warnings": warnings.shown,
    }
    for name, source in sources.items():
        status.show(name, source)


def run_facts(config: "RunConfig") -> dict[str, Any]:
    return {
        "model": config.model.name_or_path,
        "num_generations": config.rollout.num_generations,
        "generation_batch_size": config.rollout.generation_batch_size,
        "max_staleness": config.algorithm.max_staleness,
        "rewards": config.reward.names,
        "accuracy_reward": config.reward.decides_accuracy,
        "log_completions": config.logging.log_completions,
    }


def replicas_shown(replicas: "list[Replica]") -> dict[str, Any]:
    """The first `MAX_REPLICAS` of them, and counts of all."""
    return {
        "count": len(replicas),
        "serving": sum(replica.member for replica in replicas),
        "shown": [_replica(replica) for replica in replicas[:MAX_REPLICAS]],
    }


def _replica(replica: "Replica") -> dict[str, Any]:
    weights = replica.info.weights if replica.info else None
    return {
        "url": replica.url,
        "live": replica.live,
        "member": replica.member,
        "state": weights.state if weights else None,
        "version": weights.version if weights else None,
        "reason": clean(weights.reason, MAX_REASON) if weights and weights.reason else None,
        "in_flight": replica.in_flight,
    }


def reward_shown(conductor: "Conductor") -> dict[str, Any]:
    health = conductor.reward_health
    return {
        "url": conductor.config.reward.url,
        "live": health.ok if health else None,
        "detail": clean(health.detail, MAX_REASON) if health and health.detail else None,
    }
