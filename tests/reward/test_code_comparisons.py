"""The reward `code`: comparisons of a test are made outside the program's process."""

import pytest
from tests.reward.programs import ADD, ZERO, fenced

from grpo_reward.rewards.code import code

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "cheat",
    [
        "import collections.abc\n"
        "class One(collections.abc.Set):\n    def __contains__(self, x): return x == 1\n"
        "    def __iter__(self): return iter([1])\n    def __len__(self): return 1\n"
        "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()\n",
        "class Yes(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Yes(7)\n",
        "import collections.abc\n"
        "class One(collections.abc.Set):\n    def __contains__(self, x): return x == 1\n"
        "    def __iter__(self): return iter([1])\n    def __len__(self): return 1\n"
        "class Yes:\n    def __repr__(self): return '5'\ndef add(a, b): return Yes()\n",
        "import os\nos._exit(0)\n",
        "import sys\nsys.exit(0)\n",
        "raise SystemExit\n",
        'import os\nos.write(3, b\'{"ended": "done", "detail": null, "values": ["5"]}\')\nos._exit(0)\n',
        'import os\nos.write(3, b\'{"ended": "done", "detail": null, "values": []}\')\nos._exit(0)\n',
        'import os\nos.write(3, b\'{"ended": "done", "detail": null, "values": null}\')\nos._exit(0)\n',
        'import os\nos.write(3, b\'{"ended": "done", "detail": null, "values": 1}\')\nos._exit(0)\n',
        'import os\nos.write(3, b\'{"ended": "done", "detail": 1, "values": [400041]}\')\nos._exit(0)\n',
        'import os\nos.write(3, b\'{"ended": "error", "detail": "\\\\ud800", "values": null}\')\nos._exit(0)\n',
        "import sys\nsys._getframe(1).f_locals['expressions'].clear()\n",
        "class X:\n    def __repr__(self): return '{[1]}'\ndef add(a, b): return X()\n",
        "class X:\n    def __repr__(self): return '{' + ','.join(str(k * (2**61 - 1)) for k in range(40000)) + '}'\n"
        "def add(a, b): return X()\n",
        "import gc\nadd = lambda a, b: [o for o in gc.get_objects() if o == 400041][0]\n",
    ],
)
def test_what_cheats_a_comparison_in_the_programs_own_process_does_not_cheat_this(cheat: str):
    assert code(fenced(cheat), tests=["assert add(400000, 41) == 400041"]).score == 0.0


EQUAL_TO_ALL = "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()\n"


@pytest.mark.parametrize(
    "test",
    [
        "found = add(1, 2)\nassert found == 3",
        "assert add(1, 2) == 3\nassert add(2, 2) == 4",
        "assert add(1, 2) == 3, 'a message'; assert add(2, 2) == 4",
        "from operator import neg\nassert add(1, 2) == 3\nassert add(neg(1), 1) == 0",
    ],
)
def test_comparisons_at_the_end_of_a_test_are_made_outside_too(test: str):
    assert code(fenced(ADD), tests=[test]).score == 1.0
    assert code(fenced("def add(a, b): return a - b\n"), tests=[test]).score == 0.0
    result = code(fenced(EQUAL_TO_ALL), tests=[test])
    assert (result.score, result.log) == (0.0, {"passed": 0, "tests": 1, "failure": "wrong value"})


@pytest.mark.parametrize(
    "test",
    [
        "assert 3 == add(1, 2)",
        "assert add(1, 2) == 3 and add(2, 2) == 4",
        "assert 3 == add(1, 2) and (add(2, 2) == 4 and -1 == add(-3, 2)), 'a message'",
        "assert add(0, 0) == 0\nassert 3 == add(1, 2)",
    ],
)
def test_a_literal_on_the_left_and_several_comparisons_are_compared_outside_too(test: str):
    assert code(fenced(ADD), tests=[test]).score == 1.0
    assert code(fenced("def add(a, b): return a - b\n"), tests=[test]).score == 0.0
    assert code(fenced(EQUAL_TO_ALL), tests=[test]).log == {"passed": 0, "tests": 1, "failure": "wrong value"}


@pytest.mark.parametrize(
    ("value", "literal", "score"),
    [
        ("Color.RED", "'red'", 1.0),  # a (str, Enum), whose str() is "Color.RED"
        ("[Color.RED]", "['red']", 1.0),
        ("{Color.RED: float('inf')}", "{'red': 1e999}", 1.0),
        ("-float('inf')", "-1e999", 1.0),
        ("float('inf')", "1e308", 0.0),
        ("float('nan')", "1e999", 0.0),
        ("(...,)", "(...,)", 1.0),
        ("()", "()", 1.0),
        ("frozenset()", "set()", 1.0),
        ("1", "True", 1.0),
        ("{1: 2}.keys()", "{1}", 1.0),
        # No literal has such a value.
        ("Decimal(3)", "3", 0.0),
        ("[Decimal(3)]", "[3]", 0.0),
        ("deque([1])", "[1]", 0.0),
        ("Yes()", "3", 0.0),  # its __repr__ says 3
        ("[Yes()]", "[3]", 0.0),
        ("One()", "{1}", 0.0),  # a Set of its own
        ("YesText('no')", "'yes'", 0.0),
        ("YesText('yes')", "'yes'", 1.0),
    ],
)
def test_which_values_equal_a_literal(value: str, literal: str, score: float):
    program = (
        "from collections import deque\nfrom decimal import Decimal\nfrom enum import Enum\n"
        "class Color(str, Enum):\n    RED = 'red'\n"
        "import collections.abc\n"
        "class One(collections.abc.Set):\n    def __contains__(self, x): return x == 1\n"
        "    def __iter__(self): return iter([1])\n    def __len__(self): return 1\n"
        "class Yes:\n    def __eq__(self, other): return True\n    def __repr__(self): return '3'\n"
        "class YesText(str):\n    def __str__(self): return 'yes'\n    __repr__ = lambda self: \"'yes'\"\n"
    )
    assert code(fenced(program), tests=[f"assert {value} == {literal}"]).score == score


PUSH = "items = []\ndef push(x):\n    items.append(12 // x)\n    return items\n"


@pytest.mark.parametrize(
    "test",
    [
        "assert push(1) == [12]\nassert push(2) == [12, 6]\nassert [12, 6, 4] == push(3)",
        "assert push(1) == [12] and push(2) == [12, 6] and [12, 6, 4] == push(3)",
        "assert push(1) == [12]\nassert push(2) == [12, 6] and items == [12, 6]",
    ],
)
def test_each_comparison_is_made_before_the_next_call_changes_its_value(test: str):
    assert code(fenced(PUSH), tests=[test]).score == 1.0
    assert code(fenced(PUSH.replace("12 // x", "x")), tests=[test]).score == 0.0


@pytest.mark.parametrize("between", ["\nassert", " and"])
@pytest.mark.parametrize(
    ("wanted", "failure"),
    [
        ("[12]", "error: ZeroDivisionError: integer division or modulo by zero"),
        ("[13]", "wrong value"),  # an assertion ends the test: what comes after it does not happen
    ],
)
def test_a_row_of_comparisons_ends_at_its_first_fault(between: str, wanted: str, failure: str):
    result = code(fenced(PUSH), tests=[f"assert push(1) == {wanted}{between} push(0) == [12, 0]"])
    assert (result.score, result.log) == (0.0, {"passed": 0, "tests": 1, "failure": failure})


@pytest.mark.parametrize("test", ["assert add(1, 2) == 3 and add(1, 2) > 2", "assert add(1, 2) == 3 or add(1, 2) == 4"])
def test_what_is_no_row_of_comparisons_means_what_it_says(test: str):
    assert code(fenced(ADD), tests=[test]).score == 1.0
    assert code(fenced(ZERO), tests=[test]).score == 0.0
