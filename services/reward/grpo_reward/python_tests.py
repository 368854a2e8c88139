"""Texts of Python as tests: what calls a test function, and what could never fail.

A text that only defines tests passes with every program. pytest, unittest and HumanEval's `check` would call them; here
the calls are written behind the text, and one in which nothing can fail is an error of the data.
"""

import ast
import sys
from collections.abc import Iterator

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEVER_FAILS = (*_DEFINITION, ast.Import, ast.ImportFrom, ast.Pass, ast.Global)
_CAN_RAISE = (ast.Call, ast.Subscript, ast.Attribute, ast.BinOp, ast.Await)
_TOLD_BY_VALUE = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant, ast.IfExp, ast.JoinedStr)
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
    called = {call.func.id for call in _calls(body) if isinstance(call.func, ast.Name)}
    cases = _test_cases(body)
    calls = [
        call
        for definition in body
        if isinstance(definition, _DEFINITION) and (definition.name in cases or definition.name not in called)
        for call in _calls_of(definition, entry_point, definition.name in cases)
    ]
    if not calls and not any(map(_can_fail, body)):
        raise ValueError("nothing in it can fail: write an assert, or a test function without parameters")
    return [*body, *ast.parse("\n".join(dict.fromkeys(calls))).body]


def _imported(body: list[ast.stmt]) -> set[str]:
    """Names of the modules it cannot do without: not those in a `try`."""
    modules: list[str] = []
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
        elif not isinstance(node, ast.Try):
            todo += ast.iter_child_nodes(node)
    return {module.partition(".")[0] for module in modules}


def _calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Those of the text itself, outside of what it defines."""
    for statement in body:
        if not isinstance(statement, _DEFINITION):
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _test_cases(body: list[ast.stmt]) -> set[str]:
    """Names of the classes that derive from unittest's TestCase, also by another of the text."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            bases = [ast.unparse(base) for base in statement.bases]
            if any("TestCase" in base or base in found for base in bases):
                found.add(statement.name)
    return found


def _calls_of(definition: Definition, entry_point: str | None, is_test_case: bool) -> Iterator[str]:
    name = definition.name
    if isinstance(definition, ast.ClassDef):
        functions = [part for part in definition.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
        tests = [part for part in functions if _is_test(part) and any(map(_can_fail, part.body))]
        if is_test_case and tests:
            yield from ("import unittest", "unittest.main()")
        elif name.startswith("Test"):
            given = {part.name: len(part.args.args) for part in functions}
            method = ", None" if given.get("setup_method", 1) > 1 else ""
            set_up = f"case.setup_method({method.removeprefix(', ')}), " if "setup_method" in given else ""
            yield from (
                f"(lambda case: ({set_up}case.{part.name}()))({name}())" for part in tests if given[part.name] < 2
            )
    elif name == "check" and len(definition.args.args) == 1:
        if entry_point is None:
            raise ValueError("check(candidate) needs the column entry_point, the name of the function to check")
        if any(map(_can_fail, definition.body)):
            yield f"check({entry_point})"
    elif _is_test(definition) and _needs_nothing(definition.args) and any(map(_can_fail, definition.body)):
        is_async = isinstance(definition, ast.AsyncFunctionDef)
        yield f"__import__('asyncio').run({name}())" if is_async else f"{name}()"


def _needs_nothing(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    return positional == len(arguments.defaults) and None not in arguments.kw_defaults


def _is_test(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name.startswith("test")


def _can_fail(statement: ast.stmt) -> bool:
    """Whether it asserts something of the program, or could raise. `f(1) == 2` alone does not: nobody looks at it."""
    if isinstance(statement, ast.Assert):
        held = statement.test.elts if isinstance(statement.test, ast.Tuple) else getattr(statement.test, "value", None)
        return not (isinstance(statement.test, ast.Tuple | ast.Constant) and held)
    if isinstance(statement, _NEVER_FAILS):
        return False
    if isinstance(statement, ast.Expr | ast.Assign) and isinstance(_told(statement.value), _TOLD_BY_VALUE):
        return False
    if isinstance(statement, ast.Try) and any(map(_catches_assertions, statement.handlers)):
        return any(map(_can_fail, [line for part in statement.handlers for line in part.body]))
    if isinstance(statement, ast.If | ast.While):
        return any(map(_can_fail, [*statement.body, *statement.orelse]))
    return isinstance(statement, ast.Raise) or any(
        _can_fail(part) if isinstance(part, ast.stmt) else any(isinstance(node, _CAN_RAISE) for node in ast.walk(part))
        for part in ast.iter_child_nodes(statement)
    )


def _catches_assertions(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(name in ast.unparse(handler.type) for name in ("AssertionError", "Exception"))


def _told(value: ast.expr) -> ast.expr:
    """What `print` shows and `all` looks at: nobody else does."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.args:
        if value.func.id in ("all", "any"):
            return ast.Constant(value=True)
        if value.func.id != "print":
            break
        value = value.args[0]
    return value
