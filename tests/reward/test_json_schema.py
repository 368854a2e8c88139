"""Structured output, and what is no JSON however much it looks like it."""

import json
import socket

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.rewards.json_schema import json_schema
from grpo_reward.scorer import InvalidParamsError, checked_params, score_sample
from grpo_reward.strict_json import MAX_DEPTH

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}
ADA = '{"name": "Ada", "age": 36}'
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "integer"},
                {"allOf": [{"type": "array", "items": {"oneOf": [{"$ref": "#/$defs/node"}, {"type": "string"}]}}]},
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("text", "step", "score"),
    [
        ("0.3", 0.1, 1.0), ("19.99", 0.01, 1.0), ("0.35", 0.1, 0.0), ("7", 0.5, 1.0), ("7.5", 2, 0.0), ("-6", 3, 1.0),
        ("1e300", 0.1, 1.0), ("1e-300", 0.1, 0.0), ('"a"', 0.1, 1.0), ("0", 5, 1.0), ("true", 2, 1.0),
    ],
)  # fmt: skip
def test_a_multiple_is_one_of_the_numbers_as_they_are_written(text, step, score):
    assert json_schema(text, schema={"multipleOf": step}).score == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (ADA, 1.0),
        (f"\n {ADA}\n", 1.0),
        (f"<think>hm {{}}</think>\n{ADA}", 1.0),
        (f"<think>hm</think>So: <answer>{ADA}</answer> Done.", 1.0),
        (f"<answer>\n```json\n{ADA}\n```\n</answer>", 1.0),
        (f"Here it is:\n```json\n{ADA}\n```\nDone.", 1.0),
        (f"```\n{ADA}\n```", 1.0),
        (f"```json\n{{}}\n```\nNo:\n  ```JSON\n{ADA}\n  ```", 1.0),
        (f"```json\n{ADA}\n```\nNo:\n```json\n{{}}\n```", 0.0),
        (f"```json\n{ADA}\n```\n```python\nprint(1)\n```", 1.0),
        (f"```python\n{ADA}\n```", 0.0),
        (f"```json\n{ADA}", 0.0),
        (f"<answer>{{}}</answer>\n```json\n{ADA}\n```", 0.0),
        (f"<answer>{{}}</answer><answer>{ADA}</answer>", 0.0),
        (f"The answer is {ADA}", 0.0),
        (f"{ADA} {ADA}", 0.0),
        (ADA.replace("36", "36.0"), 1.0),  # an integer, says JSON Schema
        (ADA.replace("36", "36.5"), 0.0),
        (ADA.replace("36", "-1"), 0.0),
        (ADA.replace("36", "true"), 0.0),
        (ADA.replace("36", '"36"'), 0.0),
        (ADA.replace('"', "'"), 0.0),
        (ADA.replace("36}", "36,}"), 0.0),
        (ADA.replace("}", ', "sex": "f"}'), 0.0),
        (ADA.replace('"age"', '"name"'), 0.0),
        (ADA.replace("}", ', "age": 36}'), 0.0),  # the same key twice
        (f"[{ADA}]", 0.0),
        ("null", 0.0),
        ("", 0.0),
    ],
)
def test_scores(text, score):
    found = json_schema(text, schema=PERSON)
    assert found.score == score
    assert (found.log is None) == (score == 1.0)


def test_the_log_says_what_is_wrong():
    assert json_schema('{"name": 7}', schema=PERSON).log == {"problem": "$: 'age' is a required property"}
    assert "no JSON: Expecting value" in json_schema("Ada", schema=PERSON).log["problem"]


def test_the_column_comes_first_and_may_be_text():
    strings = {"type": "string"}
    assert json_schema('"a"', schema=PERSON, json_schema=strings).score == 1.0
    assert json_schema('"a"', schema=PERSON, json_schema=json.dumps(strings)).score == 1.0
    assert json_schema('"a"', json_schema=strings).score == 1.0
    assert json_schema(ADA, schema=PERSON, json_schema=None).score == 1.0
    assert json_schema("7", schema=PERSON, json_schema={}).score == 1.0  # empty, and so allows everything


@pytest.mark.parametrize("column", [None, "null", "{", "[]", "7", {"type": "nope"}, '{"$ref": "http://x.invalid/s"}'])
def test_without_a_schema_there_is_no_score(column):
    found = json_schema(ADA, json_schema=column)
    assert found.score is None
    assert "json_schema" in found.detail


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nope"}, "'nope' is not valid"),
        ({"properties": {"a": {"minimum": "1"}}}, "$.properties.a.minimum"),
        ({"pattern": "("}, "regex"),
        ({"$schema": "http://x.invalid/draft"}, "no draft that is known"),
        ({"$schema": 7}, "no draft that is known"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "nothing is fetched"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "nothing is fetched"),
        ({"$defs": {"a": {"$dynamicRef": "https://x.invalid/s#b"}}}, "nothing is fetched"),
        ({"$id": "http://x.invalid/a", "not": {"$ref": "b"}}, "nothing is fetched"),
        ({"hidden": {"$ref": "http://127.0.0.1:1/s.json"}, "$ref": "#/hidden"}, "nothing is fetched"),
        ({"$ref": "#/$defs/missing"}, "/$defs/missing"),
        ({"$ref": "#"}, "leads to itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "leads to itself"),
        ("{}", "schema: Input should be a valid dictionary"),
    ],
)
def test_a_param_that_is_no_schema_refuses_the_request(schema, message, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it called somebody"))
    with pytest.raises(InvalidParamsError) as refused:
        checked_params(json_schema.__reward__, {"schema": schema})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"p": PERSON}, "$ref": "#/definitions/p"},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$defs": {"p": PERSON}, "$ref": "#/$defs/p"},
        {"$id": "http://x.invalid/a", "$defs": {"p": {"$id": "p", **PERSON}}, "$ref": "p"},
        {"$defs": {"p": {"$anchor": "here", **PERSON}}, "$ref": "#here"},
    ],
)
def test_references_inside_of_a_schema(schema):
    params = checked_params(json_schema.__reward__, {"schema": schema})
    for text, score in ((ADA, 1.0), ("{}", 0.0)):
        found = score_sample(json_schema.__reward__, params, {"completion": text, "columns": {}}, None)
        assert (found["score"], found["status"]) == (score, "ok")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN is no JSON value"),
        ("[1, -Infinity]", "-Infinity is no JSON value"),
        ("1e400", "range of a double"),
        ("1" * 309 + "0", "range of a double"),
        ("1" * 5000, "range of a double"),
        ("1" * 1_000_000, "range of a double"),
        ("[" * 1_000_000, "nested too deeply"),
        ("[" * 500_000 + "]" * 500_000, "nested too deeply"),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "nested too deeply"),
        ("[" * 33 + "]" * 33, "nested levels"),
        ('"' * 1_000_000, "no JSON"),
        ("```\n" * 250_000, "no JSON"),
        ("```json\n" * 125_000, "no JSON"),
        ("<answer>" * 125_000, "no JSON"),
        ("\x00", "no JSON"),
        ("\ufeff1", "no JSON"),
        ("0x10", "no JSON"),
        ("01", "no JSON"),
        ("[1,]", "no JSON"),
    ],
)
@processor_time
def test_hostile_texts_score_0_in_no_time(text, problem):
    with at_most_cpu_s(2.0):
        found = json_schema(text, schema={})
    assert found.score == 0.0
    assert problem in found.log["problem"]


@pytest.mark.parametrize("value", [10**308, -(10**308), 1e308, 1e-320, 0.1, 7])
def test_large_numbers_against_small_steps(value):
    for step in (0.01, 1e-300, 3):
        assert json_schema(json.dumps(value), schema={"multipleOf": step, "type": "number"}).score in (0.0, 1.0)


def test_strings_that_are_no_unicode_leave_a_log_that_is():
    found = json_schema('{"\\ud800": "\\udfff"}', schema=PERSON)
    assert found.score == 0.0
    json.dumps(found.log, ensure_ascii=False).encode()


def test_a_schema_that_contains_itself_is_checked_down_to_the_greatest_depth():
    nested = "[" * MAX_DEPTH + "7" + "]" * MAX_DEPTH
    assert json_schema(nested, schema=TREE).score == 1.0
    assert json_schema(nested.replace("7", "true"), schema=TREE).score == 0.0
    assert json_schema(f"[{nested}]", schema=TREE).score == 0.0


def test_a_loop_that_only_some_values_enter_is_an_error_and_no_verdict():
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    params = checked_params(json_schema.__reward__, {"schema": schema})
    sample = {"completion": '{"a": 1}', "columns": {}}
    assert score_sample(json_schema.__reward__, params, sample, None)["status"] == "error"


def test_a_reference_that_only_some_values_reach_is_not_fetched_either(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it called somebody"))
    schema = {"hidden": {"properties": {"a": {"$ref": "http://127.0.0.1:1/s.json"}}}, "$ref": "#/hidden"}
    params = checked_params(json_schema.__reward__, {"schema": schema})
    samples = [{"completion": text, "columns": {}} for text in ("{}", '{"a": 1}')]
    fine, reached = (score_sample(json_schema.__reward__, params, sample, None) for sample in samples)
    assert (fine["score"], reached["score"], reached["status"]) == (1.0, None, "error")


def test_formats_are_not_checked():
    assert json_schema('"tomorrow"', schema={"type": "string", "format": "date"}).score == 1.0


@pytest.mark.parametrize(
    ("items", "score"),
    [
        ([1, 2, 3], 1.0),
        ([1, True, "1", None, [1], {"a": 1}], 1.0),
        ([1, 1.0], 0.0),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], 0.0),
        ([[1, [True]], [1, [1]]], 1.0),
        ([False, False], 0.0),
        ([{"a": number} for number in range(20_000)], 1.0),
    ],
)
def test_entries_that_have_to_be_different(items, score):
    """The last would take the library minutes."""
    schema = {"type": "array", "uniqueItems": True}
    assert json_schema(json.dumps(items), json_schema=schema).score == score
