"""What the loop does when a rule of `guards` is broken and its action is `stop` or `rollback`.

A rule judges a window: the last `guards.steps` steps. A rollback goes back to the newest whole checkpoint from before
the first of them; a checkpoint written inside the window is of a policy that the rule may have condemned.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint.best import best_known_at
from .checkpoint.files import list_steps, newest_whole
from .checkpoint.rollbacks import read_rollbacks
from .config.run_config import RunConfig
from .errors import GuardStop
from .journal import Journal
from .observe.decisions import Decision


@dataclass(frozen=True)
class WayBack:
    """What a rule has ordered after step `from_step`: go back to the checkpoint in `folder`."""

    decision: Decision
    from_step: int
    folder: Path
    state: dict[str, Any]


@dataclass(frozen=True)
class Obstacle:
    """Why a run cannot go back, and what to change."""

    why: str
    hint: str


def obey_guards(config: RunConfig, journal: Journal, step: int) -> WayBack | None:
    """Judge step `step`, whose updates are made. Returns the way back when a rule orders a rollback.

    Raises GuardStop when a rule stops the run, or when there is no way back.
    """
    decisions = journal.judge()
    if not decisions:
        return None
    strictest, found = decisions[-1], None
    if strictest.action == "rollback":
        with journal.stage("save"):
            found = _find_way_back(config, strictest, step)
        if isinstance(found, Obstacle):
            strictest = Decision(strictest.rule, "stop", f"{strictest.text}; {found.why}")
    journal.decided(step, [*decisions[:-1], strictest])
    if strictest.action == "stop":
        mend = found.hint if isinstance(found, Obstacle) else "mend it"
        raise GuardStop(
            f"guards.{strictest.rule} stops the run after step {step}: {strictest.text}",
            hint=f"{mend}, or set guards.{strictest.rule} to warn, then go on with --resume{_from_where(config, step)}",
        )
    return found if isinstance(found, WayBack) else None


def _from_where(config: RunConfig, step: int) -> str:
    """How to go on from before the window: a resume takes the newest checkpoint, which is of the step that stops."""
    good = _good_steps(config, step, list_steps(config.run_dir))
    if not good:
        return ""
    folder = config.run_dir / "checkpoints"
    return f"; to go on from before that, move the checkpoints after step {good[-1]} out of {folder} first"


def _find_way_back(config: RunConfig, decision: Decision, step: int) -> WayBack | Obstacle:
    guards, done = config.guards, len(read_rollbacks(config.run_dir))
    if done >= guards.max_rollbacks:
        times = "once" if done == 1 else f"{done} times"
        why = f"the run has gone back {times}, and guards.max_rollbacks allows no more"
        return Obstacle(why, hint="mend it, raise guards.max_rollbacks")
    found = newest_whole(config.run_dir, _good_steps(config, step, list_steps(config.run_dir)))
    if found is None:
        first = step - guards.steps + 1
        why = (
            f"a rollback needs a checkpoint from before step {first}, and there is none (checkpoint.save_steps "
            f"{config.checkpoint.save_steps})"
        )
        return Obstacle(why, hint="mend it and begin anew with a smaller checkpoint.save_steps")
    return WayBack(decision, step, *found)


def to_go_back_to(config: RunConfig, step: int, *, stops: bool = False) -> set[int]:
    """Return the steps of the checkpoints that are kept for the rules, while that of `step` is being written.

    When a rule `stops` the run after this step, it is the newest from before its window: from there the run can go on
    when somebody has mended what went wrong. Where a rule may go back, they are the newest from before the window of
    the next step, and the oldest inside: it comes after the other, which so is never removed before there is a newer
    one. With each of them the best that it knows, which is the run's best after going back there.
    """
    steps = [*list_steps(config.run_dir), step]
    kept = {*_good_steps(config, step, steps)[-1:]} if stops else set[int]()
    if config.guards.rollback_rules:
        good = _good_steps(config, step + 1, steps)
        kept |= {*good[-1:], *steps[len(good) : len(good) + 1]}
    return kept | {best for one in kept - {step} if (best := best_known_at(config.run_dir, one)) is not None}


def _good_steps(config: RunConfig, step: int, steps: list[int]) -> list[int]:
    """Those of `steps` that lie before the window of a rule that acts after step `step`."""
    return [good for good in steps if good <= step - config.guards.steps]
