"""What tells one episode from all others: the name of its session, and its seeds.

Both are functions of the run, the position and the index in the group alone. Neither attempt, time, replica nor
weights session enters: an episode that runs again begins in the same state and samples with the same seeds.
"""

import hashlib
import re
from dataclasses import dataclass

from ..data.prompt_row import PromptRow

MAX_RUN_CHARACTERS = 120


@dataclass(frozen=True)
class EpisodeAsked:
    """One episode to play: number `index` of the group at `position`, for `row`.

    `seed` is the group's (`Asked.seed`): of the run and the position, or of a held-out row.
    """

    position: int
    index: int
    row: PromptRow
    seed: int
    attempt: int = 0
    """How often it was played before; it enters no seed."""
    of: str = ""
    """What it is played for, other than the training; see `Asked.of`."""

    @property
    def id(self) -> str:
        return f"{self.position}-{self.index}"

    @property
    def sampling_seed(self) -> int:
        """Seed of the session, in 0 … 2⁶² - 1: another one for each episode."""
        return _number(f"episode {self.seed} {self.index}") >> 2

    @property
    def environment_seed(self) -> int:
        """Seed of the environment, in 0 … 2³² - 1: all episodes of a group start in the same state."""
        return _number(f"environment {self.seed}") >> 32

    def session_id(self, run: str) -> str:
        """Name of the session on a rollout server: a trainer that has restarted replaces what is left of it.

        `run`: a name of the run that a resume keeps; characters that a URL may not have are replaced.
        """
        name = re.sub(r"[^A-Za-z0-9._-]", "_", run)
        if len(name) > MAX_RUN_CHARACTERS:
            name = f"{name[: MAX_RUN_CHARACTERS - 17]}-{_number(run):016x}"
        return "-".join(filter(None, [name, self.of, self.id]))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
