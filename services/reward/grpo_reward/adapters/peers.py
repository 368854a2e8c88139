"""The adapters there are. A new one is a new file and a line here."""

from typing import Any

from . import nemo_gym, openrlhf, slime
from .base import Adapter

ADAPTERS: tuple[Adapter[Any], ...] = (openrlhf.ADAPTER, slime.ADAPTER, nemo_gym.ADAPTER)
