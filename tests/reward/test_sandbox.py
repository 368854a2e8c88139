"""Programs that a model might write, against every barrier of the sandbox; real processes, a real kernel."""

import json
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_reward.sandbox import run as sandbox
from grpo_reward.sandbox import system_calls
from grpo_reward.sandbox.run import Run, SandboxError, barriers_here, run_tests

pytestmark = pytest.mark.processes

SECRET = "only the server knows"

FORBIDDEN = {
    "a socket": "import socket\nsocket.socket()",
    "a UDP socket": "import socket\nsocket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "a fork": "import os\nos.fork()",
    "a process": "import subprocess\nsubprocess.run(['true'], check=True)",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
    "a signal to its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "a signal to all": "import os, signal\nos.kill(-1, signal.SIGTERM)",
    "a file to read": "open('/etc/passwd').read()",
    "another process's secrets": "open('/proc/self/environ').read()",
    "a list of files": "import os\nos.listdir('/')",
    "a file to write": "open('/tmp/written by a program', 'w').write('x')",
    "a file to remove": "import os\nos.unlink('{file}')",
    "another name": "import os\nos.rename('{file}', '{file}.moved')",
    "other rights": "import os\nos.chmod('{file}', 0o777)",
    "a folder": "import os\nos.mkdir('/tmp/made by a program')",
    "other attributes": "{syscall}(463, -100, b'{file}', 0, b'user.t', 0, 0)",
    "limits of its parent": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
    "a signal by way of a file": (
        "import fcntl, os, socket\na, b = socket.socketpair()\nfcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())"
    ),
    "a pair of datagrams": "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)",
    "a message to a path": "import socket\na, b = socket.socketpair()\na.sendto(b'x', '/tmp/a socket of somebody')",
    "a descriptor in a message": (
        "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\nsocket.recv_fds(b, 1, 1)"
    ),
    "an address whose lower half is 0": (
        "import ctypes, socket\na, b = socket.socketpair()\n"
        "{syscall}({sendto}, a.fileno(), b'x', 1, 0, ctypes.c_void_p(1 << 32), 110)"
    ),
    "a lease on a file": "import fcntl\nfcntl.fcntl(open(fcntl.__file__), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "a lock on a file": "import fcntl, os\nfcntl.flock(open(os.__file__), fcntl.LOCK_EX)",
    "to watch a folder": "{syscall}({inotify_init1}, 0)",
    "the machine's asynchronous reads": "import ctypes\n{syscall}({io_setup}, 60000, ctypes.byref(ctypes.c_ulong()))",
    "a larger pipe": "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "memory in a file": "import os\nos.memfd_create('x')",
    "a call of the future": "{syscall}(500)",
    "memory that outlives it": "{syscall}({shmget}, 1, 4096, 0o1600)",
    "another priority": "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 5)",
    "more memory": "x = bytearray(10 ** 10)",
    "namespaces of its own": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), 'unshare')"
    ),
    "to trace its parent": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, os.getppid(), 0, 0): raise OSError(ctypes.get_errno(), 'ptrace')"
    ),
    "a thread that forks": (
        "import os, threading\nfailed = []\ndef fork():\n    try:\n        os.fork()\n    except OSError as e:\n"
        "        failed.append(e)\nt = threading.Thread(target=fork)\nt.start()\nt.join()\nraise failed[0]"
    ),
    "a package that is not in the standard library": "import pydantic",
}
ALLOWED = {
    "threads": "import threading\nt = threading.Thread(target=print, args=('yes',))\nt.start()\nt.join()",
    "asyncio": "import asyncio\nprint(asyncio.run(asyncio.sleep(0, 'yes')))",
    "the standard library": "import bisect, decimal, fractions, heapq, json, re, statistics, zoneinfo\nprint('yes')",
    "events and locks of threads": (
        "import queue, threading\nq = queue.Queue()\nthreading.Thread(target=q.put, args=('yes',)).start()\n"
        "threading.Event().wait(0.01)\nprint(q.get(timeout=5))"
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
        "    print(max(pool.map(str, ['no', 'yes'])))"
    ),
    "asyncio with threads and queues": (
        "import asyncio\nasync def main():\n    q = asyncio.Queue()\n"
        "    await q.put(await asyncio.to_thread(str, 'yes'))\n"
        "    async with asyncio.timeout(5):\n        print(await q.get())\nasyncio.run(main())"
    ),
    "an alarm": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('yes'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(0.3)"
    ),
    "a larger stack": (
        "import resource, sys, threading\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 26, -1))\n"
        "sys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 26)\n"
        "def f(n): return n and f(n - 1)\nt = threading.Thread(target=lambda: print('yes' if f(20000) == 0 else ''))\n"
        "t.start()\nt.join()"
    ),
    "mapped memory": (
        "import mmap\nm = mmap.mmap(-1, 1 << 20)\nm[:3] = b'yes'\nm.resize(1 << 21)\nprint(m[:3].decode())"
    ),
    "all there is about time and itself": (
        "import datetime, getpass, locale, os, platform, random, secrets, time, uuid\n"
        "os.getpid(), os.getppid(), os.getuid(), os.getgroups(), os.getpgrp(), os.getsid(0), os.times(), os.umask(0)\n"
        "os.cpu_count(), os.sched_getaffinity(0), os.getloadavg, os.uname(), platform.machine(), time.process_time()\n"
        "uuid.uuid4(), secrets.token_hex(), datetime.datetime.now().astimezone(), os.isatty(0)\n"
        "os.statvfs('/usr/lib')\nprint('yes')"
    ),
    "pipes and select": (
        "import os, select, socket\nr, w = os.pipe()\nos.set_blocking(w, False)\nos.write(w, b'yes')\n"
        "select.select([r], [], [], 5)\nselect.poll().register(r)\n"
        "a, b = socket.socketpair()\na.sendall(os.read(r, 3))\nprint(b.recv(3).decode())"
    ),
    "files of the standard library": (
        "import os, pathlib\nfolder = pathlib.Path(os.__file__).parent\n"
        "print('yes' if 'os.py' in os.listdir(folder) and folder.resolve() and next(os.scandir(folder)).stat() else '')"
    ),
    "a warning and a traceback": (
        "import faulthandler, logging, traceback, warnings\nwarnings.warn('x')\nlogging.error('x')\n"
        "faulthandler.enable()\ntraceback.print_stack()\nprint('yes')"
    ),
    "writing to nowhere": "open('/dev/null', 'w').write('x')\nprint('yes')",
    "main": "if __name__ == '__main__':\n    print('yes')",
    "an end of its own": "import sys\nprint('yes')\nsys.exit()",
    "what it reads": "print({'3': 'yes'}[input()])",
}


NUMBERS = {
    "sendto": {"x86_64": "44", "aarch64": "206"},
    "shmget": {"x86_64": "29", "aarch64": "194"},
    "inotify_init1": {"x86_64": "294", "aarch64": "26"},
    "io_setup": {"x86_64": "206", "aarch64": "0"},
}
SYSCALL = (
    "import ctypes\ndef call(*arguments):\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), 'refused')\ncall"
)


def source_of(what: str, file: Path) -> str:
    source = FORBIDDEN[what].replace("{syscall}", SYSCALL).replace("{file}", str(file))
    for name, numbers in NUMBERS.items():
        source = source.replace(f"{{{name}}}", numbers[platform.machine()])
    return source


def run_one(source: str, *, test_timeout_s: float = 20.0, **test: str | list[str]) -> Run:
    (run,) = run_tests(
        source, [test or {"stdin": "3\n"}], test_timeout_s=test_timeout_s, total_timeout_s=60.0, memory_bytes=512 << 20
    )
    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("untouched")
    return file


ONE_OF_MANY = "import sys\nexec(compile(sys.stdin.read(), '<one of many>', 'exec'))"
"""A program that is what it reads: many of them, each in a process of its own, need one launcher."""


@pytest.fixture(scope="module")
def forbidden(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Run], Path]:
    """What came of each of FORBIDDEN, and the file that they were after."""
    file = tmp_path_factory.mktemp("forbidden") / "file"
    file.write_text("untouched")
    tests = [{"stdin": source_of(what, file)} for what in FORBIDDEN]
    runs = run_tests(ONE_OF_MANY, tests, test_timeout_s=20.0, total_timeout_s=200.0, memory_bytes=512 << 20)
    return dict(zip(FORBIDDEN, runs, strict=True)), file


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_program_does_not_get(what: str, forbidden: tuple[dict[str, Run], Path]):
    runs, file = forbidden
    run = runs[what]
    assert run.ended == "error", run
    assert run.detail is not None
    expected = {
        "more memory": "MemoryError",
        "a package that is not in the standard library": "ModuleNotFoundError",
        "other attributes": "OSError: [Errno 38]",
        "a call of the future": "OSError: [Errno 38]",
    }
    assert run.detail.startswith(expected.get(what, ("PermissionError", "OSError: [Errno 1]"))), run  # type: ignore[arg-type]
    assert file.read_text() == "untouched"
    assert sorted(path.name for path in file.parent.iterdir()) == ["file"]


@pytest.mark.parametrize("what", ALLOWED)
def test_a_program_has(what: str):
    run = run_one(ALLOWED[what])
    assert (run.ended, run.stdout) == ("done", "yes\n"), run


HEADERS = {  # of the C library: what the tables of numbers are read from
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)$"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)$"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel(machine: str):
    path, form = HEADERS[machine]
    if not Path(path).exists():
        pytest.skip(f"{path} is not there (Debian: linux-libc-dev)")
    kernel = dict(re.findall(form, Path(path).read_text(), re.MULTILINE))
    kernel.setdefault("newfstatat", kernel.get("fstatat", ""))
    column = {"x86_64": 0, "aarch64": 1}[machine]
    ours = {name: numbers[column] for name, numbers in system_calls.ALLOWED.items()}
    for name in ("clone", "tgkill", "prlimit64", "open", "openat", "ioctl", "fcntl"):
        ours[name] = getattr(system_calls, name.upper())[column]
    assert ours == {name: int(kernel.get(name, -1)) for name in ours}


MANY_THREADS = """
import threading, time
threading.stack_size(32768)
for _ in range(2000):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    time.sleep(0.001)
"""


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(1000)", "timeout"),
        ("import os\nos.close(1)\nos.close(3)\nwhile True: pass", "timeout"),
        ("while True: print('x' * 100000)", "output"),
        ("import os\nos._exit(0)", "death"),
        (MANY_THREADS, "death"),
        ("import ctypes\nctypes.string_at(0)", "death"),
        ("import sys\nsys.exit(3)", "error"),
        ("raise KeyboardInterrupt", "error"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "error"),
        ("1 +", "error"),
        ("x = '\\ud800'\nprint(x)", "done"),
    ],
)
def test_how_a_program_can_end(source: str, ended: str):
    assert run_one(source, test_timeout_s=1.0 if ended == "timeout" else 3.0).ended == ended


def test_a_limit_above_the_workers_own_is_the_workers_own():
    (run,) = run_tests(
        "print('yes')", [{"stdin": ""}], test_timeout_s=20.0, total_timeout_s=60.0, memory_bytes=resource_limit() * 2
    )
    assert (run.ended, run.stdout) == ("done", "yes\n")


def resource_limit() -> int:
    """What a process of this machine may have at all, or 2 TiB."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    return 1 << 40 if limit == resource.RLIM_INFINITY else limit


@pytest.mark.parametrize(
    "source",
    [
        "print('yes')\nexit()",
        "print('yes')\nquit(0)",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('yes'))).start()",
        "import atexit\natexit.register(print, 'yes')",
        "import sys\nsys.__stdout__.write('yes\\n')",
        "import sys\nprint('yes')\nsys.stdout.close()",
        "import sys\nsys.stderr.buffer.write(b'no')\nprint('yes')",
        "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\nprint('yes')",
        "import typing\nclass A:\n    b: 'A'\ntyping.get_type_hints(A)\nprint('yes')",
        "assert __file__ and __name__ == '__main__'\nprint('yes')",
    ],
)
def test_an_honest_program_ends_as_under_python(source: str):
    run = run_one(source)
    assert (run.ended, run.stdout) == ("done", "yes\n"), run


def test_a_verdict_that_nobody_can_read_is_the_programs_fault():
    run = run_one("import os\nos.write(3, b'\\n' + b'[' * 100000)\nos._exit(0)")
    assert run.ended == "death"


def test_a_verdict_that_the_program_writes_itself_is_none():
    source = 'import os\nos.write(3, b\'\\n{"ended":"done","detail":null,"values":null}\')\nos._exit(0)'
    assert run_one(source, code="assert False").ended == "death"
    assert run_one(source, expressions=["1"]).ended == "death"


def test_threads_take_their_stacks_of_the_memory_and_no_more():
    source = (
        "import threading\nmeet = threading.Barrier(40)\n"
        "threads = [threading.Thread(target=lambda: (meet.wait(), [0] * 1000)) for _ in range(40)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\nprint('yes')"
    )
    run = run_one(source)
    assert (run.ended, run.stdout) == ("done", "yes\n"), run


def test_each_test_is_a_process_of_its_own():
    source = "import builtins\nseen = getattr(builtins, 'seen', 0)\nbuiltins.seen = 1\nprint(seen, input())"
    tests = [{"stdin": "a"}, {"stdin": "b"}, {"expressions": ["seen"]}, {"code": "assert seen"}]
    runs = run_tests(source, tests, test_timeout_s=20.0, total_timeout_s=60.0, memory_bytes=512 << 20)
    assert [run.stdout for run in runs[:2]] == ["0 a\n", "0 b\n"]
    # Nothing to read for these two: input() meets the end of the file.
    assert [run.detail for run in runs[2:]] == ["EOFError: EOF when reading a line"] * 2


def test_expressions_come_back_as_literals():
    source = (
        "from collections import Counter, OrderedDict\nfrom enum import Enum, IntEnum\n"
        "class Color(str, Enum):\n    RED = 'red'\nclass Size(IntEnum):\n    LARGE = 3\n"
        "class Odd:\n    def __eq__(self, other): return True\n    def __repr__(self): return '3'\n"
    )
    values = {
        "Counter('aab')": "{'a': 2, 'b': 1}",
        "[OrderedDict(x=1), (2.5, None, True)]": "[{'x': 1}, (2.5, None, True, )]",
        "'text'": "'text'",
        "{'x': 1}.keys()": "{'x'}",
        "[frozenset({1}), set(), bytearray(b'a')]": "[{1}, set(), b'a']",
        "[..., float('inf'), -float('inf'), complex(0, float('inf'))]": "[..., 1e999, -1e999, 1e999j]",
        "[Color.RED, Size.LARGE]": "['red', 3]",
    }
    assert run_one(source, expressions=list(values)).values == list(values.values())
    assert "<solution.Odd object" in str(run_one(source, expressions=["Odd()"]).values)


def test_each_expression_is_told_before_the_next_can_change_it():
    source = "items = []\ndef push(x):\n    items.append(1 // x)\n    return items\n"
    run = run_one(source, expressions=["push(1)", "push(-1)", "push(0)", "push(2)"])
    assert (run.ended, run.values) == ("error", ["[1]", "[1, -1]"])
    assert run.detail == "ZeroDivisionError: integer division or modulo by zero"


def test_what_has_not_begun_in_time_is_late():
    runs = run_tests(
        "import time\ntime.sleep(1000)",
        [{"stdin": ""}] * 50,
        test_timeout_s=0.2,
        total_timeout_s=0.5,
        memory_bytes=1 << 29,
    )
    assert [run.ended for run in runs] == ["timeout"] * 50
    assert runs[-1].detail == "the time for all tests was over"


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", SECRET)
    run = run_one("import os\nprint(sorted(os.environ))")
    assert run.stdout == "['LANG', 'MALLOC_ARENA_MAX', 'PATH']\n"


def test_a_broken_sandbox_says_nothing_about_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    launcher = tmp_path / "launcher.py"
    monkeypatch.setattr(sandbox, "LAUNCHER", launcher)
    texts = {
        "1 / 0": "ZeroDivisionError: division by zero, exit status 1$",
        'print(\'{"missing": ["all of it"], "open": ["files"]}\')': "ran 0 of 1 .* leaves open .*: files;",
        "import os; os.kill(os.getpid(), 9)": "^the sandbox was killed by signal 9$",
    }
    for text, message in texts.items():
        launcher.write_text(text)
        with pytest.raises(SandboxError, match=message):
            run_one("print(1)")


def test_without_namespaces_the_other_barriers_hold(file: Path):
    """As in a container that forbids them: in a user namespace that may have none below it."""
    if any("unshare" in reason for reason in barriers_here().missing):
        pytest.skip("this machine has no namespaces: all other tests here ran without them")
    tests = [{"stdin": source_of(what, file)} for what in FORBIDDEN]
    script = f"""
import ctypes, json, os
user, group = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{user}} 1"), ("gid_map", f"0 {{group}} 1")):
    open(f"/proc/self/{{name}}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
from grpo_reward.sandbox.run import barriers_here, run_tests
limits = dict(test_timeout_s=20.0, total_timeout_s=200.0, memory_bytes=512 << 20)
ended = [run.ended for run in run_tests({ONE_OF_MANY!r}, {tests!r}, **limits)]
print(json.dumps([barriers_here().missing, ended, run_tests("print(2)", [{{"stdin": ""}}], **limits)[0].stdout]))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, env=dict(os.environ), check=False
    )
    assert answer.returncode == 0, answer.stderr
    missing, ended, stdout = json.loads(answer.stdout)
    assert [reason.partition(":")[0] for reason in missing] == ["unshare"]
    assert set(ended) == {"error"}
    assert stdout == "2\n"
    assert file.read_text() == "untouched"


def test_output_of_any_bytes_takes_little_more_than_its_size(monkeypatch: pytest.MonkeyPatch):
    """As JSON text it would be six times as long, and a worker has the output of all tests at once."""
    answered: list[int] = []
    started = subprocess.run

    def counted(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        answer = started(*arguments, **options)
        answered.append(len(answer.stdout))
        return answer

    monkeypatch.setattr(subprocess, "run", counted)
    limits = {"test_timeout_s": 20.0, "total_timeout_s": 60.0, "memory_bytes": 512 << 20}
    (run,) = run_tests("print(chr(0) * 100_000)", [{"stdin": ""}], **limits)
    assert run.stdout == "\0" * 100_000 + "\n"
    assert answered[0] < 140_000
