"""The base of all sections of a run file, and the types of their fields."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from grpo_proto.server_url import checked_url

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


def check_expression(pattern: str) -> None:
    """Raises ValueError for what is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern} is no regular expression: {error}") from error


def without_credentials(url: str) -> str:
    """Refuse credentials: the configuration is written to the run folder and sent to experiment trackers."""
    if urlsplit(url).username or urlsplit(url).password:
        raise PydanticCustomError("secret", "no user and no password in a URL: put the token into GRPO_API_TOKEN")
    return url


def without_version(url: str) -> str:
    """Refuse the path that OpenAI's clients want: ours add it themselves, and would ask for /v1/v1."""
    if urlsplit(url).path.rstrip("/").endswith("/v1"):
        raise ValueError(f"{url} ends with /v1, which the trainer adds by itself: leave it out")
    return url


ServerUrl = Annotated[
    str, AfterValidator(without_credentials), AfterValidator(checked_url), AfterValidator(without_version)
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
