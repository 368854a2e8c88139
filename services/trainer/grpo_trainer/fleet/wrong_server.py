"""What answers at a URL of the run file, when that is not the server it should be."""

from grpo_proto import FatalError, ServiceError
from grpo_proto.api_token import TOKEN_VARIABLE

from ..errors import TrainerError, UnavailableError, UsageError


def wrong_server(error: ServiceError, *, role: str, url: str, setting: str) -> TrainerError:
    """The error for a URL at which something refuses the run's requests: for another token, or as another service.

    `role`: what the server should be, such as `rollout server`. `setting` holds the URL.
    """
    if isinstance(error, FatalError) and error.status == 401:
        return UsageError(
            f"the {role} {url} asks for a token, and {TOKEN_VARIABLE} of this process is not set, or another one",
            hint=f"set {TOKEN_VARIABLE} to the token of that server",
        )
    if error.detail.type == "wrong_service":
        return UnavailableError(f"{url} is no {role}: {error.detail.message}", hint=f"see {setting}")
    return UnavailableError(f"{url} is no {role} of grpo-services: {error}", hint=f"see {setting}")


def wrong_rollout_server(url: str, error: ServiceError) -> TrainerError:
    return wrong_server(error, role="rollout server", url=url, setting="rollout.urls")
