"""What `GET /info` of the rollout server says about its sessions."""

from pydantic import Field

from .base import Response


class TemplateFindings(Response):
    """What a server found out about its chat template at the start."""

    usable: bool = Field(description="Whether turns can be continued by messages; token_ids always work.")
    problem: str | None = None
    end_token: str | None = Field(default=None, description="What it writes behind an answer; null: the next message.")
    suffix_depends_on_prefix: bool = Field(default=False, description="On tools or the system message.")
    keeps_thinking: bool = Field(default=False, description="Of answers before the last question, in a full render.")
    keeps_thinking_before_results: bool = False
    keeps_prefix: bool = Field(default=False, description="Whether a full render begins with the render before it.")
    refuses_two_users: bool = False
    refuses_late_system: bool = False


class SessionsInfo(Response):
    """`sessions` of `GET /info` of the rollout server."""

    open: int
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    images: bool = Field(default=False, description="Whether messages may show images.")
    template: TemplateFindings
