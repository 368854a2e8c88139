"""The teachers of a run that are servers: which of them scores the groups of which dataset."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self

from grpo_proto import RolloutClient

from ..algorithm.sequences import Group
from ..config.run_config import RunConfig
from ..config.teacher import TeacherConfig, teacher_setting
from ..data.teacher_prompts import TeacherPrompts
from .teacher import TeacherStage


class Teachers:
    """Datasets with the same settings of a teacher share it. Without any, `score` does nothing."""

    def __init__(self, config: RunConfig, prompts: Mapping[str, TeacherPrompts] = MappingProxyType({})):
        """`prompts`: those of each dataset whose teacher does not read the policy's."""
        datasets_of: dict[TeacherConfig, list[str]] = {}
        for dataset, teacher in config.teachers.items():
            if not teacher.of_itself:
                datasets_of.setdefault(teacher, []).append(dataset)
        self.stages: list[TeacherStage] = []
        self._stage_of: dict[str, TeacherStage] = {}
        for teacher, datasets in datasets_of.items():
            setting = teacher_setting(datasets[0], config)
            name = "the teacher" if setting == "teacher" else f"the teacher of {' and '.join(datasets)}"
            client = RolloutClient(teacher.url or "")
            own = {dataset: prompts[dataset] for dataset in datasets if dataset in prompts}
            stage = TeacherStage(client, teacher, name=name, setting=f"{setting}.url", prompts=own)
            self.stages.append(stage)
            self._stage_of |= dict.fromkeys(datasets, stage)

    async def score(self, groups: Sequence[Group]) -> None:
        """Have each group scored by its dataset's teacher, if it has one; one teacher after the other.

        Raises RunError when a teacher does not answer within its `retry_for_s`.
        """
        for stage in self.stages:
            if own := [group for group in groups if self._stage_of.get(group.row.dataset) is stage]:
                await stage.score(own)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for stage in self.stages:
            await stage.client.close()
