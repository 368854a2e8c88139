"""Answer `/readyz` from memory: whether this server should get traffic."""

from grpo_proto.messages.health import Health

from .weight_state import Weights


def readyz(alive: Health, weights: Weights, *, trainer_left_s: float | None = None) -> Health:
    """Report whether the server is alive and serves weights that nobody is about to replace by the first of a trainer.

    `trainer_left_s`: the weights from disk do not count as long as a trainer has these seconds left to come, nor once
    one has come. None: they count until a trainer has joined.
    """
    if not alive.ok:
        return alive
    if not weights.serves:
        reason = f": {weights.reason}" if weights.reason else ""
        return Health(ok=False, detail=f"weights are {weights.state}{reason}")
    if not weights.ready:
        return Health(ok=False, detail=f"waits for the first weights of session {weights.session}")
    if trainer_left_s is None or weights.committed_session is not None:
        return alive
    if weights.newest_session is not None:
        return Health(ok=False, detail=f"session {weights.newest_session} ended before its first weights")
    if trainer_left_s > 0.0:
        return Health(ok=False, detail=f"waits {trainer_left_s:.0f} s more for a trainer to open a weight session")
    return alive
