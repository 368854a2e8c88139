"""Sources of the live page: servers and configuration as plain JSON, without credentials."""

from collections.abc import Callable
from typing import Any

from grpo_proto import Health

from .config.run_config import RunConfig, deciding_reward
from .fleet.fleet import Replica
from .observe.live_groups import clean
from .observe.live_warnings import RecentWarnings
from .observe.run_status import RunStatus
from .observe.standing_still import Servers, standing_still
from .orchestrator import Orchestrator
from .sampling.teachers import Teachers

MAX_REPLICAS = 64
MAX_REASON = 200


def show_servers(status: RunStatus, config: RunConfig, orchestrator: Orchestrator, warnings: RecentWarnings) -> None:
    """Register the sources of the live page. Reading them takes no lock of the event loop."""
    facts = run_facts(config)
    sources: dict[str, Callable[[], Any]] = {
        "facts": lambda: facts,
        "replicas": lambda: replicas_shown(orchestrator.fleet.replicas),
        "reward_server": lambda: reward_shown(orchestrator),
        "teachers": lambda: teachers_shown(orchestrator.teachers),
        "stands_still": lambda: standing_still_shown(status, orchestrator),
        "warnings": warnings.shown,
    }
    for name, source in sources.items():
        status.show(name, source)


def run_facts(config: RunConfig) -> dict[str, Any]:
    return {
        "model": config.model.name_or_path,
        "num_generations": config.rollout.num_generations,
        "generation_batch_size": config.rollout.generation_batch_size,
        "max_staleness": config.algorithm.max_staleness,
        "rewards": list(config.reward_weights),
        "accuracy_reward": accuracy_reward_shown(config),
        "log_completions": config.logging.log_completions,
    }


def accuracy_reward_shown(config: RunConfig) -> str:
    """Name the reward that decides what is correct; also the one in place of it where episodes need not bring it."""
    decides = config.decides_accuracy
    others = {name: weight for name, weight in config.reward_weights.items() if name not in config.optional_rewards}
    if config.reward.accuracy_reward is not None or decides not in config.optional_rewards or not others:
        return decides
    return f"{decides} where an episode brings it, else {deciding_reward(others)}"


def replicas_shown(replicas: list[Replica]) -> dict[str, Any]:
    """Return the first `MAX_REPLICAS` replicas, and counts of all."""
    return {
        "count": len(replicas),
        "serving": sum(replica.member for replica in replicas),
        "shown": [_replica(replica) for replica in replicas[:MAX_REPLICAS]],
    }


def _replica(replica: Replica) -> dict[str, Any]:
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


def reward_shown(orchestrator: Orchestrator) -> dict[str, Any] | None:
    """Return None in a run without rewards."""
    if not orchestrator.config.reward.reward_funcs:
        return None
    return {"url": orchestrator.config.reward.url, **_answer(orchestrator.reward_health)}


def teachers_shown(teachers: Teachers) -> list[dict[str, Any]]:
    return [
        {"name": stage.name.removeprefix("the "), "url": stage.client.base_url, **_answer(stage.health)}
        for stage in teachers.stages
    ]


def _answer(health: Health | None) -> dict[str, Any]:
    return {
        "live": health.ok if health else None,
        "detail": clean(health.detail, MAX_REASON) if health and health.detail else None,
    }


def standing_still_shown(status: RunStatus, orchestrator: Orchestrator) -> dict[str, Any] | None:
    """Return why the run stands still and when it ends by itself; None while it moves on."""
    silent = next((one for one in orchestrator.teachers.stages if one.health and not one.health.ok), None)
    state, replicas, health = status.snapshot(), orchestrator.fleet.replicas, orchestrator.reward_health
    servers = Servers(
        with_policy=sum(replica.member for replica in replicas),
        answering=sum(replica.live or replica.missed_probes < 2 for replica in replicas),  # one missed probe: no outage
        asked_for_samples=sum(replica.in_flight for replica in replicas),
        reward_answers=health is None or health.ok,
        silent_teacher=(silent.name, silent.config.retry_for_s) if silent else None,
        sampling_since_s=orchestrator.pipeline.oldest_since_s("sampling"),
        failing_since_s=orchestrator.sampler.failing_since_s,
        scoring_since_s=orchestrator.pipeline.oldest_since_s("scoring"),
    )
    found = standing_still(state.stage, state.stage_since_s, servers, orchestrator.config)
    return None if found is None else {"because": found[0], "until_s": found[1] and round(found[1], 1)}
