"""What users' files may do: environments and tools of the tests, imported as a run file names them."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time

import numpy as np


class Hostile:
    """`step` does what the policy's message says."""

    def reset(self, row, seed):
        self.row, self.seed = row, seed
        self.drawn = [random.random(), float(np.random.rand())]
        return f"begin {row.get('task')} {seed}"

    def step(self, message):
        found = getattr(self, message["content"])()
        return found if isinstance(found, tuple) else (str(found), None, False)

    def draws(self):
        return self.drawn

    def token(self):
        return os.environ.get("GRPO_API_TOKEN")

    def sleeps(self):
        time.sleep(600)

    def computes(self):
        while True:
            pass

    def swallows(self):
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(600)

    def raises(self):
        raise KeyError("no such room")

    def exits(self):
        sys.exit("done with it")

    def dies(self):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)

    def prints(self):
        for _ in range(2**10):
            sys.stdout.write("x" * 2**20)
        return "printed"

    def floods(self):
        return "x" * 2**26

    def daemon(self):
        """Leaves a process behind in a session of its own, whose parent has ended."""
        code = (
            "import subprocess\n"
            "void = subprocess.DEVNULL\n"
            "print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=void, stderr=void).pid)"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def flees(self):
        """Begins a chain: each process forks the next one, in a session of its own, and ends."""
        if os.fork() == 0:
            until_s = time.monotonic() + 60.0
            while time.monotonic() < until_s:
                os.setsid()
                if os.fork():
                    os._exit(0)
        return os.getpid()

    def forks(self):
        if os.fork() == 0:
            return "from the child"
        return "from the parent"

    def bad_reward(self):
        return [], float("nan"), True

    def bad_message(self):
        return [{"role": "robot", "content": "x"}], 0.0, False

    def nothing(self):
        return [], 0.0, False

    def wins(self):
        return [], 1, True


class Later(Hostile):
    async def step(self, message):
        await asyncio.sleep(600 if message["content"] == "sleeps" else 0)
        return "later", 0.5, False


class NoStep:
    def reset(self, row, seed):
        return "x"


def calc(expression: str) -> str:
    """Calculate.

    Args:
        expression: such as 1+2
    """
    if expression == "wait":
        time.sleep(600)
    return str(eval(expression))  # noqa: S307


def schemaless(expression):
    return expression


class WithStaticTool:
    """Written for TRL."""

    def reset(self, **row):
        pass

    @staticmethod
    def look() -> str:
        """Look around."""
        return "a room"


class Helpful:
    """Written for TRL, with a public method that is no tool."""

    def reset(self, **row):
        pass

    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: what
        """
        return self.helper(at)

    def helper(self, at):
        return at
