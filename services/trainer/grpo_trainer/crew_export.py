"""The export of all ranks together: rank 0 commands the gathering of each bucket."""

from collections.abc import Iterator

import torch

from grpo_proto import Manifest

from .engine.export import Export
from .ranks.crew import Crew


class CrewExport:
    """An `Export` as rank 0 pushes it, see `engine/export.py`; the other ranks gather when they are commanded to."""

    def __init__(self, own: Export, crew: Crew):
        self._own, self._crew = own, crew
        self.kind, self.absent, self.device, self.sharded = own.kind, own.absent, own.device, own.sharded
        self.peft_config, self.base_digest = own.peft_config, own.base_digest

    def listed(self) -> list[tuple[str, str, list[int]]]:
        return self._own.listed()

    def buckets(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]:
        self._crew.do("begin_export", manifest.model_dump_json(), torch.device(device).type == "cuda")
        for _ in manifest.bucket_bytes:
            bucket: torch.Tensor = self._crew.do("bucket")
            yield bucket

    def release(self) -> None:
        self._own.release()  # only this rank has buffers
