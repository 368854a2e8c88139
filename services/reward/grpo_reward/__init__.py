"""The reward server: text in, scores out. `reward` and `Score` are what an author of rewards needs."""

from .author import Reward, Score, reward

__version__ = "0.1.0"

__all__ = ["Reward", "Score", "reward"]
