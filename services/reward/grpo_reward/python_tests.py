"""Texts of Python as tests: what calls a test function, and what could never fail.

A text that only defines tests passes with every program. pytest, unittest and HumanEval's `check` would call them; here
the calls are written behind the text, and one in which nothing can fail is an error of the data.
"""

import ast
import sys
from collections.abc import Iterator

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEVER_FAILS = (*_DEFINITION, ast.Import, ast.ImportFrom, ast.Pass, ast.Global)
_CAN_RAISE = (ast.Call, ast.Subscript, ast.Attribute, ast.BinOp, ast.Await)
_TOLD_BY_VALUE = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)
PROGRAM = "solution"
"""The name under which a test may import the program."""


def called(test: str, entry_point: str | None) -> list[ast.stmt]:
    """The statements of `test`, and behind them the calls of the tests that they define.

    `entry_point` names the function that HumanEval's `check(candidate)` is called with. Raises ValueError when the text
    is no Python, imports what the sandbox has not, or has nothing that could fail.
    """
    body = ast.parse(test).body
    for module in sorted(_imported(body) - sys.stdlib_module_names - {PROGRAM}):
        raise ValueError(f"it imports {module}: the sandbox has the standard library, and the program as {PROGRAM}")
    known = {node.id for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Name)}
    calls = [call for statement in body for call in _calls_of(statement, entry_point, known)]
    if not calls and not any(map(_can_fail, body)):
        raise ValueError("nothing in it can fail: write an assert, or a test function without parameters")
    return [*body, *ast.parse("\n".join(dict.fromkeys(calls))).body]


def _imported(body: list[ast.stmt]) -> set[str]:
    modules = [name.name for node in body if isinstance(node, ast.Import) for name in node.names]
    modules += [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    return {module.partition(".")[0] for module in modules}


def _calls_of(statement: ast.stmt, entry_point: str | None, known: set[str]) -> Iterator[str]:
    """`known`: names that the text uses; a test that it calls itself is not called again."""
    if not isinstance(statement, _DEFINITION) or statement.name in known:
        return
    if isinstance(statement, ast.ClassDef):
        methods = [part for part in statement.body if isinstance(part, ast.FunctionDef) and _is_test(part)]
        if any("TestCase" in ast.unparse(base) for base in statement.bases):
            if any(_can_fail(part) for method in methods for part in method.body):
                yield from ("import unittest", "unittest.main()")
        elif statement.name.startswith("Test"):
            set_up = ", case.setup_method()" * any(
                getattr(part, "name", "") == "setup_method" for part in statement.body
            )
            calls = [
                method.name for method in methods if len(method.args.args) == 1 and any(map(_can_fail, method.body))
            ]
            yield from (f"(case := {statement.name}(){set_up}, case.{name}())" for name in calls)
    elif statement.name == "check" and len(statement.args.args) == 1:
        if entry_point is None:
            raise ValueError("check(candidate) needs the column entry_point, the name of the function to check")
        if any(map(_can_fail, statement.body)):
            yield f"check({entry_point})"
    elif (
        _is_test(statement)
        and len(statement.args.args) == len(statement.args.defaults)
        and any(map(_can_fail, statement.body))
    ):
        run = f"{statement.name}()"
        yield f"__import__('asyncio').run({run})" if isinstance(statement, ast.AsyncFunctionDef) else run


def _is_test(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name.startswith("test")


def _can_fail(statement: ast.stmt) -> bool:
    """Whether it asserts something of the program, or could raise. `f(1) == 2` alone does not: nobody looks at it."""
    if isinstance(statement, ast.Assert):
        held = statement.test.elts if isinstance(statement.test, ast.Tuple) else getattr(statement.test, "value", None)
        return not (isinstance(statement.test, ast.Tuple | ast.Constant) and held)
    if isinstance(statement, _NEVER_FAILS):
        return False
    if isinstance(statement, ast.Expr) and isinstance(_printed(statement.value), _TOLD_BY_VALUE):
        return False
    if isinstance(statement, ast.Try) and any(map(_catches_assertions, statement.handlers)):
        return any(map(_can_fail, [line for part in statement.handlers for line in part.body]))
    return isinstance(statement, ast.Raise) or any(
        _can_fail(part) if isinstance(part, ast.stmt) else any(isinstance(node, _CAN_RAISE) for node in ast.walk(part))
        for part in ast.iter_child_nodes(statement)
    )


def _catches_assertions(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("AssertionError", "Exception", "BaseException")


def _printed(value: ast.expr) -> ast.expr:
    """What `print` shows, which nobody looks at either."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print" and value.args:
        return value.args[0]
    return value
