"""The reward `code`: which program, which tests, what it is worth."""

import json
import subprocess
import sys

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time
from tests.reward.programs import ADD, ZERO, fenced

from grpo_reward.rewards.code import Example, code
from grpo_reward.scorer import checked_params, score_sample

pytestmark = pytest.mark.processes

SUM = "print(sum(map(int, input().split())))\n"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (f"<think>no</think><answer>{fenced(ADD)}</answer>", 1.0),
        (f"<think>{fenced(ZERO)}</think>so:\n{fenced(ADD)}", 1.0),
        (fenced(ZERO) + fenced(ADD), 1.0),
        (fenced(ADD) + fenced(ZERO), 0.0),
        (fenced(ADD, ""), 1.0),
        (fenced(ADD, "Py"), 1.0),
        (fenced(ADD, "java"), 0.0),
        ("  ```python\n  add = lambda a, b: a + b\n  ```", 1.0),
        (f"<think>{fenced(ADD)}</think>", 0.0),
        (f"{fenced(ADD)}<answer>see above</answer>", 0.0),
        (ADD, 0.0),
        (f"```python\n{ADD}", 0.0),
        ("", 0.0),
    ],
)
def test_which_program_is_meant(completion: str, score: float):
    assert code(completion, tests=["assert add(1, 2) == 3"]).score == score


def test_the_share_of_passed_tests_or_all_of_them():
    tests = ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "assert add(1, 2) > 0", "assert add('a', 'b') == 'ab'"]
    result = code(fenced(ADD), tests=tests)
    assert (result.score, result.log) == (0.75, {"passed": 3, "tests": 4, "failure": "wrong value"})
    assert code(fenced(ADD), tests=tests, partial=False).score == 0.0
    assert code(fenced(ADD), tests=tests[2:], partial=False).score == 1.0


@pytest.mark.parametrize(
    ("output", "score"), [("3", 1.0), ("3\n", 1.0), ("3 \n\n", 1.0), ("3\n3", 0.0), (" 3", 0.0), ("", 0.0)]
)
def test_input_and_output(output: str, score: float):
    tests = [Example(input="1 2\n", output=output)]
    assert code(fenced(SUM), tests=tests).score == score
    assert code(fenced(SUM), tests=json.dumps([test.model_dump() for test in tests])).score == score


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"], ids=ascii)
def test_only_a_line_feed_ends_a_line(mark: str):
    other, same = f"a{mark}b", "a\nb"
    tests = [Example(input="", output=text) for text in (other, same)]
    assert [code(fenced(f"print({other!r})\n"), tests=[test]).score for test in tests] == [1.0, 0.0]
    assert [code(fenced(f"print({same!r})\n"), tests=[test]).score for test in tests] == [0.0, 1.0]


@pytest.mark.parametrize("output", ["a\r\nb\r\n", "a \nb\t\n\n", "a\x0b\nb"])
def test_white_space_at_the_end_of_a_line_does_not_count(output: str):
    for printed, expected in [(output, "a\nb"), ("a\nb", output)]:
        program = f"import sys\nsys.stdout.write({printed!r})\n"
        assert code(fenced(program), tests=[Example(input="", output=expected)]).score == 1.0


@pytest.mark.parametrize("printed", [b"\xff\xfe", b"\xed\xb3\xbf", b"\xf0\x9f\x98"])
def test_output_that_is_no_text_equals_none(printed: bytes):
    program = f"import sys\nsys.stdout.buffer.write({printed!r})\n"
    expected = [printed.decode(errors="replace"), printed.decode(errors="ignore")]
    assert code(fenced(program), tests=[Example(input="", output=text) for text in expected]).score == 0.0
    assert code(fenced(f"print({expected[0]!r})\n"), tests=[Example(input="", output=expected[0])]).score == 1.0


def test_a_program_that_fails_after_its_output_has_failed():
    result = code(fenced(SUM + "1 / 0\n"), tests=[Example(input="1 2", output="3")])
    assert result.score == 0.0
    assert result.log == {"passed": 0, "tests": 1, "failure": "error: ZeroDivisionError: division by zero"}


def test_a_program_that_hangs_is_wrong_and_not_unscorable():
    result = code(fenced("while True: pass\n"), tests=["assert add"] * 9, test_timeout_s=0.2, total_timeout_s=0.5)
    assert result.score == 0.0
    assert result.log is not None
    assert result.log["failure"] == "timeout"


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 3\nassert add(1, 2) > 2",
        "assert add(1, 2) > 2\nassert add(1, 2) == 3\nassert (lambda: 7)() == 7\nassert sum(x for x in [1]) == 1",
        "x = 1\nassert (x := add(x, 1)) == 2\nassert x == 2",
        "def check(f):\n    assert f(1, 2) == 3\ncheck(add)",
        "assert add('a', 'b') == f\"{'a'}b\"",
    ],
)
def test_tests_of_several_statements_mean_what_they_say(test: str):
    assert code(fenced(ADD), tests=[test]).score == 1.0
    assert code(fenced("def add(a, b): return 10\n"), tests=[test]).score == 0.0


@pytest.mark.parametrize(
    "tests", ["", "{}", '"assert True"', "[1]", "[]", [], '[{"input": "1"}]', ["assert add(1, 1) =="]]
)
def test_tests_that_are_none_are_a_fault_of_the_data(tests: object):
    with pytest.raises(ValueError, match="the column tests"):
        code(fenced(ADD), tests=tests)  # type: ignore[arg-type]


@pytest.mark.parametrize("test", [5, None, ["assert True"], {"input": "1"}, {"input": "1", "output": 2}], ids=str)
def test_which_test_is_none_is_told_and_what_one_may_be(test: object):
    told = f"tests[1] is {test!r}: a test is a text with asserts, or an object with the texts input and output"
    for tests in (["assert add", test], json.dumps(["assert add", test])):
        sample = {"completion": fenced(ADD), "columns": {"tests": tests}}
        result = score_sample(code.__reward__, checked_params(code.__reward__, {}), sample, None)
        assert result["status"] == "error"
        assert result["detail"].endswith(told)


@pytest.mark.parametrize("more", [{"fn_name": "add"}, {"testtype": "functional"}, {"type": "function_call"}])
def test_a_call_of_a_function_is_no_test_of_standard_input(more: dict):
    key, value = next(iter(more.items()))
    test = {"input": "1\n2", "output": "3", **more}
    for tests in ([test], json.dumps([test])):
        sample = {"completion": fenced(ADD), "columns": {"tests": tests}}
        result = score_sample(code.__reward__, checked_params(code.__reward__, {}), sample, None)
        assert result["status"] == "error"
        assert f"tests[0] has {key} '{value}'" in result["detail"]
        assert "assert add(1, 2) == 3" in result["detail"]


@pytest.mark.parametrize("more", [{"testtype": "stdin"}, {"type": "stdin_stdout", "fn_name": None}])
def test_what_says_that_it_is_of_standard_input_is(more: dict):
    tests = json.dumps([{"input": "7", "output": "7", **more}])
    assert code(fenced("print(input())"), tests=tests).score == 1.0


def test_a_column_that_is_no_list_is_told():
    sample = {"completion": fenced(ADD), "columns": {"tests": 5}}
    result = score_sample(code.__reward__, checked_params(code.__reward__, {}), sample, None)
    assert result["detail"] == "column tests: it must be a list of tests or JSON text of one, not 5"


def test_more_memory_than_the_worker_has_is_what_the_worker_has():
    script = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from grpo_reward.rewards.code import code\n"
        f"print(code({fenced(ADD)!r}, tests=['assert add(1, 2) == 3'], memory_mib=8192).score)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "1.0\n", ended.stderr


@processor_time
def test_blanks_behind_a_fence_take_no_time():
    with at_most_cpu_s(1.0):
        assert code("```" + " " * 200_000 + "x", tests=["assert add"]).score == 0.0


def test_only_a_program_that_comes_to_its_end_has_passed():
    tests = [Example(input="1 2", output="3")]
    ended = code(fenced(f"{SUM}import sys\nsys.exit(0)\n"), tests=tests)
    died = code(fenced(f"{SUM}import os, sys\nsys.stdout.flush()\nos._exit(0)\n"), tests=tests)
    assert (ended.score, ended.log) == (1.0, {"passed": 1, "tests": 1, "failure": None})
    assert (died.score, died.log) == (0.0, {"passed": 0, "tests": 1, "failure": "death: exit status 0"})


@pytest.mark.parametrize(("threads", "held_s", "failure"), [(60, 0.5, None), (70, 15.0, "death: more than 64 threads")])
def test_a_program_has_at_most_64_threads(threads: int, held_s: float, failure: str | None):
    program = (
        "import threading, time\nstop = threading.Event()\n"
        f"threads = [threading.Thread(target=stop.wait) for _ in range({threads})]\n"
        f"for thread in threads:\n    thread.start()\ntime.sleep({held_s})\nstop.set()\n"
        "for thread in threads:\n    thread.join()\nprint(3)\n"
    )
    result = code(fenced(program), tests=[Example(input="", output="3")], memory_mib=8192, test_timeout_s=20.0)
    assert result.log is not None
    assert (result.score, result.log["failure"]) == (float(failure is None), failure)


def test_a_program_is_one_process():
    program = "import os\ntry:\n    os.fork()\nexcept OSError as error:\n    print(type(error).__name__)\n"
    assert code(fenced(program), tests=[Example(input="", output="PermissionError")]).score == 1.0


UNITTEST = """import unittest
class TestAdd(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.parametrize(
    "call", ["unittest.main()", "unittest.main(verbosity=2)", "unittest.main(\n        verbosity=2)"]
)
def test_a_text_may_end_with_unittest(call: str):
    test = UNITTEST.replace("unittest.main()", call)
    assert code(fenced(ADD), tests=[test]).score == 1.0
    log = code(fenced(ZERO), tests=[test]).log
    assert log["failure"] in ("error: SystemExit: True", "error: SystemExit: 1")  # the latter since Python 3.12
    assert (log["passed"], log["tests"]) == (0, 1)


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)\n",
        f"{UNITTEST.replace('add(1, 2)', '3')}",
        "import sys\ndef add(a, b): sys.exit(0)\n",
        "import sys\nadd = sys.exit\n",
        "import functools, sys\nadd = functools.partial(sys.exit)\n",
        "import sys, unittest\ndef leave(): sys.exit(0)\nunittest.main = leave\n",
        "import functools, sys, unittest\nunittest.main = functools.partial(sys.exit, 0)\n",
        "def add(a, b):\n    import unittest\n    unittest.main()\n",
        "add = __import__('unittest').main\n",
    ],
)
@pytest.mark.parametrize("test", [UNITTEST, "assert add(1, 2) > 2", "add(0)\nassert add(1, 2) > 2"])
def test_a_program_passes_no_text_by_an_exit_of_its_own(program: str, test: str):
    assert code(fenced(program), tests=[test]).score == 0.0


MAIN = "\nif __name__ == '__main__':\n    print(add(int(input()), int(input())))\n"


@pytest.mark.parametrize("test", ["assert add(1, 2) == 3", "assert add(1, 2) > 2", UNITTEST, "import solution"])
def test_a_program_for_the_command_line_is_imported_by_a_text(test: str):
    test = test.replace("import solution", "import solution\nassert solution.add(1, 2) == 3")
    assert code(fenced(ADD + MAIN), tests=[test]).score == 1.0
    assert code(fenced(ZERO + MAIN), tests=[test]).score == 0.0
    own = "import pickle\nclass Own: pass\npickle.dumps(Own())\nname = __name__\n"
    assert code(fenced(ADD + own), tests=[test, "assert name == 'solution'"]).score == 1.0


def test_a_program_that_reads_its_input_is_run():
    tests = [Example(input="1\n2\n", output="3")]
    assert code(fenced(ADD + MAIN), tests=tests).score == 1.0
    assert code(fenced(ZERO + MAIN), tests=tests).score == 0.0


PYTEST = "def test_add():\n    assert add(1, 2) == 3\n"
METHOD = "class TestAdd:\n    def test_add(self):\n        assert add(1, 2) == 3\n"
HUMANEVAL = "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n"


@pytest.mark.parametrize(
    "test",
    [
        PYTEST,
        PYTEST + "test_add()\n",
        "async " + PYTEST,
        METHOD,
        UNITTEST.partition("if __name__")[0],
        UNITTEST.partition("if __name__")[0]
        .replace("import unittest", "from unittest import TestCase")
        .replace("unittest.TestCase", "TestCase"),
        HUMANEVAL,
        "import unittest\nclass Base(unittest.TestCase):\n    def setUp(self):\n        self.x = 1\n"
        "class TestAdd(Base):\n    def test_add(self):\n        self.assertEqual(add(self.x, 2), 3)",
        "import unittest\nclass TestAdd(unittest.IsolatedAsyncioTestCase):\n    async def test_add(self):\n"
        "        self.assertEqual(add(1, 2), 3)",
        "class TestAdd:\n    def setup_method(self, method):\n        self.x = 1\n    def test_add(self):\n"
        "        assert add(self.x, 2) == 3\n    @staticmethod\n    def test_more():\n        assert add(1, 2) > 2",
        "from solution import add as plus\nassert plus(1, 2) == 3",
        "import solution\nassert solution.add(1, 2) == 3",
        "if add(1, 2) != 3:\n    raise ValueError",
        "x = add(1, 2)\n[None][x - 3]",
    ],
)
def test_what_defines_a_test_is_called(test: str):
    assert code(fenced(ADD), tests=[test], entry_point="add").score == 1.0
    assert code(fenced(ZERO), tests=[test], entry_point="add").score == 0.0


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("", "nothing in it can fail"),
        ("# assert add(1, 2) == 3", "nothing in it can fail"),
        ("add(1, 2) == 3", "nothing in it can fail"),
        ("assert True", "nothing in it can fail"),
        ("right = add(1, 2) == 3", "nothing in it can fail"),
        ("all(add(i, 2) == i + 2 for i in range(3))", "nothing in it can fail"),
        ("print('ok' if add(1, 2) == 3 else 'bad')", "nothing in it can fail"),
        ("def test_add():\n    import numpy\n    assert add(1, 2) == 3", "it imports numpy"),
        ("try:\n    assert add(1, 2) == 3\nexcept AssertionError:\n    pass", "nothing in it can fail"),
        ("print(add(1, 2) == 3)", "nothing in it can fail"),
        ("assert (add(1, 2) == 3, 'wrong')", "nothing in it can fail"),
        ("def verify():\n    assert add(1, 2) == 3", "nothing in it can fail"),
        ("def test_add(case):\n    assert add(*case) == 3", "nothing in it can fail"),
        ("def test_add():\n    pass", "nothing in it can fail"),
        (METHOD.replace("TestAdd", "Add"), "nothing in it can fail"),
        ("from solution import add", "nothing in it can fail"),
        (HUMANEVAL, "entry_point"),
        ("import pytest\n" + PYTEST, "it imports pytest"),
    ],
)
def test_a_test_that_cannot_fail_is_an_error_of_the_data(test: str, reason: str):
    with pytest.raises(ValueError, match=f"a test in the column tests cannot be used: .*{reason}"):
        code(fenced(ADD), tests=["assert add(1, 2) == 3", test])


@pytest.mark.parametrize(
    "text",
    [
        "~~~python\n{}~~~",
        "````python\n{}````",
        "```python title='add.py'\n{}```",
        "```{{.python}}\n{}```",
        "- ```python\n  {}  ```",
        "1. First:\n\n   ```py\n   {}   ```",
        "> ```python\n> {}> ```",
        "<solution>\n```python\n{}```\n</solution>",
        "```python\n{}```\nIts complexity:\n```\nO(1)\n```",
        "```\n{}```",
        "```python\n{}# so```",
        "```python\n{}print(add(1, 2))```\nIt adds.",
        "```python\nadd = None```\nNo:\n```python\n{}```",
        "```python\nadd = None\n```\nNo:\n```python\n{}# so```\n",
        "- ```python\n  {}  # so```",
        "````python\n{}# so````",
        '```python\n{}"""\nas ```add```\n"""\n```',
    ],
)
def test_fences_are_those_of_commonmark(text: str):
    assert code(text.format("add = lambda a, b: a + b\n"), tests=["assert add(1, 2) == 3"]).score == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "```python\n{}",
        "a\r\r\r```python\n{}```python",
        "<think>\n```python\n{}```\nbut",
        "```text\n{}```",
        "```python\n{}``",
    ],
)
def test_what_is_no_program(text: str):
    assert code(text.format("add = lambda a, b: a + b\n"), tests=["assert add(1, 2) == 3"]).score == 0.0
