"""The state of a run for the live page: sections of plain JSON, each sent again only after a change."""

import json
import logging
import time
from typing import Any

from .live_groups import clean, finite
from .live_warnings import redacting
from .run_status import RunStatus, StartPhase

log = logging.getLogger(__name__)

MAX_REASON = 600


class LiveView:
    """Read a `RunStatus`, in the server's thread. From `started_s` a page detects that the trainer was restarted."""

    def __init__(self, status: RunStatus):
        self._status = status
        self._started_s = time.time()
        self._broken: set[str] = set()

    def whole(self) -> tuple[int, str]:
        """Return (sequence, JSON of everything), from which a page begins."""
        sequence, curves = self._status.history.whole()
        return sequence, to_json(
            {"sections": self.sections(), "curves": curves, "sequence": sequence, "now_s": round(time.time(), 3)}
        )

    def history_since(self, sequence: int) -> tuple[int, list[dict[str, Any]]] | None:
        return self._status.history.since(sequence)

    def sections(self) -> dict[str, Any]:
        """Everything but the curves."""
        return {
            "run": self._run(),
            "now": self._now(),
            "recent": self._status.history.recent(),
            "groups": self._status.history.groups,
            **{name: self._read(name) for name in self._status.sources()},
        }

    def end(self) -> str:
        """Return JSON of why the run ended."""
        state = self._status.snapshot()
        reason = clean(redacting().redact(state.end_reason), MAX_REASON) if state.end_reason else None
        return to_json({"step": state.step, "max_steps": state.max_steps, "reason": reason, "done": state.is_done})

    def _run(self) -> dict[str, Any]:
        state = self._status.snapshot()
        return {
            "name": clean(state.run, MAX_REASON),
            "max_steps": state.max_steps,
            "started_s": round(self._started_s, 3),
        }

    def _now(self) -> dict[str, Any]:
        state = self._status.snapshot()
        return {
            "step": state.step,
            "stage": state.stage,
            "stage_since_s": round(state.stage_since_s, 1),
            "waits": _waits(state.start),
            "ready": state.ready,
            "policy_version": state.policy_version,
            "push_s": finite(state.push_s),
            "push_bytes": state.last_push_bytes,
            "problem": self._status.problem(),
        }

    def _read(self, name: str) -> Any:
        """Read a source; a failing source must not end the page."""
        try:
            return self._status.sources()[name]()
        except Exception as error:
            if name not in self._broken:
                self._broken.add(name)
                log.warning("the live page cannot show %s: %s: %s", name, type(error).__name__, error)
            return None


def _waits(start: StartPhase | None) -> dict[str, Any] | None:
    """Return what the start waits for, why, and its deadline."""
    if start is None:
        return None
    reason = clean(redacting().redact(start.reason), MAX_REASON) if start.reason else None
    return {"for": start.doing, "reason": reason, "until_s": round(start.until_s, 1)}


def to_json(value: Any) -> str:
    """Encode as one line, for server-sent events. Raises ValueError for NaN, which JSON lacks."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
