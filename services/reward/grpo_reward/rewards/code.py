"""A program that passes its tests."""

import ast
import json
import re
import reprlib
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from ..answers.place import answer_block, answered
from ..author import Score, reward
from ..fenced import last_fenced
from ..python_tests import called
from ..sandbox.run import Run, run_tests

MAX_VALUE_CHARS = 10_000
_PYTHON = re.compile("python|py")


_OF_STANDARD_INPUT = (None, "stdin", "stdin_stdout", "standard_input")
"""What data sets write under `testtype` or `type` of a test that is one of standard input."""


class Example(BaseModel):
    """What a program reads from standard input, and what it has to write."""

    input: str
    output: str


def _listed(tests: Any) -> Any:
    """Names the test that is none: pydantic would name this file's types."""
    if isinstance(tests, str):
        return tests
    if not isinstance(tests, list):
        told = "it must be a list of tests or JSON text of one, not {tests}"
        raise PydanticCustomError("tests", told, {"tests": reprlib.repr(tests)})
    return [_test(place, test) for place, test in enumerate(tests)]


def _test(place: int, test: Any) -> Example | str:
    if isinstance(test, str):
        return test
    if isinstance(test, dict):
        _refuse_calls(place, test)
    try:
        return Example.model_validate(test)
    except ValidationError:
        told = "tests[{place}] is {test}: a test is a text with asserts, or an object with the texts input and output"
        raise PydanticCustomError("test", told, {"place": place, "test": reprlib.repr(test)}) from None


def _refuse_calls(place: int, test: dict[Any, Any]) -> None:
    """Refuse a test that calls a function, as LiveCodeBench and open-r1 have: on standard input it would pay 0."""
    key = next((key for key in ("testtype", "type") if test.get(key) not in _OF_STANDARD_INPUT), None)
    key = "fn_name" if test.get("fn_name") is not None else key
    if key is not None:
        told = (
            "tests[{place}] has {key} {value}: input and output are those of a program, on standard input and output; "
            "write a call of a function as a text such as assert add(1, 2) == 3"
        )
        raise PydanticCustomError("test", told, {"place": place, "key": key, "value": reprlib.repr(test[key])})


@reward(columns=["tests", "entry_point"])
def code(
    completion: str,
    *,
    tests: Annotated[list[Example | str] | str, BeforeValidator(_listed)],
    entry_point: str | None = None,
    truncated: bool | None = None,
    partial: bool = True,
    test_timeout_s: Annotated[float, Field(gt=0, le=600)] = 2.0,
    total_timeout_s: Annotated[float, Field(gt=0, le=3000)] = 8.0,
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 512,
    prefix: str = "",
) -> Score:
    """The share of `tests` that the Python program in the completion passes; with `partial` false all of them or 0.

    The program is the last fenced block of Python (```` ```python ````, by the rules of CommonMark, but a fence at the
    end of the last line of code closes the block, too; one without a language where none names Python) in
    `<answer>…</answer>`, or without that block in the text after `</think>`: a thought that never ends has no program
    (nor does `format` pay it). A test is an object with `input` and `output` (compared line by line, white space at the
    end of lines and of the text ignored; only `\\n` ends a line; a program that raises or exits with an error has
    failed, and so has one whose output is no UTF-8), or text of Python such as `assert add(1, 2) == 3`, run after the
    program, which it may import as `solution` and whose own `if __name__ == "__main__":` does not run then. `tests` may
    be JSON text of the list. An object that is a call of a function (`fn_name`, or a `testtype` or `type` other than
    `stdin` and `stdin_stdout`) is an error of the sample: write it as such a text.

    `def test_…()`, a class of such methods and a `unittest.TestCase` are called, and so is HumanEval's
    `check(candidate)`, with the function that the column `entry_point` names. A text in which nothing can fail is an
    error of the sample: a comment, a bare `f(1) == 2`, `assert (f(1) == 2, "text")`, a function that nothing calls.

    The program runs in a sandbox: no network, `test_timeout_s` for one test and `total_timeout_s` for all (keep it
    below the `timeout_s` of the request, or a program that hangs has no score instead of 0), `memory_mib` of address
    space. Of files it can read Python's own and the system's libraries and write none; of any other `os.stat` tells it,
    by name, whether there is one and its size. It is one process: starting another raises an error in it. It may have
    64 threads, more are its death; each takes 8 MiB of the address space or more, so that 512 MiB are too few for 40.
    It has the standard library and nothing else. The server says at its start when its machine lacks a part of the
    sandbox; without any isolation from the network there is no score.

    A test is passed only by a program that comes to its end. `os._exit(0)`, after the right output too, is a death and
    fails the test (`failure` in `log` is "death: exit status 0"); `sys.exit(0)` after the output is an end like any.
    A test that is a text may end with `unittest.main()`, which passes when its test cases do (not with `exit=False`,
    which tells nobody). Any other exit in it is a failure, whoever asks for it.

    A program does not see the outputs that are expected of it, nor the literal of `assert f(x) == literal` (or
    `literal == f(x)`, or several with `and`), nor those of several such lines at the end of a test. These are compared
    outside, as literals of Python are equal: None, `...`, bool, int, float, complex, str, bytes, lists, tuples, sets
    and dicts, and what derives from one of these types (a Counter, a member of an IntEnum or of a `(str, Enum)`), as
    the plain value that it holds. A value of another type equals no literal, whatever its `__eq__` or `__repr__` says:
    no Decimal or Fraction an int, no deque a list. Any other text of Python runs beside the program: one that was
    written to cheat can make it pass.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: open-r1's `code_reward` and ms-swift's example `external_code_reward` (share of passed tests, output
    compared line by line), which need a sandbox service.
    """
    cases = _cases(tests, entry_point)
    program = _program(prefix + completion, truncated)
    if program is None:
        return Score(0.0, log={"passed": 0, "tests": len(cases), "failure": "no program"})
    runs = run_tests(
        program,
        [request for request, _ in cases],
        test_timeout_s=test_timeout_s,
        total_timeout_s=total_timeout_s,
        memory_bytes=memory_mib << 20,
    )
    verdicts = [_failure(run, *case) for run, case in zip(runs, cases, strict=True)]
    passed = verdicts.count(None)
    share = passed / len(cases)
    first = next((failure for failure in verdicts if failure is not None), None)
    log = {"passed": passed, "tests": len(cases), "failure": first}
    return Score(share if partial else float(share == 1.0), log=log)


def _cases(tests: list[Example | str] | str, entry_point: str | None) -> list[tuple[dict[str, Any], Any]]:
    """What the sandbox is asked for each test, and what has to come out: text, a list of values, or nothing (None)."""
    if isinstance(tests, str):
        try:
            listed = json.loads(tests)
        except ValueError:
            listed = None
        if not isinstance(listed, list):
            raise ValueError("the column tests is no JSON list of objects with input and output, or of texts")
        try:
            tests = _listed(listed)
        except PydanticCustomError as error:
            raise ValueError(f"the column tests: {error}") from None
    if not tests:
        raise ValueError("the column tests is empty")
    return [
        _assertion(test, entry_point) if isinstance(test, str) else ({"stdin": test.input}, test.output)
        for test in tests
    ]


def _assertion(test: str, entry_point: str | None) -> tuple[dict[str, Any], Any]:
    """Comparisons with a literal, asserted at the end, keep their literals here; other code is run as it is.

    Raises ValueError for what is no Python: no program could pass it.
    """
    try:
        body = called(test, entry_point)
    except (SyntaxError, ValueError) as error:
        reason = f"is no Python: {error}" if isinstance(error, SyntaxError) else f"cannot be used: {error}"
        raise ValueError(f"a test in the column tests {reason}: {test[:100]!r}") from None
    except (MemoryError, RecursionError):
        return {"code": test}, None
    try:
        comparisons: list[tuple[str, Any]] = []
        while body and isinstance(body[-1], ast.Assert) and (found := _comparisons(body[-1].test)):
            comparisons[:0] = found
            body.pop()
        if not comparisons:
            return {"code": "\n".join(map(ast.unparse, body))}, None
        before = {"code": "\n".join(ast.unparse(statement) for statement in body)} if body else {}
        expressions, literals = zip(*comparisons, strict=True)
        return {**before, "expressions": list(expressions)}, literals
    except (ValueError, MemoryError, RecursionError):
        return {"code": test}, None


def _comparisons(asserted: ast.expr) -> list[tuple[str, Any]]:
    """Expressions and their literals, several for `a == 1 and b == 2`; empty when it is anything else."""
    if isinstance(asserted, ast.BoolOp) and isinstance(asserted.op, ast.And):
        parts = [_comparisons(part) for part in asserted.values]
        return [found for part in parts for found in part] if all(parts) else []
    if not isinstance(asserted, ast.Compare) or len(asserted.ops) != 1 or not isinstance(asserted.ops[0], ast.Eq):
        return []
    left, right = asserted.left, asserted.comparators[0]
    for expression, other in ((left, right), (right, left)):
        try:
            literal = ast.literal_eval(other)
        except (ValueError, TypeError):
            continue
        return [(ast.unparse(expression), literal)]
    return []


def _program(completion: str, truncated: bool | None) -> str | None:
    answer = answer_block(completion, truncated=truncated)
    text = answered(completion) if answer is None else answer
    return last_fenced(text, _PYTHON)


def _failure(run: Run, request: dict[str, Any], expected: Any) -> str | None:
    """Why the test failed; None when it did not."""
    values = run.values or []
    # Also before an error: the assertion of a wrong value would have ended the test there.
    if "expressions" in request and not all(map(_is_equal, values, expected)):
        return "wrong value"
    if run.ended != "done":
        return run.ended if run.detail is None else f"{run.ended}: {run.detail}"[:200]
    if "stdin" in request:
        return None if _lines(run.stdout) == _lines(expected) else "wrong output"
    return "wrong value" if "expressions" in request and len(values) != len(expected) else None


def _is_equal(value: str, literal: Any) -> bool:
    if len(value) > MAX_VALUE_CHARS + 10 * len(repr(literal)):
        return False  # it was made to be expensive to read
    try:
        return bool(ast.literal_eval(value) == literal)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _lines(text: str) -> list[str]:
    """Lines without white space at their ends, `\\r` before `\\n` too. Unlike for `splitlines` only `\\n` ends one."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
