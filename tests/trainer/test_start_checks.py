"""A wrong start says what is wrong before anything is loaded, with the exit status of the manual."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from tests.trainer.test_fleet import info
from tests.waiting import PATIENCE_S

from grpo_proto import ErrorDetail, FatalError, RewardClient, RewardInfo, WeightState
from grpo_proto.fingerprint import chat_template_fingerprint
from grpo_proto.messages.sessions_info import SessionsInfo
from grpo_trainer.config.rollout import RolloutConfig
from grpo_trainer.config.run_config import WeightsConfig
from grpo_trainer.errors import UnavailableError, UsageError
from grpo_trainer.fleet.awaited import Awaited, wait_for_rollout_servers
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.fleet.start_checks import check_distinct, check_free, check_rendezvous, check_sessions
from grpo_trainer.fleet.wrong_server import wrong_server


def held(seconds: float | None, trainer: str | None = "other") -> WeightState:
    return WeightState(state="current", version=3, session=5, trainer_id=trainer, lease_left_s=seconds)


def test_a_server_that_another_trainer_holds_is_named_with_its_lease():
    infos = {"http://a": info(weights=held(41.7))}
    with pytest.raises(UnavailableError, match=r"http://a is held by the trainer other.* for another 42 s") as caught:
        check_free(infos, trainer_id="mine", take_over=False)
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("weights", "take_over"),
    [
        (held(40.0), True),
        (held(40.0, trainer="mine"), False),
        (held(0.0), False),
        (held(None), False),
        (WeightState(state="initial", version=0), False),
    ],
    ids=["to be fenced off", "this run's", "its lease has run out", "of an older server", "nobody's"],
)
def test_a_server_that_is_free_is_taken(weights: WeightState, take_over: bool):
    check_free({"http://a": info(weights=weights)}, trainer_id="mine", take_over=take_over)


def test_the_same_server_twice_is_named_by_both_urls():
    check_distinct([("http://a", info(server_id="1")), ("http://b", info(server_id="2"))])
    with pytest.raises(UsageError, match="http://a and http://b are the same rollout server"):
        check_distinct([("http://a", info(server_id="1")), ("http://b", info(server_id="1"))])
    with pytest.raises(UsageError, match="http://a and http://a are the same rollout server"):
        check_distinct([("http://a", info(server_id="1")), ("http://a", info(server_id="1"))])


def test_a_rendezvous_that_cannot_be_opened():
    check_rendezvous(WeightsConfig(), [])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UnavailableError, match="cannot be listened on: Address already in use"):
            check_rendezvous(WeightsConfig(port=taken.getsockname()[1]), [])
    with pytest.raises(UsageError, match=r"203\.0\.113\.9 port 0 cannot be listened on"):
        check_rendezvous(WeightsConfig(host="203.0.113.9"), [])
    with pytest.raises(UsageError, match=r"weights\.backend is nccl, but this trainer has no GPU"):
        check_rendezvous(WeightsConfig(backend="nccl"), [])


@pytest.mark.parametrize(
    ("sessions", "said"),
    [
        (None, "http://a, version .*, has no sessions"),
        ({"tool_parser": None}, r"reads no tool calls.*--enable-auto-tool-choice --tool-call-parser"),
        ({"template": {"usable": False, "problem": "it drops the answer"}}, "cannot continue turns .*drops the answer"),
        ({"tool_parser": "hermes"}, "takes no images in episodes, and rows of this run have some"),
        ({"tool_parser": "hermes", "images": True}, None),
    ],
)
def test_a_server_that_cannot_record_the_episodes_of_a_run_is_named(sessions: Any, said: str | None):
    found = sessions and {"open": 0, "template": {"usable": True}} | sessions
    infos = {"http://a": info().model_copy(update={"sessions": found and SessionsInfo.model_validate(found)})}
    if said is None:
        check_sessions(infos, with_tools=True, with_images=True)
        return
    with pytest.raises(UnavailableError) as refused:
        check_sessions(infos, with_tools=True, with_images=True)
    assert re.search(said, f"{refused.value} {refused.value.hint}")


def test_servers_render_the_turns_of_episodes_by_the_template_of_the_run():
    found = SessionsInfo.model_validate({"open": 0, "template": {"usable": True}})
    served = {"sessions": found, "chat_template_fingerprint": chat_template_fingerprint("{{ messages }}\n")}
    infos = {"http://a": info().model_copy(update=served)}
    check_sessions(infos, with_tools=False, template="{{ messages }}")  # a file ends with a line break
    with pytest.raises(UnavailableError, match=r"http://a renders turns with another .* than model\.chat_template"):
        check_sessions(infos, with_tools=False, template="{{ messages }}!")


def test_a_token_that_a_server_refuses_is_named():
    refused = FatalError(ErrorDetail(type="unauthorized", message="no"), url="http://a/v1/weights", status=401)
    found = wrong_server(refused, role="rollout server", url="http://a", setting="rollout.urls")
    assert type(found) is UsageError
    assert "the rollout server http://a asks for a token, and GRPO_API_TOKEN" in str(found)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of something that sends the same to whoever connects."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                continue
            self.wfile.write(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def page(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


NO_ROLLOUT_SERVER = {
    "a reward server": (
        page(RewardInfo(version="1", protocol_version=1, rewards={}, workers=1).model_dump_json()),
        "is no rollout server: the reward server of grpo-services answers there",
    ),
    "a trainer": (
        page('{"service": "trainer", "step": 3}'),
        "is no rollout server: the live page of a trainer of grpo-services answers there",
    ),
    "a page": (page("<html>"), "is no rollout server of grpo-services: .*begins with '<html>'"),
    "another API": (page('{"detail": "Not Found"}', "404 Not Found"), "is no rollout server of grpo-services: .*404"),
}


@pytest.mark.parametrize(("answer", "said"), NO_ROLLOUT_SERVER.values(), ids=NO_ROLLOUT_SERVER)
async def test_a_url_of_something_else_is_named_at_once(answer: bytes, said: str):
    with answering(answer) as url:
        fleet = Fleet([url], min_replicas=1)
        with pytest.raises(UnavailableError, match=f"{url} {said}") as caught:
            await asyncio.wait_for(wait_for_rollout_servers(fleet, 600.0), PATIENCE_S)
        await fleet.close()
    assert caught.value.exit_status == 3
    assert caught.value.hint == "see rollout.urls"


async def test_a_reward_server_elsewhere_is_named_before_any_other_is_waited_for():
    rollout = info().model_dump_json()
    with answering(page(rollout)) as url:
        server = Awaited("the reward server", url, "reward.url", "grpo-reward serve")
        async with RewardClient(url) as client:
            with pytest.raises(UnavailableError, match=f"{url} is no reward server: the rollout server of grpo"):
                await server.refuse_another(client.info)
    async with RewardClient(url) as client:  # nobody is there now
        await server.refuse_another(client.info)


def test_a_url_ends_without_the_path_of_openais_clients():
    with pytest.raises(ValueError, match="ends with /v1, which the trainer adds by itself"):
        RolloutConfig(urls=["http://127.0.0.1:8000/v1/"])
