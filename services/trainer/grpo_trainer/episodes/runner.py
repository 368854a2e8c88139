"""What a sampler needs of this folder: play one episode on one rollout server.

    async with EpisodeRunner(config.episodes, run=…, log_dir=…) as runner:       # imports the users' files
        played = await runner.run_episode(asked, place)

The runner knows no fleet and plays nothing twice. `played.ending.lost` says what broke when another attempt with the
same seeds makes sense: the `server` (elsewhere, until the retry budget is spent), or the `environment` or `program`
(a second time only). Cancel `run_episode` when the fleet loses the server: its processes end, and the session is
forgotten.
"""

import logging
from pathlib import Path

from ..config.episodes import EpisodesConfig
from ..data.sent_images import SEES_NONE, ImagesOfPrompts
from .environments import EnvironmentPlayer
from .identity import EpisodeAsked
from .kept_logs import KeptLogs
from .played import Played
from .processes import Nursery
from .programs import ProgramPlayer
from .recording import Place, Recording

log = logging.getLogger(__name__)


class EpisodeRunner:
    """Plays as many episodes at once as it is asked to: the sampler bounds them.

    Args:
        run: a name of the run that a resume keeps, and no other run has; part of the sessions' ids.
        images: how the policy is shown those of rows, environments and tools.
        log_dir: what the processes of episodes print goes there, 1 MiB each, of the newest 4,096; `RUN/agents`.
    """

    def __init__(self, config: EpisodesConfig, *, run: str, log_dir: Path, images: ImagesOfPrompts = SEES_NONE):
        self.config, self.run, self.images = config, run, images
        self.logs = KeptLogs(log_dir)
        self.nursery = Nursery(
            environments=[config.environment] if config.environment else [],
            schedulers=[config.multi_turn_scheduler] if config.multi_turn_scheduler else [],
            factories=list(dict.fromkeys(config.factories.values())),
            tools=config.tools,
            rewards=config.reward_funcs,
            startup_timeout_s=config.startup_timeout_s,
        )

    async def __aenter__(self) -> "EpisodeRunner":
        """Raises UsageError when a file of the run file cannot be imported, or cannot play an episode."""
        await self.nursery.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.nursery.stop()

    async def run_episode(self, asked: EpisodeAsked, place: Place) -> Played:
        """Play one episode, from its reset to its end.

        Waits for `deadline_s`, the time in which no weights are served, `call_timeout_s` for each reward that is
        computed at the end, `idle_s` together, and a look at the server at most.
        Returns in all cases but two: UsageError for a row that names no environment, and ServiceError for a server that
        refuses the run itself (401, a context that its model does not have).
        """
        async with Recording(asked, place, self.config, self.run, self.images) as recording:
            log_file = self.logs.file_of(recording.session_id)
            player = ProgramPlayer if self.config.agent else EnvironmentPlayer
            try:
                return await player(self.nursery, self.config, asked, log_file).play(recording)
            finally:
                self.logs.ended(log_file)
