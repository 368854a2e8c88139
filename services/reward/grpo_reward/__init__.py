"""The reward server: text in, scores out.

`reward` and `Score` are what an author of rewards needs; `RemoteReward` is a served reward as a function for trainers.
"""

from .author import Reward, Score, reward
from .remote import RemoteReward

__version__ = "0.1.0"

__all__ = ["RemoteReward", "Reward", "Score", "reward"]
