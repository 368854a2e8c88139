"""Rollback: the weights go back to a good checkpoint, the prompts go on.

All that a resume restores is restored from the checkpoint, but the position in the prompts: with the prompts and seeds
of the abandoned steps the policy would take the same way again. What the abandoned policy has sampled, in flight or
ready, is dropped. The weight session is closed, so that the next push opens a new one: servers order versions within a
session, and after step k of a run the version is k + 1 whatever happened before, as it is after a resume.
"""

import logging
from contextlib import closing
from typing import Any

from .checkpoint.rollbacks import Rollback, read_rollbacks, record_rollback, with_prompts_moved_on
from .config.run_config import RunConfig
from .guarding import WayBack
from .observe.decisions import Decision, DecisionLog
from .observe.run_status import RunStatus
from .orchestrator import Orchestrator
from .ranks.crew import Crew
from .sampling.pipeline import Cursor

log = logging.getLogger(__name__)


def go_back(
    way_back: WayBack, config: RunConfig, crew: Crew, orchestrator: Orchestrator, status: RunStatus, *, max_steps: int
) -> dict[str, Any]:
    """Go back, on rank 0 between two runs of the loop. Returns the state to go on from, as `open_checkpoint` does."""
    decision, step = way_back.decision, int(way_back.state["step"])
    status.enter_phase("loading the checkpoint", limit_s=config.server.loading_s)
    next_position = orchestrator.abandon()
    record_rollback(config.run_dir, Rollback(decision.rule, way_back.from_step, step, next_position))
    count = len(read_rollbacks(config.run_dir))
    text = (
        f"went back from step {way_back.from_step} to the checkpoint of step {step}, and on with other prompts "
        f"({count} of {config.guards.max_rollbacks} rollbacks), because {decision.text}"
    )
    with closing(DecisionLog(config.run_dir, resumed_step=step)) as decisions:
        decisions.write(step, [Decision(decision.rule, "rollback", text)])
    crew.do("load_engine", str(way_back.folder / "engine"))
    state = with_prompts_moved_on(way_back.state, config.run_dir)
    orchestrator.start_over(Cursor(**state["cursor"]))
    status.know_run(max_steps=max_steps, step=step)
    status.history.restore(config.run_dir, through_step=step)
    return state
