"""Any single-player game of TextArena (`pip install textarena`) as an environment; the row's column `game` names it."""

from typing import Any

import textarena as ta


class Game:
    def reset(self, row: dict[str, Any], seed: int) -> str:
        self.game = ta.make(row.get("game", "GuessTheNumber-v0-raw"))
        self.game.reset(num_players=1, seed=seed)
        return self.seen()

    def step(self, message: dict[str, Any]) -> tuple[str, float | None, bool]:
        done, _ = self.game.step(action=message["content"])
        rewards = self.game.close()[0] if done else {0: None}
        return "" if done else self.seen(), rewards[0], done

    def seen(self) -> str:
        """What the game has said since the last move."""
        return "\n".join(text for author, text, _ in self.game.get_observation()[1] if author == ta.GAME_ID)
