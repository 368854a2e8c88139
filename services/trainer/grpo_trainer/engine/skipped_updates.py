"""Updates that are skipped because their gradient is not finite."""

import logging
import math

from ..errors import UpdateError

log = logging.getLogger(__name__)


class SkippedUpdates:
    """Count them, and end the run after more than `max_in_a_row`.

    `surrogate_name` is `algorithm.loss`, which the messages name.
    """

    def __init__(self, *, max_in_a_row: int, surrogate_name: str):
        self.max_in_a_row, self.surrogate_name = max_in_a_row, surrogate_name
        self.count = 0
        self._in_a_row = 0

    def restore(self, count: int) -> None:
        """Go on from a checkpoint: `count` updates of the run were skipped, the last of them not in a row."""
        self.count, self._in_a_row = count, 0

    def judge(self, metrics: dict[str, float], *, update: int) -> None:
        """Read `grad_norm` and `loss` of an update, take `tokens_without_finite_loss` out, add `update_skipped`.

        Raises UpdateError for one too many in a row.
        """
        bad_tokens = int(metrics.pop("tokens_without_finite_loss", 0))
        skipped = not math.isfinite(metrics["grad_norm"])
        metrics["update_skipped"] = float(skipped)
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        self.count += skipped
        if not skipped:
            return
        loss = f"loss {metrics.get('loss')}"
        if "chord/loss" in metrics:
            loss += f", of demonstrations {metrics['chord/loss']}"
        if bad_tokens:
            loss += f": algorithm.loss {self.surrogate_name} or its KL is not finite for {bad_tokens} tokens"
        log.warning("update %d skipped: its gradient is not finite (%s)", update, loss)
        if self._in_a_row > self.max_in_a_row:
            raise UpdateError(
                f"{self._in_a_row} updates in a row had no finite gradient ({loss})",
                hint="lower optimizer.learning_rate, set algorithm.delta, or check the last rows of completions.jsonl",
            )
