"""The teacher stage: does the teacher's server fit this run, and which token gets which logprob?"""

from contextlib import nullcontext
from types import SimpleNamespace

import httpx
import pytest
from tests.proto.messages import EXAMPLES
from tests.tiny_model import make_tokenizer
from tests.trainer.made_episodes import completion, two_segments

from grpo_proto import InfrastructureError, RolloutClient, RolloutInfo
from grpo_proto.fingerprint import tokenizer_fingerprint, vocabulary_fingerprint
from grpo_proto.messages.logprobs import LogprobsRequest, LogprobsResponse, SequenceLogprobs
from grpo_trainer.algorithm.image_tokens import FIRST_NAME
from grpo_trainer.algorithm.sequences import Group, single_turn
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.teacher import TeacherConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError, UnavailableError
from grpo_trainer.sampling import teacher
from grpo_trainer.sampling.teacher import Policy, TeacherStage
from grpo_trainer.sampling.teachers import Teachers

CONFIG = TeacherConfig(url="http://127.0.0.1:1", retry_for_s=0.01)
POLICY = Policy.of(make_tokenizer(), max_tokens=100, max_images=2)
INFO: RolloutInfo = EXAMPLES["RolloutInfo"].model_copy(  # type: ignore[assignment]
    update={
        "server_id": "teacher",
        "vocabulary_fingerprint": POLICY.vocabulary,
        "tokenizer_fingerprint": POLICY.tokenizer,
        "max_model_len": 101,
        "max_images": 2,
    }
)
RUNS_OWN = INFO.model_copy(update={"server_id": "of-the-run"})


def stage_with(answer: httpx.MockTransport) -> TeacherStage:
    return TeacherStage(RolloutClient(str(CONFIG.url), transport=answer), CONFIG)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"protocol_version": 99}, "speaks protocol 99"),
        ({"vocabulary_fingerprint": None}, "does not tell its vocabulary"),
        ({"vocabulary_fingerprint": "0" * 16}, "another vocabulary .0000000000000000.* of the same family"),
        ({"max_model_len": 100}, "context of 100 tokens; prompt and completion need 100, and scoring one more"),
        ({"server_id": "of-the-run"}, "one of the run's rollout servers"),
        ({"max_images": 1}, "takes 1 images a prompt, and a row has 2"),
    ],
)
async def test_a_teacher_that_does_not_fit_is_refused(changes: dict[str, object], named: str | None):
    info = INFO.model_copy(update=changes)
    stage = stage_with(httpx.MockTransport(lambda _: httpx.Response(200, text=info.model_dump_json())))
    if named is None:
        assert await stage.check(POLICY, run_servers=[RUNS_OWN]) == info
    else:
        with pytest.raises(UnavailableError, match=named):
            await stage.check(POLICY, run_servers=[RUNS_OWN])


async def test_a_teacher_that_ends_its_texts_otherwise_is_warned_of(caplog: pytest.LogCaptureFixture):
    vocabulary = make_tokenizer().get_vocab()
    other_end = tokenizer_fingerprint(vocabulary, eos_token_id=4711)
    assert vocabulary_fingerprint(vocabulary) == POLICY.vocabulary
    info = INFO.model_copy(update={"tokenizer_fingerprint": other_end})
    stage = stage_with(httpx.MockTransport(lambda _: httpx.Response(200, text=info.model_dump_json())))
    await stage.check(POLICY, run_servers=[])
    assert "ends its texts with another token" in caplog.text


def answer(request: httpx.Request) -> httpx.Response:
    """Logprobs that tell the token: minus its id."""
    message = LogprobsRequest.model_validate_json(request.content)
    scored = [
        SequenceLogprobs(logprobs=[-float(token) for token in one.token_ids[one.num_prompt_tokens :]], version=3)
        for one in message.sequences
    ]
    return httpx.Response(200, text=LogprobsResponse(sequences=scored, server_id="teacher").model_dump_json())


@pytest.mark.parametrize("request_tokens", [2**16, 12])
async def test_each_sampled_token_gets_its_logprob_however_requests_are_cut(
    request_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(teacher, "REQUEST_TOKENS", request_tokens)
    episodes = [
        completion("0-0", [7, 8, 9], [-0.1] * 3, "x", "stop", [(1, 3)], prompt=[5, 6]),
        completion("0-1", [], [], "", "stop", []),
        two_segments(),
    ]
    group = Group(0, PromptRow(0, [1], "p", {}), episodes)
    await stage_with(httpx.MockTransport(answer)).score([group])
    for episode in episodes:
        assert episode.teacher_logprobs == [-float(token) for token in episode.sampled_token_ids]
    assert group.taught_at_s > 0


async def test_images_are_sent_once_a_request_behind_the_prompt_as_the_template_writes_it(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[LogprobsRequest] = []

    def noted(request: httpx.Request) -> httpx.Response:
        asked.append(LogprobsRequest.model_validate_json(request.content))
        return answer(request)

    monkeypatch.setattr(teacher, "REQUEST_IMAGE_CHARS", 10)
    expanded = [5, *(FIRST_NAME + place for place in range(3)), 6]
    both, one = ("aaaa", "bbbb"), ("cccc",)
    groups = [
        Group(number, PromptRow(number, [5, 99, 6], "p", {}), [
            single_turn(f"{number}-{n}", expanded, [7, 99, 8 + n], versions=[(1, 3)], finish_reason="stop",
                        images=shown)
            for n in range(2)
        ])
        for number, shown in enumerate((both, one))
    ]  # fmt: skip
    await stage_with(httpx.MockTransport(noted)).score(groups)
    assert [request.images for request in asked] == [["aaaa", "bbbb"], ["cccc"]]
    assert [[sequence.images for sequence in request.sequences] for request in asked] == [[[0, 1]] * 2, [[0]] * 2]
    first = asked[0].sequences[0]
    assert (first.token_ids, first.num_prompt_tokens) == ([5, 99, 6, 7, 99, 8], 3)
    assert groups[1].episodes[1].teacher_logprobs == [-7.0, -99.0, -9.0]


async def test_an_episode_with_images_is_not_scored_without_them():
    episode = single_turn("0-0", [5, FIRST_NAME], [7], versions=[(1, 1)], finish_reason="stop", images=("aaaa",))
    episode.transcript = [{"role": "user", "content": "?"}]
    with pytest.raises(RunError, match="the teacher would score an episode with images, which it does not see"):
        await stage_with(httpx.MockTransport(answer)).score([Group(0, PromptRow(0, [5], "p", {}), [episode])])


async def test_a_teacher_with_prompts_of_its_own_needs_room_for_these():
    prompts = SimpleNamespace(longest=300, named="teacher.prompt_column")
    policy = Policy.of(make_tokenizer(), max_tokens=50, max_completion_length=20)
    client = RolloutClient("http://t:1", transport=httpx.MockTransport(lambda _: httpx.Response(200, text=told)))
    stage = TeacherStage(client, CONFIG, prompts={"math": prompts})  # type: ignore[dict-item]
    told = INFO.model_copy(update={"max_model_len": 320}).model_dump_json()
    with pytest.raises(UnavailableError, match=r"need 320, .*shorten what teacher.prompt_column makes"):
        await stage.check(policy, run_servers=[])
    told = INFO.model_copy(update={"max_model_len": 321}).model_dump_json()
    await stage.check(policy, run_servers=[])


async def test_each_group_is_scored_by_the_teacher_of_its_dataset_and_messages_name_it():
    own = {"url": "http://127.0.0.1:2"}
    sets = {name: {"dataset": name, "ratio": 0.25} for name in ("math", "code", "all", "free")}
    config = RunConfig.model_validate(
        {
            "run_dir": "run",
            "model": {"name_or_path": "any"},
            "reward": {"reward_funcs": ["format"]},
            "data": {"datasets": sets | {name: sets[name] | {"teacher": own} for name in ("math", "code")}},
        }
    )
    groups = [Group(0, PromptRow(0, [1], "p", {}, name), [two_segments()]) for name in sets]
    async with Teachers(config) as teachers:
        [stage] = teachers.stages
        assert (stage.name, stage.setting) == ("the teacher of math and code", "data.datasets.math.teacher.url")
    config = config.model_copy(update={"teacher": TeacherConfig(url="http://127.0.0.1:1", retry_for_s=0.01)})
    del config.data.datasets["free"]
    async with Teachers(config) as teachers:
        assert [stage.name for stage in teachers.stages] == ["the teacher of math and code", "the teacher"]
        stage, away = teachers.stages
        stage.client = RolloutClient(stage.config.url, transport=httpx.MockTransport(answer))
        with pytest.raises(RunError, match=r"^the teacher could not score within 0\.01 s"):
            await teachers.score(groups)
        away.client = stage.client
        await teachers.score(groups)
    assert [group.episodes[0].teacher_logprobs is not None for group in groups] == [True, True, True, False]


@pytest.mark.parametrize(
    ("changes", "warns", "refused"),
    [
        ({}, None, None),
        ({"model": "another"}, "the teacher serves another now", None),
        ({"vocabulary_fingerprint": "0" * 16}, None, "the teacher was started anew: .*has another vocabulary"),
    ],
)
async def test_a_teacher_that_was_started_anew_is_held_to_the_same(
    changes: dict[str, object], warns: str | None, refused: str | None, caplog: pytest.LogCaptureFixture
):
    """Its logprobs would be trained on without a word: they are numbers, whatever its token ids mean."""
    infos = iter([INFO, INFO.model_copy(update={"server_id": "anew", **changes})])
    servers = iter(["teacher", "anew"])

    def serve(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, text=next(infos).model_dump_json())
        scored = LogprobsResponse.model_validate_json(answer(request).content)
        return httpx.Response(200, text=scored.model_copy(update={"server_id": next(servers)}).model_dump_json())

    stage = stage_with(httpx.MockTransport(serve))
    await stage.check(POLICY, run_servers=[])
    groups = [
        Group(n, PromptRow(0, [1], "p", {}), [completion("a", [7], [-0.1], "x", "stop", [(1, 1)])]) for n in (0, 1)
    ]
    await stage.score(groups[:1])
    with pytest.raises(RunError, match=refused) if refused else nullcontext():
        await stage.score(groups[1:])
    assert (groups[1].episodes[0].teacher_logprobs is None) == (refused is not None)
    assert (warns or "") in caplog.text
    assert ("was started anew" in caplog.text) == (warns is not None)


async def test_a_teacher_that_stays_away_ends_the_wait():
    stage = stage_with(httpx.MockTransport(lambda _: httpx.Response(503, text="")))
    group = Group(0, PromptRow(0, [1], "p", {}), [completion("0-0", [7], [-0.1], "x", "stop", [(1, 1)])])
    with pytest.raises(RunError, match=r"the teacher could not score within 0.01 s") as failed:
        await stage.score([group])
    assert isinstance(failed.value.__cause__, InfrastructureError)
