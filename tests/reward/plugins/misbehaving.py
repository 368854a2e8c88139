"""Rewards that do what they must not. The completion says what."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

from grpo_reward import Score, reward

kept = []
counted: list[str] = []


def is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


@reward
def misbehave(completion: str, *, folder: str = "") -> float | Score | None:
    """Does what the completion says, and scores 1 when that is nothing."""
    match completion:
        case "loop":
            while True:
                pass
        case "hold the interpreter":
            # PyDLL keeps the lock of the interpreter, so that no Python code, signal handlers included, can run.
            ctypes.PyDLL(None).sleep(1000)
        case "exit":
            sys.exit(3)
        case "exit at once":
            os._exit(7)
        case "segmentation fault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case text if text.startswith("signal "):
            number = int(text.split()[-1])
            os.kill(os.getppid() if "parent" in text else os.getpid(), number)
        case "kill the parent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "die the first time":
            marker = Path(folder, "died")
            if not marker.exists():
                marker.touch()
                os._exit(7)
        case "raise the first time":
            marker = Path(folder, "raised")
            if not marker.exists():
                marker.touch()
                raise ValueError("once")
        case text if text.startswith("the eleventh dies"):
            counted.append(text)
            if len(counted) > 10:
                os.kill(os.getpid(), signal.SIGKILL)
        case "recurse":
            return misbehave(completion, folder=folder)
        case "allocate":
            kept.append(bytearray(6 << 30))
        case "print":
            print("x" * 100_000)
            os.write(1, b"y" * 100_000)
        case "read":
            sys.stdin.read()
        case "say endlessly much":
            connection = next(number for number in range(3, 100) if is_socket(number))
            os.write(connection, (1 << 31).to_bytes(4))
            piece = b"x" * (1 << 20)
            while True:
                os.write(connection, piece)
        case "many metrics":
            return Score(1.0, metrics={str(number): 1.0 for number in range(1000)})
        case "a long metric":
            return Score(1.0, metrics={"x" * 1000: 1.0})
        case "close everything":
            os.closerange(3, 100)
        case "leave a thread":
            threading.Thread(target=time.sleep, args=(1000,)).start()
        case "fork":
            os.fork()
        case "fork and stay":
            if os.fork() == 0:
                time.sleep(1000)
        case "fork and loop":
            os.fork()
            while True:
                pass
        case "start a daemon":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
            Path(folder, "daemon").write_text(str(child.pid))
            os._exit(7)
        case "ignore signals":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(1)
        case "stop the clock":
            time.monotonic = lambda: 0.0
        case "turn the clock back":
            moments = iter(range(10**9, 0, -1))
            time.monotonic = lambda: float(next(moments))
        case "set an alarm":
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        case "import":
            import nothing_like_it  # noqa: F401
        case "raise":
            raise LookupError("no such thing")
        case "raise without text":
            raise LookupError
        case "surrogate":
            raise LookupError("\ud800")
        case "nan":
            return float("nan")
        case "infinity":
            return float("-inf")
        case "true":
            return True
        case "text":
            return "1.0"  # type: ignore[return-value]
        case "huge":
            return 10**400
        case "none":
            return None
        case "reason":
            return Score(None, detail="not my task")
        case "log":
            return Score(0.5, log={"seen": completion}, metrics={"length": len(completion)})
        case "bad log":
            return Score(0.5, log={"seen": object()})
        case "bad metric":
            return Score(0.5, metrics={"length": float("nan")})
        case "broken text":
            return Score(0.5, "why", log={"good": 1, "bad": "\ud800"}, metrics={"good": 1.0, "\udfff": 2.0})
        case "too long":
            return 10**10_000
        case "large log":
            return Score(0.5, log={"seen": "x" * 1_000_000})
        case "environment":
            return Score(1.0, log={"environment": dict(os.environ)})
        case "environment of the server":
            above = os.getppid()
            for _ in ("the keeper of the fork server", "the server"):
                above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
            return Score(1.0, log={"environment": Path(f"/proc/{above}/environ").read_text()})
        case "process":
            return Score(1.0, log={"pid": os.getpid()})
        case "slow":
            time.sleep(0.2)
    return 1.0


@reward
def batch_misbehave(completions: list[str], *, gold: list[float], **columns: list[object]) -> list[float | None]:
    """The golds, unless a completion asks for something else."""
    if "loop" in completions:
        time.sleep(1000)
    if "too few" in completions:
        return [1.0]
    if "raise" in completions:
        raise LookupError("no such thing")
    return [None if text == "none" else value for text, value in zip(completions, gold, strict=True)]


@reward(columns=["gold", "hint"])
def typed(completion: str, *, gold: int, hint: str = "", prompt: str | list[dict[str, str]], step: int | None) -> Score:
    """Says what it got."""
    return Score(1.0, log={"gold": gold, "hint": hint, "prompt": prompt, "step": step})
