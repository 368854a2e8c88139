"""Bodies made to be expensive: what is done with them is counted, as no test asserts a time."""

import contextlib
import gc
import json

import pytest
from pydantic_core import core_schema

from grpo_proto import Request, ScoreRequest
from grpo_reward.reading import MAX_NAMED_FAULTS, Reader
from grpo_reward.refusal import Refusal

FIELDS = set(ScoreRequest.model_fields)


@pytest.fixture
def reader() -> Reader[ScoreRequest]:
    return Reader(ScoreRequest, FIELDS, samples="samples", max_samples=3)


def body(samples: str = "", rewards: str = '{"name":"format"}', more: str = "") -> bytes:
    return f'{{"rewards":[{rewards}],"samples":[{samples}]{more}}}'.encode()


def refusal(reader: Reader, content: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        reader.read(content)
    assert len(str(caught.value)) < 1000
    return caught.value


def test_the_most_samples(reader):
    sample = '{"completion":"a"}'
    assert len(reader.read(body(",".join([sample] * 3))).samples) == 3
    found = refusal(reader, body(",".join([sample] * 4)))
    assert (found.status, found.body.error.type) == (413, "too_many_samples")
    assert str(found) == "the request has 4 samples; the limit is 3"


def test_a_list_of_something_else_that_is_too_long_is_no_matter_of_samples(reader):
    rewards = ",".join(f'{{"name":"r{number}"}}' for number in range(300))
    found = refusal(reader, body(rewards=rewards))
    assert found.status == 422
    assert str(found) == "rewards: has 300 entries; the limit is 256"


def test_the_entries_of_too_many_samples_are_not_looked_at():
    looked_at = 0

    class Entry:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: object) -> core_schema.CoreSchema:
            def count(value: object) -> object:
                nonlocal looked_at
                looked_at += 1
                return value

            return core_schema.no_info_plain_validator_function(count)

    class Many(Request):
        entries: list[Entry]

    reader = Reader(Many, [], samples="entries", max_samples=10)
    found = refusal(reader, b'{"entries":[' + b",".join([b"1"] * 100_000) + b"]}")
    assert str(found) == "the request has 100000 samples; the limit is 10"
    assert looked_at <= 11


@pytest.mark.parametrize(
    "value",
    [
        ",".join(["[]"] * 800_000),
        ",".join(["{}"] * 800_000),
        ",".join(['""'] * 450_000),
        '"\\\\",' + ",".join(["[]"] * 800_000),
        '"\\"[",' + ",".join(["[]"] * 800_000),
        ",".join(["1"] * 4_000_000),
        ",".join(['{"role":"user"}'] * 200_000),
    ],
    ids=["lists", "objects", "texts", "lists after a backslash", "lists after a bracket", "numbers", "messages"],
)
def test_more_values_than_parsing_should_take_time_for_are_not_parsed(reader, value):
    found = refusal(reader, body(f'{{"completion":"","columns":{{"a":[{value}]}}}}'))
    assert (found.status, found.body.error.type) == (413, "too_many_values")


def test_a_body_of_names_is_not_parsed(reader):
    """It would be close to a second in which nobody else gets an answer."""
    names = ",".join(f'"k{number}":0' for number in range(900_000))
    found = refusal(reader, body(f'{{"completion":"","columns":{{{names}}}}}'))
    assert (found.status, found.body.error.type) == (413, "too_many_values")
    assert str(found) == (
        "the body has more than 4000000 values, of which a text or a name counts as 8 and an object or a list as 4"
    )


@pytest.mark.parametrize(("columns", "messages", "token_ids"), [(6, 10, 300), (10, 8, 0), (20, 1, 0), (3, 1, 700)])
def test_as_many_samples_as_a_server_takes_may_have_columns_dialogues_and_token_ids(columns, messages, token_ids):
    sample = {
        "id": "1",
        "completion": "x",
        "prompt": [{"role": "user", "content": "x"}] * messages,
        "columns": {f"c{number}": "x" for number in range(columns)},
        "completion_token_ids": [151_643] * token_ids,
        "truncated": False,
    }
    reader = Reader(ScoreRequest, FIELDS, samples="samples", max_samples=4096)
    assert len(reader.read(body(",".join([json.dumps(sample)] * 4096))).samples) == 4096


@pytest.mark.parametrize(
    "text",
    ["{" * 900_000, '\\"' * 1_100_000 + "[" * 900_000, "\\\\{" * 900_000],
    ids=["brackets", "escaped quotation marks", "escaped backslashes"],
)
def test_what_stands_in_a_text_is_no_value(reader, text):
    found = reader.read(body(f'{{"completion":"{text}"}}'))
    assert found.samples[0].completion == json.loads(f'"{text}"')
    numbers = ",".join(["1"] * 1_000_000)
    assert len(reader.read(body(f'{{"completion":"","completion_token_ids":[{numbers}]}}')).samples) == 1


@pytest.mark.parametrize("field", ["completion_token_ids", "prompt"])
def test_a_list_stops_at_its_first_fault(reader, field):
    wrong = ",".join(["{}"] * 100_000)
    found = refusal(reader, body(f'{{"completion":"","{field}":[{wrong}]}}'))
    assert found.status == 422
    assert f"samples[0].{field}" in str(found)
    assert "more" not in str(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (body(rewards=""), "rewards: has 0 entries; the least is 1"),
        (body(rewards='{"name":""}'), "rewards[0].name: has 0 characters; the least is 1"),
        (body(rewards='{"name":"a"},{"name":"a"}'), "rewards: each reward once, but a came several times"),
        (body(rewards='"format"'), "rewards[0]: must be an object, not 'format'"),
        (body(more=',"timeout_s":5000'), "timeout_s: must be at most 3600, not 5000"),
        (body(more=',"timeout_s":0'), "timeout_s: must be more than 0, not 0"),
        (body(more=',"timeout_s":null'), "timeout_s: must be a number, not null"),
        (body(more=',"step":1.5'), "step: must be a whole number, not 1.5"),
        (body('{"completion":"","prompt":5}'), "samples[0].prompt: must be a string or a list, not 5"),
        (body('{"completion":"","prompt":[{"role":"user"}]}'), "samples[0].prompt[0].content: Field required"),
        (body('{"completion":"","str":1}'), "samples[0].str is unknown"),
        (b"[]", "the body: must be an object, not a list"),
    ],
)
def test_a_fault_is_told_with_its_field_the_limit_and_what_was_found(reader, content, message):
    assert str(refusal(reader, content)) == message


def test_faults_that_are_not_described_are_counted(reader):
    unknown = "".join(f',"f{number}":1' for number in range(1000))
    assert str(refusal(reader, body(more=unknown))).endswith("f2 is unknown (and 997 more)")


def test_thousands_of_faults_are_counted_not_told(reader):
    unknown = "".join(f',"f{number}":1' for number in range(MAX_NAMED_FAULTS + 1))
    assert str(refusal(reader, body(more=unknown))) == f"the body has {MAX_NAMED_FAULTS + 1} faults, too many to tell"
    few = "".join(f',"f{number}":1' for number in range(5))
    assert str(refusal(reader, body(more=few))) == "f0 is unknown; f1 is unknown; f2 is unknown (and 2 more)"


def test_faults_that_are_not_told_come_with_the_fields_there_are(reader):
    unknown = "".join(f',"f{number}":1' for number in range(MAX_NAMED_FAULTS + 1))
    assert refusal(reader, body(more=unknown)).body.error.hint == (
        "it must be an object with the fields rewards, samples, step, timeout_s, deadline_s; "
        "GET /openapi.json tells what they hold"
    )


@pytest.mark.parametrize(
    ("content", "example"),
    [(body(rewards='"format"'), '{"name": "accuracy"}'), (body('"4"'), '{"completion": "…", "columns": {"solution"')],
)
def test_a_text_in_place_of_an_object_is_answered_with_an_object(reader, content, example):
    assert example in (refusal(reader, content).body.error.hint or "")


def test_what_a_client_sent_is_shown_in_part(reader):
    long = "x" * 1_000_000
    assert "x…" in str(refusal(reader, body(more=f',"{long}":1')))
    assert "x…" in str(refusal(reader, body(more=f',"step":"{long}"')))


def test_a_refused_body_is_gone_at_once(reader):
    """Not when the collector looks for circles the next time: by then there may be a gigabyte of them."""

    def refused() -> None:
        with contextlib.suppress(Refusal):
            reader.read(body('{"completion":[' + ",".join(["1.5"] * 10_000) + "]}"))

    refused()
    gc.collect()
    gc.disable()
    try:
        refused()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("content", [body('{"completion":"a"}'), b"{", body("1")])
def test_the_collector_goes_on_afterwards(reader, content):
    assert gc.isenabled()
    with contextlib.suppress(Refusal):
        reader.read(content)
    assert gc.isenabled()
