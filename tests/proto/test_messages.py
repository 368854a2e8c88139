"""The wire does not change by accident: every message has a golden file of what travels."""

import importlib
import inspect
import json
import pickle
import pkgutil
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import grpo_proto.messages as messages_of_the_wire
from grpo_proto import (
    BeginRequest,
    Manifest,
    Message,
    Prompt,
    Request,
    Response,
    RolloutRequest,
    Sampling,
    ScoreRequest,
    ScoreResponse,
    TensorSpec,
    error_class,
)
from grpo_proto.fingerprint import chat_template_fingerprint, tokenizer_fingerprint
from grpo_proto.messages.errors import (
    ConflictError,
    DataError,
    ErrorDetail,
    FatalError,
    InfrastructureError,
    ServiceError,
)
from grpo_proto.messages.rollout import StructuredOutputs
from grpo_proto.messages.sessions import OpenSession

from .messages import EXAMPLES, VARIANTS

GOLDEN = Path(__file__).parent / "golden"
ALL_EXAMPLES = EXAMPLES | VARIANTS


def golden_text(message: BaseModel) -> str:
    return json.dumps(message.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def test_every_message_of_the_wire_has_an_example_and_a_golden_file():
    messages = set()
    for info in pkgutil.iter_modules(messages_of_the_wire.__path__):
        module = importlib.import_module(f"grpo_proto.messages.{info.name}")
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, Request | Response) and value.__module__ == module.__name__:
                messages.add(name)
    assert set(EXAMPLES) == messages - {"Request", "Response"}
    assert {path.stem for path in GOLDEN.iterdir()} == set(ALL_EXAMPLES)


@pytest.mark.parametrize("name", ALL_EXAMPLES)
class TestEveryMessage:
    def test_travels_as_its_golden_file_says(self, name: str):
        assert golden_text(ALL_EXAMPLES[name]) == (GOLDEN / f"{name}.json").read_text(), (
            "the wire changed: grow PROTOCOL_VERSION if an older peer would misread it, then write the golden file anew"
        )

    def test_comes_back_as_it_went(self, name: str):
        message = ALL_EXAMPLES[name]
        assert type(message).model_validate_json((GOLDEN / f"{name}.json").read_text()) == message
        assert type(message).model_validate_json(message.model_dump_json()) == message

    def test_requests_refuse_and_responses_tolerate_unknown_fields(self, name: str):
        message = ALL_EXAMPLES[name]
        more = json.dumps({**message.model_dump(mode="json"), "from_the_future": 1})
        if isinstance(message, Request):
            with pytest.raises(ValidationError, match="from_the_future"):
                type(message).model_validate_json(more)
        else:
            assert type(message).model_validate_json(more) == message

    def test_cannot_be_changed(self, name: str):
        message = ALL_EXAMPLES[name]
        field = next(iter(type(message).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(message, field, None)

    def test_is_described(self, name: str):
        assert type(ALL_EXAMPLES[name]).model_json_schema()["properties"]


def test_unknown_fields_deep_inside_a_response_are_tolerated():
    message = EXAMPLES["ScoreResponse"].model_dump(mode="json")
    message["results"][0]["rewards"]["countdown"]["confidence"] = 0.5
    assert ScoreResponse.model_validate(message) == EXAMPLES["ScoreResponse"]


def test_unknown_fields_deep_inside_a_request_are_refused():
    message = EXAMPLES["ScoreRequest"].model_dump(mode="json")
    message["samples"][0]["colums"] = {}
    with pytest.raises(ValidationError, match=r"samples\.0\.colums"):
        ScoreRequest.model_validate(message)


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("ScoreRequest", {"rewards": []}, "rewards"),
        ("ScoreRequest", {"rewards": [{"name": "format"}, {"name": "format"}]}, "rewards"),
        ("ScoreRequest", {"rewards": [{"name": ""}]}, "rewards"),
        ("ScoreRequest", {"timeout_s": 0}, "timeout_s"),
        ("ScoreRequest", {"deadline_s": 3601}, "deadline_s"),
        ("ScoreRequest", {"step": -1}, "step"),
        ("RewardSpec", {"weight": "Infinity"}, "weight"),
        ("RewardScore", {"score": float("nan")}, "score"),
        ("RewardScore", {"status": "fine"}, "status"),
        ("Prompt", {"token_ids": [-1]}, "token_ids"),
        ("Prompt", {"token_ids": []}, "token_ids"),
        ("Prompt", {"seed": 2**63}, "seed"),
        ("Prompt", {"images": [""]}, "images"),
        ("Prompt", {"images": ["AA=="] * 17}, "images"),
        ("Sampling", {"temperature": -0.1}, "temperature"),
        ("Sampling", {"top_p": 0}, "top_p"),
        ("Sampling", {"max_tokens": 0}, "max_tokens"),
        ("Sampling", {"presence_penalty": 2.1}, "presence_penalty"),
        ("Sampling", {"frequency_penalty": float("nan")}, "frequency_penalty"),
        ("Sampling", {"logit_bias": {5: float("inf")}}, "logit_bias"),
        ("Sampling", {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ("Sampling", {"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ("Sampling", {"bad_words": [""]}, "bad_words"),
        ("Sampling", {"structured_outputs": {}}, "structured_outputs"),
        ("Sampling", {"structured_outputs": {"json": {"type": "object"}}}, "structured_outputs"),
        ("StructuredOutputs", {"regex": "a" * 4097}, "regex"),
        ("RolloutRequest", {"n": 0}, "n"),
        ("RolloutRequest", {"prompts": []}, "prompts"),
        ("RolloutRequest", {"request_id": ""}, "request_id"),
        ("Completion", {"finish_reason": "bored"}, "finish_reason"),
        ("SessionRequest", {"session": 0}, "session"),
        ("SessionRequest", {"rank_offset": 0}, "rank_offset"),
        ("SessionRequest", {"world_size": 1}, "world_size"),
        ("SessionRequest", {"backend": "mpi"}, "backend"),
        ("Rendezvous", {"port": 65536}, "port"),
        ("BeginRequest", {"version": 0}, "version"),
        ("BeginRequest", {"kind": "half"}, "kind"),
        ("WeightState", {"state": "fresh"}, "state"),
    ],
)
def test_values_out_of_bounds_are_refused(name, change, field):
    example = EXAMPLES[name]
    with pytest.raises(ValidationError) as caught:
        type(example).model_validate({**example.model_dump(mode="json"), **change})
    assert caught.value.errors()[0]["loc"][0] == field


def test_a_prompt_is_tokens_or_messages():
    for wrong in ({}, {"token_ids": [1], "messages": [{"role": "user", "content": ""}]}):
        with pytest.raises(ValidationError, match="either token_ids or messages"):
            Prompt.model_validate(wrong)


def test_images_go_with_tokens_and_a_prompt_without_them_travels_as_before():
    with pytest.raises(ValidationError, match="images go with token_ids: render the messages"):
        Prompt(messages=[Message(role="user", content="")], images=["AA=="])
    assert "images" not in Prompt(token_ids=[1], images=[]).model_dump()


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 is more than max_tokens 8"),
        ({"min_tokens": 1, "stop_token_ids": list(range(101))}, "min_tokens goes with 100 stop"),
        ({"bad_words": ["a"], "structured_outputs": {"regex": "a"}}, "bad_words may leave no token"),
    ],
)
def test_settings_of_sampling_that_exclude_each_other_are_refused(sampling: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        Sampling.model_validate(sampling)


def test_turns_of_a_session_are_free_text():
    with pytest.raises(ValidationError, match="turns are free text: leave"):
        OpenSession(sampling=Sampling(structured_outputs=StructuredOutputs(regex="a")))


def test_a_message_of_a_role_and_a_text_travels_without_the_other_fields():
    plain = '{"role":"user","content":"2 + 2?"}'
    assert Message.model_validate_json(plain).model_dump_json() == plain
    null = '{"role":"user","content":"2 + 2?","tool_calls":null,"tool_call_id":null,"name":null}'
    assert Message.model_validate_json(null).model_dump_json() == plain
    prompt = f'{{"token_ids":null,"messages":[{plain}],"seed":null}}'
    assert Prompt.model_validate_json(prompt).model_dump_json() == prompt


def test_a_message_with_tool_calls_may_leave_its_content_out():
    call = '{"id":"call-1","type":"function","function":{"name":"add","arguments":"{"}}'
    message = Message.model_validate_json(f'{{"role":"assistant","tool_calls":[{call}]}}')
    assert message.model_dump_json() == f'{{"role":"assistant","content":null,"tool_calls":[{call}]}}'
    assert Message.model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    ("more", "place", "problem"),
    [
        ({}, ("content",), "Field required"),
        ({"tool_calls": []}, ("content",), "Field required"),
        ({"content": "", "tool_call": []}, ("tool_call",), "Extra inputs"),
        (
            {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
            ("tool_calls", 0, "id"),
            "requi",
        ),
        ({"content": [{"type": "text"}]}, ("content", 0), "has the fields type and text \\["),
        ({"content": [{"type": "text", "text": "", "txet": ""}]}, ("content", 0), "type and text, not txet"),
        ({"content": [{"image_url": {}}]}, ("content", 0, "type"), "Field required"),
    ],
)
def test_a_faulty_message_is_refused_at_its_fault(more, place, problem):
    with pytest.raises(ValidationError, match=problem) as caught:
        Message.model_validate({"role": "user", **more})
    # Of a union, the fault of the last member; the name of the member is part of the place.
    assert tuple(at for at in caught.value.errors()[-1]["loc"] if "[" not in str(at)) == place


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Message-tool-calls", "I add the first two."),
        ("Message-null-content", ""),
        ("Message-parts", "What is in the picture?"),
    ],
)
def test_the_text_of_a_message(name: str, text: str):
    message = VARIANTS[name]
    assert isinstance(message, Message)
    assert message.text == text


def test_a_version_counts_within_a_session():
    with pytest.raises(ValidationError, match="min_version counts within a session"):
        RolloutRequest(request_id="r", prompts=[Prompt(token_ids=[1])], min_version=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int3"}, "dtype int3"),
        ({"bucket": 1}, "bucket 1 of 1"),
        ({"offset": 17}, "beyond the end of bucket 0"),
        ({"shape": [4, 9]}, "beyond the end of bucket 0"),
    ],
)
def test_a_manifest_lies_inside_its_buckets(change, message):
    tensor = EXAMPLES["TensorSpec"].model_copy(update=change)
    with pytest.raises(ValidationError, match=message):
        Manifest(tensors=[tensor], bucket_bytes=[80])


def test_a_manifest_names_a_tensor_once():
    tensor = EXAMPLES["TensorSpec"]
    assert isinstance(tensor, TensorSpec)
    with pytest.raises(ValidationError, match="named twice"):
        Manifest(tensors=[tensor, tensor], bucket_bytes=[80])


def test_the_bytes_of_a_tensor():
    assert EXAMPLES["TensorSpec"].num_bytes == 4 * 8 * 2
    assert TensorSpec(name="scale", dtype="float32", shape=[], bucket=0, offset=0).num_bytes == 4


def test_defaults_are_part_of_the_wire():
    """What a client may leave out, and what it then means."""
    begin = BeginRequest(session=1, version=1, manifest=EXAMPLES["Manifest"])
    assert (begin.kind, begin.bucket_timeout_s, begin.deadline_s) == ("full", 30.0, 300.0)
    score = ScoreRequest.model_validate({"rewards": [{"name": "format"}], "samples": [{"completion": ""}]})
    assert (score.timeout_s, score.deadline_s, score.rewards[0].weight) == (10.0, 60.0, 1.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, DataError), (401, FatalError), (403, FatalError), (404, FatalError), (405, FatalError),
        (408, InfrastructureError), (409, ConflictError), (413, DataError), (415, DataError), (422, DataError),
        (429, InfrastructureError), (500, InfrastructureError), (503, InfrastructureError), (504, InfrastructureError),
    ],
)  # fmt: skip
def test_the_class_of_an_error(status, kind):
    assert error_class(status) is kind


def test_fingerprints_tell_vocabularies_and_templates_apart():
    one = tokenizer_fingerprint({"a": 0, "b": 1}, eos_token_id=1)
    assert one == tokenizer_fingerprint({"b": 1, "a": 0}, eos_token_id=1)
    assert len({one, tokenizer_fingerprint({"a": 1, "b": 0}, eos_token_id=1),
                tokenizer_fingerprint({"a": 0, "b": 1}, eos_token_id=None)}) == 3  # fmt: skip
    assert chat_template_fingerprint(None) is None
    assert chat_template_fingerprint("a") != chat_template_fingerprint("b")


@pytest.mark.parametrize("kind", [ServiceError, InfrastructureError, DataError, ConflictError, FatalError])
def test_an_error_comes_out_of_another_process_as_it_is(kind: type[ServiceError]):
    error = kind(
        ErrorDetail(type="busy", message="full", hint="wait"), url="http://a/v1", status=429, retry_after_s=2.0
    )
    error.add_note("of sample 3")
    found = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(found), str(found), vars(found)) == (kind, str(error), vars(error))
