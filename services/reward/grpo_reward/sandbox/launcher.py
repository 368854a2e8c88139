"""The process that runs one program, once for each test, behind the barriers.

Started by its path, `python -I -S launcher.py`: it has the standard library and its two neighbours, nothing else.

From standard input: one JSON object, `{"source", "tests", "test_timeout_s", "total_timeout_s", "memory_bytes",
"max_output_bytes"}`. A test is `{"stdin": text}`, `{"code": text}` (statements that raise when they fail) or
`{"expressions": [text, …]}`, with `code` before them or not; beside both the program is the module `solution`. To
standard output: first `{"missing": [reason, …]}`, the barriers this machine has not, then an object for each test:
`{"ended": "done" | "error" | "timeout" | "output" | "death", "stdout", "detail", "values"}`, with the output in base64
and the value of each expression, up to the one that raised, as a literal of Python.

Three processes: this one waits; below it, first in a process table of its own where there is one, the keeper, which
never runs anything of the program's; below that, one after the other, a process for each test. The tests are judged
elsewhere, by what comes out: a program never sees what is expected of it, except in the tests that are code.
"""

import atexit
import binascii
import builtins
import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import time
import types
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import barriers
import system_calls

sys.path.pop(0)

READABLE = [
    sys.base_prefix, "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
    "/etc/ld.so.cache", "/etc/localtime",
]  # fmt: skip
UNITTEST_MAIN = os.path.join(os.path.dirname(os.__file__), "unittest", "main.py")
PR_SET_PDEATHSIG = 1
MAX_THREADS, LOOK_S = 64, 0.02
"""Programs of competitions start one for its larger stack. Thousands would leave the machine no process numbers."""


def main() -> int:
    _die_with_parent()
    request = json.loads(sys.stdin.buffer.read())
    missing = barriers.enter_namespaces()
    keeper = os.fork()
    if keeper == 0:
        status = 70
        try:
            _die_with_parent()
            _keep(request, missing)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])


def _keep(request: dict[str, Any], no_namespaces: str | None) -> None:
    """Run the tests one after the other."""
    no_landlock, no_seccomp = _probe()
    stand_open = _open_to_programs(no_namespaces, no_landlock, no_seccomp)
    missing = [reason for reason in (no_namespaces, no_landlock, no_seccomp) if reason]
    _say({"missing": missing, "open": stand_open})
    if stand_open and not request["may_be_open"]:
        return
    gc.disable()
    until = time.monotonic() + request["total_timeout_s"]
    for test in request["tests"]:
        timeout_s = min(request["test_timeout_s"], until - time.monotonic())
        if timeout_s > 0:
            _say(_run(request, test, timeout_s))
        else:
            _say({"ended": "timeout", "stdout": "", "detail": "the time for all tests was over", "values": None})


def _open_to_programs(no_namespaces: str | None, no_landlock: str, no_seccomp: str) -> list[str]:
    """What no barrier closes, with the reasons. seccomp lets a program start no process, signal none but its own, and
    open no socket, as namespaces do; only Landlock keeps it from reading files."""
    found = [f"files ({no_landlock})"] if no_landlock else []
    if no_namespaces and no_seccomp:
        found += [f"{what} ({no_namespaces}; {no_seccomp})" for what in ("network", "processes")]
    return found


def _probe() -> list[str]:
    """Why there is no Landlock and no seccomp, or empty text: tried in a process that ends with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        barriers.give_up_privileges()
        no_landlock = barriers.restrict_files(READABLE)
        no_seccomp = system_calls.refuse_system_calls(also_writing=no_landlock is not None)
        os.write(writing, f"{no_landlock or ''}\n{no_seccomp or ''}".encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        reasons = answer.read().split("\n")
    os.waitpid(pid, 0)
    return reasons


def _run(request: dict[str, Any], test: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """One test in a process of its own, watched from here."""
    stdin = os.memfd_create("stdin")
    with open(os.dup(stdin), "wb") as writer:
        writer.write(test.get("stdin", "").encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    stdout_reading, stdout_writing = os.pipe()
    verdict_reading, verdict_writing = os.pipe()
    seal = os.urandom(16).hex()
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        os.dup2(stdin, 0)
        os.dup2(stdout_writing, 1)
        os.dup2(verdict_writing, 3)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.closerange(4, 256)
        _become_test(request, test, seal)
    for descriptor in (stdin, stdout_writing, verdict_writing):
        os.close(descriptor)
    try:
        return _watch(pid, seal, stdout_reading, verdict_reading, timeout_s, request["max_output_bytes"])
    finally:
        os.close(stdout_reading)
        os.close(verdict_reading)


def _watch(pid: int, seal: str, stdout: int, verdict: int, timeout_s: float, max_output_bytes: int) -> dict[str, Any]:
    """Collect what the test says until it ends, is late, or says too much. Then it is dead in any case."""
    until = time.monotonic() + timeout_s
    collected = {stdout: bytearray(), verdict: bytearray()}
    ended = detail = None
    with selectors.DefaultSelector() as selector:
        for descriptor in collected:
            selector.register(descriptor, selectors.EVENT_READ)
        handle = os.pidfd_open(pid)
        selector.register(handle, selectors.EVENT_READ)
        alive = True
        while alive and ended is None:
            left_s = until - time.monotonic()
            ready = {key.fd for key, _ in selector.select(min(max(left_s, 0.0), LOOK_S))}
            if not ready and left_s <= 0:
                ended = "timeout"
            elif _threads(handle) > MAX_THREADS:
                ended, detail = "death", f"more than {MAX_THREADS} threads"
            # What was written before the end is read after it, too: a pipe keeps it.
            alive = handle not in ready
            for descriptor in ready - {handle}:
                part = os.read(descriptor, 1 << 16)
                collected[descriptor] += part
                if not part:
                    selector.unregister(descriptor)
                elif len(collected[descriptor]) > max_output_bytes:
                    ended = "output"
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    for descriptor, parts in collected.items():
        os.set_blocking(descriptor, False)
        try:
            while len(parts) <= max_output_bytes and (part := os.read(descriptor, 1 << 16)):
                parts += part
        except BlockingIOError:
            pass
    result: dict[str, Any] = {"ended": ended or "death", "detail": detail, "values": None}
    # As JSON text a byte could take six, which a program chooses.
    result["stdout"] = binascii.b2a_base64(collected[stdout][:max_output_bytes], newline=False).decode()
    if ended is None:
        try:
            told = json.loads(bytes(collected[verdict]).decode("utf-8", "replace").rpartition("\n")[2])
            ended, detail, values = told["ended"], told["detail"], told["values"]
            # A program can write to this pipe, too, but the seal it has to look for in its own process.
            if told["seal"] != seal or ended not in ("done", "error"):
                raise ValueError("no verdict of ours")
            result["detail"] = None if detail is None else _printable(detail)
            result["values"] = None if values is None else [_printable(value) for value in values]
            result["ended"] = ended
        except (ValueError, TypeError, KeyError, RecursionError):
            result["values"] = None
            result["detail"] = f"signal {-status}" if status < 0 else f"exit status {status}"
    return result


def _printable(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError("no text")
    return text.encode(errors="replace").decode()


def _threads(handle: int) -> int:
    """Threads of the process behind `handle`, 0 when it has ended; its id in /proc may be another one than here."""
    try:
        with open(f"/proc/self/fdinfo/{handle}") as description:
            pid = next(line.split()[1] for line in description if line.startswith("Pid:"))
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    except (OSError, StopIteration):
        return 0  # it has ended


def _become_test(request: dict[str, Any], test: dict[str, Any], seal: str) -> None:
    """Raise the barriers and run the program; does not return."""
    source, code, expressions = request["source"], test.get("code"), test.get("expressions")
    barriers.give_up_privileges()
    barriers.limit(memory_bytes=request["memory_bytes"], cpu_s=int(request["test_timeout_s"]) + 1)
    no_landlock = barriers.restrict_files(READABLE)
    system_calls.refuse_system_calls(also_writing=no_landlock is not None)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - until the process ends
    stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc]
    stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc]
    sys.argv = ["program.py"]
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which Python defines where it loads its site-packages
    is_imported = code is not None or expressions is not None
    program = types.ModuleType("solution" if is_imported else "__main__")
    program.__file__ = "program.py"
    sys.modules["__main__"] = sys.modules["solution"] = program
    request.clear()
    test.clear()
    verdict: dict[str, Any] = {"ended": "error", "detail": None, "values": None}
    try:
        names = program.__dict__
        try:
            exec(compile(source, "<program>", "exec", dont_inherit=True), names)  # noqa: S102 - behind the barriers
        except SystemExit as end:
            if is_imported or end.code not in (None, 0):
                raise
        if is_imported:
            program.__name__ = "__main__"  # of the test's own `if __name__ == "__main__":`
        else:
            _end_as_python_does()
        if code is not None:
            try:
                exec(compile(code, "<test>", "exec", dont_inherit=True), names)  # noqa: S102 - an author's test
            except SystemExit as end:
                if not _is_success_of_unittest(end, code):
                    raise
        if expressions is not None:
            verdict["values"] = values = []
            for expression in expressions:
                value = eval(compile(expression, "<test>", "eval", dont_inherit=True), names)  # noqa: S307
                values.append(_literal(value))  # now: what comes next may change it
        _flush(sys.stdout, stdout)
        verdict["ended"] = "done"
    except BaseException as error:
        verdict["detail"] = f"{type(error).__name__}: {error}"[:500]
        try:
            _flush(sys.stdout, stdout)
        except Exception:
            verdict["ended"] = "error"
    finally:
        os.write(3, b"\n" + json.dumps(verdict | {"seal": seal}).encode())
        os._exit(0)


def _is_success_of_unittest(end: SystemExit, test: str) -> bool:
    """Whether `unittest.main()`, called by the test's own text, has ended it after its test cases have passed.

    Nothing of the program may stand between: a function of it that exits when it is called has not passed, nor has one
    that is `sys.exit` or `unittest.main` under another name. So the line that is left has to say `unittest.main(`.
    """
    frames, line = [], 0
    place = end.__traceback__ and end.__traceback__.tb_next  # the first is this file's own
    while place:
        frames.append(place.tb_frame.f_code)
        line = place.tb_lineno if frames[-1].co_filename == "<test>" else line
        place = place.tb_next
    before = [code for code in frames if code.co_filename == "<test>"]
    unittest_main = [(code.co_filename, code.co_name) for code in frames[len(before) :]]
    by_unittest = [(UNITTEST_MAIN, "__init__"), (UNITTEST_MAIN, "runTests")]
    called = frames[: len(before)] == before and unittest_main == by_unittest
    return called and "unittest.main(" in test.split("\n")[line - 1] and end.code in (None, 0)


def _end_as_python_does() -> None:
    """Threads are waited for, and what was registered for the end is called."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()


def _flush(*streams: Any) -> None:
    """A program may have closed its output at its end, or have put another in its place."""
    for stream in streams:
        if not stream.closed:
            stream.flush()


def _literal(value: object) -> str:
    """What a literal of the same value looks like, of what derives from a type of literals, as a Counter does, too.

    Anything else does not say itself what it looks like: its `__repr__` is the program's, and could say any literal.
    """
    if value is ...:
        return "..."
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(item)}, ' for item in value)})"
    if isinstance(value, (set, frozenset, type({}.keys()))):
        return f"{{{', '.join(map(_literal, value))}}}" if value else "set()"
    if isinstance(value, bytearray):
        value = bytes(value)
    for kind in (str, bytes, int):
        if isinstance(value, kind):
            return kind.__repr__(value)
    for number in (float, complex):
        if isinstance(value, number):
            return number.__repr__(value).replace("inf", "1e999")  # which is how a literal says it
    return object.__repr__(value)  # which begins with "<", as no literal does


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
