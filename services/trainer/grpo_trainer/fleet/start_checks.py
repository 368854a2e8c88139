"""What is wrong before a run begins, in words: servers that refuse it, and a rendezvous that cannot be opened.

Otherwise the first push would find out, after the model has been loaded, and the run would end as one that failed.
"""

from collections.abc import Sequence

from grpo_proto import RolloutInfo, ServiceError
from grpo_proto.fingerprint import chat_template_fingerprint
from grpo_proto.transport import gpu_uuid, nccl_version

from ..config.weights import WeightsConfig
from ..errors import UnavailableError, UsageError
from .fleet import Replica
from .push_backend import choose_backend
from .weight_session import listener_of
from .wrong_server import wrong_rollout_server


def check_rendezvous(config: WeightsConfig, members: Sequence[Replica]) -> None:
    """Check that the servers can be called to a push.

    Raises UnavailableError when the port is taken, and UsageError when the host is not this machine's, or when
    `weights.backend` nccl cannot work.
    """
    listener_of(config).close()
    if config.backend == "nccl":
        choose_backend(config, list(members), gpu=gpu_uuid(), nccl=nccl_version())


async def check_token(members: Sequence[Replica]) -> None:
    """Read the weight state of every server that is up, which asks for the token, as /info does not.

    Raises UsageError when a server refuses the token; all else is left to the watcher and the pushes.
    """
    for replica in members:
        try:
            await replica.weights.state()
        except ServiceError as error:
            if error.status == 401:
                raise wrong_rollout_server(replica.url, error) from error


def check_distinct(members: Sequence[tuple[str, RolloutInfo]]) -> None:
    """Raises UsageError when two URLs lead to the same server, or one stands twice."""
    seen: dict[str, str] = {}
    for url, info in members:
        if info.server_id in seen:
            raise UsageError(
                f"{seen[info.server_id]} and {url} are the same rollout server ({info.server_id})",
                hint="name it once in rollout.urls; a load balancer before several servers does not work here",
            )
        seen[info.server_id] = url


def check_free(infos: dict[str, RolloutInfo], *, trainer_id: str, take_over: bool) -> None:
    """Raises UnavailableError when another trainer holds a server, and is not to be fenced off."""
    for url, info in infos.items():
        weights = info.weights
        if take_over or weights.trainer_id in (None, trainer_id) or not weights.lease_left_s:
            continue
        raise UnavailableError(
            f"the rollout server {url} is held by the trainer {weights.trainer_id}, whose lease runs for another "
            f"{weights.lease_left_s:.0f} s",
            hint="stop that trainer, or wait; weights.take_over true fences it off",
        )


def check_sessions(
    infos: dict[str, RolloutInfo], *, with_tools: bool, with_images: bool = False, template: str | None = None
) -> None:
    """Check that the servers can record episodes; `with_tools`: of a policy that calls some; `with_images`: of rows
    that have some.

    `template` is the run's own chat template: the servers render the turns. Raises UnavailableError for an older
    server, for another chat template or one whose turns cannot be continued, and for a server that reads no calls or
    takes no images.
    """
    for url, info in infos.items():
        where, sessions = f"the rollout server {url}", info.sessions
        if sessions is None:
            raise UnavailableError(
                f"{where}, version {info.version}, has no sessions, in which episodes are recorded",
                hint="install the same release of grpo-services on both sides",
            )
        if template is not None and info.chat_template_fingerprint != chat_template_fingerprint(template):
            raise UnavailableError(
                f"{where} renders turns with another chat template than model.chat_template",
                hint="start it with --chat-template FILE, and give that file as model.chat_template",
            )
        if not sessions.template.usable:
            raise UnavailableError(
                f"{where} cannot continue turns with the chat template of {info.model}: {sessions.template.problem}",
                hint="give it another one by --chat-template",
            )
        if with_tools and sessions.tool_parser is None:
            raise UnavailableError(
                f"{where} reads no tool calls, and the episodes of this run have tools",
                hint="start it with --enable-auto-tool-choice --tool-call-parser NAME, such as hermes for Qwen",
            )
        if with_images and not sessions.images:
            raise UnavailableError(
                f"{where}, version {info.version}, takes no images in episodes, and rows of this run have some",
                hint="install the same release of grpo-services on both sides, or leave the rows with images out",
            )
