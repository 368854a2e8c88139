"""A wrong start says what is wrong before anything is loaded, with the exit status of the manual."""

import socket

import pytest
from tests.trainer.test_fleet import info

from grpo_proto import ErrorDetail, FatalError, WeightState
from grpo_trainer.config.run_config import RolloutConfig, WeightsConfig
from grpo_trainer.errors import TrainerError, UnavailableError, UsageError
from grpo_trainer.servers.start_checks import check_distinct, check_free, check_rendezvous, no_server


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
    ("status", "kind", "said"),
    [(401, UsageError, "asks for a token, and GRPO_API_TOKEN"), (404, UnavailableError, "no rollout server answers")],
)
def test_who_refuses_is_named(status: int, kind: type[TrainerError], said: str):
    refused = FatalError(ErrorDetail(type="refused", message="no"), url="http://a/info", status=status)
    found = no_server(refused, role="rollout server", url="http://a", setting="rollout.urls")
    assert type(found) is kind
    assert said in str(found)


def test_a_url_ends_without_the_path_of_openais_clients():
    with pytest.raises(ValueError, match="ends with /v1, which the trainer adds by itself"):
        RolloutConfig(urls=["http://127.0.0.1:8000/v1/"])
