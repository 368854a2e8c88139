"""What a class written for ms-swift is called with, and what it may not do; whole episodes are in tests/rollout."""

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from grpo_proto.swift_stand_in import stand_in
from grpo_trainer.episodes import swift_plays
from grpo_trainer.episodes.messages import EnvironmentFault
from grpo_trainer.episodes.swift_plays import GymEnvironment, Scheduler, is_gym_environment, problem_of

PROMPT = [{"role": "user", "content": "Guess."}]
CALL = {"id": "1", "type": "function", "function": {"name": "twice", "arguments": '{"text": "ab"}'}}


def twice(text: str) -> str:
    """Say it twice.

    Args:
        text: what to say
    """
    return text * 2


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits of the calls, in seconds. They are kept by the signal that limits the tests, too: not here."""
    found: list[float] = []

    def call(function: Any, *given: Any, timeout_s: float, **named: Any) -> Any:
        found.append(timeout_s)
        returned = function(*given, **named)
        return asyncio.run(returned) if inspect.isawaitable(returned) else returned

    monkeypatch.setattr(swift_plays, "call", call)
    monkeypatch.setattr("grpo_trainer.episodes.tools.call", call)
    return found


@pytest.fixture
def games(limits: list[float]) -> Iterator[Any]:
    with mock.patch.dict(sys.modules):
        stand_in()
        spec = importlib.util.spec_from_file_location("swift_games", Path(__file__).with_name("swift_games.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def begun(play: Any, **row: Any) -> Any:
    play.reset(row=row, prompt=PROMPT, seed=0, timeout_s=10.0)
    return play


def said(play: Any, text: str = "1", *calls: Any, ids: tuple[int, ...] = (5, 6)) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **({"tool_calls": [*calls]} if calls else {})}
    choice = {"finish_reason": "stop", "token_ids": [*ids]}
    found: dict[str, Any] = play.step(message=message, choice=choice, timeout_s=10.0, budget_s=10.0)
    return found


def test_a_class_of_envs_need_not_be_derived_of_env(games: Any):
    assert is_gym_environment(games.Duck)
    assert is_gym_environment(games.Guess)
    assert not is_gym_environment(games.Tips)


def test_an_environment_gets_the_columns_beside_the_messages(games: Any):
    game = begun(GymEnvironment(games.Guess, []), number=7, messages=PROMPT)
    assert game.request.data_dict == {"number": 7}
    assert game.request.messages == PROMPT


def test_an_environment_cannot_change_what_was_said(games: Any):
    game = begun(GymEnvironment(games.Duck, []))
    assert [said(game)["messages"][0]["content"] for _ in range(2)] == ["ua", "uaua"]


def test_a_last_message_that_only_tools_have_seen_is_shown_to_an_environment(games: Any):
    game = begun(GymEnvironment(games.Guess, [twice]), number=7)
    assert said(game, "7", CALL)["messages"][0]["content"] == "abab"
    assert game.show(message={"role": "assistant", "content": "7"}, timeout_s=10.0) == 1.0


def test_an_env_config_that_is_no_object_is_named(games: Any):
    with pytest.raises(EnvironmentFault, match=r"env_config is 'guess', not an object"):
        begun(GymEnvironment(games.Guess, []), number=7, env_config="guess")


def test_the_hooks_of_a_turn_share_its_time(games: Any, limits: list[float]):
    scheduler = begun(Scheduler(games.Tips, [], max_turns=5), solution="42")
    limits.clear()
    said(scheduler)
    assert len(limits) == 3
    assert 10.0 > limits[0] > limits[1] > limits[2]


def test_a_total_that_step_returns_pays(games: Any):
    scheduler = begun(Scheduler(games.PaidByStep, [], max_turns=5))
    assert [said(scheduler)["reward"] for _ in range(2)] == [0.5, 0.5]


def test_a_scheduler_derived_of_the_gyms_plays_its_environments(games: Any, tmp_path: Path):
    assert problem_of(games.Patient) is None
    closed = tmp_path / "closed"
    config = {"name": "guess", "system": "You guess.", "closed": str(closed)}
    scheduler = begun(Scheduler(games.Patient, [], max_turns=5), number=7, env_config=config)
    assert [message["content"] for message in scheduler.request.messages] == ["You guess.", "Guess. Good luck."]
    first, second = said(scheduler, "6"), said(scheduler, "7")
    assert (first["messages"][0]["content"], first["reward"], first["done"]) == ("No, sua.", -0.125, False)
    assert (second["messages"], second["reward"], second["done"]) == ([], 0.5, True)
    assert closed.exists()


def test_an_environment_that_a_scheduler_left_open_is_closed_with_the_episode(games: Any, tmp_path: Path):
    closed = tmp_path / "closed"
    config = {"name": "guess", "closed": str(closed)}
    scheduler = begun(Scheduler(games.GYMScheduler, [], max_turns=1), number=7, env_config=config)
    assert said(scheduler, "6")["done"]
    scheduler.close(10.0)
    assert closed.exists()


def test_an_environment_that_nothing_names_is_the_only_one_or_an_error(games: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="env_config has no name: envs has guess, silent, duck"):
        begun(Scheduler(games.GYMScheduler, [], max_turns=1), number=7)
    for name in ("guess", "silent"):
        monkeypatch.delitem(games.envs, name)
    begun(Scheduler(games.GYMScheduler, [], max_turns=1))


def test_a_first_hook_that_sets_images_is_named_before_the_first_turn(games: Any):
    with pytest.raises(EnvironmentFault, match=r"a hook set infer_request\.images"):
        begun(Scheduler(games.Painting, [], max_turns=5))


@pytest.mark.parametrize(("mask", "is_taken"), [([1, 1], True), ([1], False), ([], False), ([1, 0], False)])
def test_only_a_mask_of_all_that_was_sampled_is_taken(games: Any, mask: list[int], is_taken: bool):
    class Masking(games.MultiTurnScheduler):  # type: ignore[misc]
        def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
            infer_request.messages.append({"role": "user", "content": "Go on."})
            return {"infer_request": infer_request, "response_loss_mask": mask}

    scheduler = begun(Scheduler(Masking, [], max_turns=5))
    if is_taken:
        assert said(scheduler)["messages"][0]["content"] == "Go on."
    else:
        with pytest.raises(EnvironmentFault, match=r"a response_loss_mask of its own"):
            said(scheduler)


def test_a_scheduler_is_made_as_ms_swift_makes_it_and_what_it_needs_beside_is_named(games: Any):
    class Engine(games.Tips):  # type: ignore[misc]
        def __init__(self, infer_engine: Any, max_turns: int | None = None):
            super().__init__(infer_engine, max_turns)

    class Brief(games.Tips):  # type: ignore[misc]
        def __init__(self, max_turns: int):
            super().__init__(max_turns=max_turns)

    class Tokens(games.Tips):  # type: ignore[misc]
        def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)

    for kind in (Engine, Brief, games.Tips):
        assert problem_of(kind) is None
        assert begun(Scheduler(kind, [], max_turns=3)).instance.max_turns == 3
    assert str(problem_of(Tokens)).startswith("needs tokenizer to be made, and gets infer_engine and max_turns alone")
