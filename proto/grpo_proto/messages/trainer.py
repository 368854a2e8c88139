"""The trainer's report of itself."""

from typing import Literal

from .base import Response


class TrainerInfo(Response):
    """Trainer → anybody. `GET /info`."""

    service: Literal["trainer"] = "trainer"
    version: str
    protocol_version: int
    run: str
    step: int
    max_steps: int
    policy_version: int
    stage: str
