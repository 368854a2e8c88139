"""Metrics as TensorBoard event files."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorBoardSink:
    """Write one event file per start of the trainer, all in one folder: TensorBoard joins them to one run."""

    name = "tensorboard"

    def __init__(self, folder: Path, *, resumed_step: int | None):
        # purge_step hides the steps of a killed run that the resumed run does again.
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=None if resumed_step is None else resumed_step + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, global_step=step)
        self._writer.flush()

    def close(self, failure: str | None) -> None:
        self._writer.close()
