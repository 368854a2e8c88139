"""Rewards as people write them for ms-swift; nothing here knows of this project."""

from typing import List  # noqa: UP035

from swift.rewards import ORM, AsyncORM, orms
from swift.utils import get_logger

logger = get_logger()


class Ends(ORM):
    def __call__(self, completions, solution, **kwargs) -> List[float]:  # noqa: UP006
        return [float(text.endswith(gold)) for text, gold in zip(completions, solution, strict=True)]


class Brief(AsyncORM):
    def __init__(self, args=None, **kwargs):
        super().__init__(args)
        self.limit = 3

    async def __call__(self, completions, response_token_ids=None, is_truncated=None, **kwargs):
        step = kwargs["trainer_state"].global_step
        last = [messages[-1]["content"] for messages in kwargs["messages"]]
        assert last == completions
        return [len(ids) <= self.limit and not cut and step >= 2 for ids, cut in zip(response_token_ids, is_truncated)]  # noqa: B905


class Echo(ORM):
    def __call__(self, infer_requests, level=0.5):
        return [level if isinstance(level, float) else number for number, _ in zip(level, infer_requests, strict=True)]


orms["ends"] = Ends
orms["brief"] = Brief
orms["echo"] = Echo
