"""Environments, tools and classes for TRL that the tests play against a real rollout server, whatever it says."""

import asyncio
import json
import os
import random
import time

import numpy as np


class Counting:
    """Ends after `row["steps"]` steps, each worth 0.25; the last one may say nothing."""

    def reset(self, row, seed):
        self.row, self.steps = row, 0
        self.number = random.randrange(10)
        return [{"role": "user", "content": f"Hi {self.number}"}]

    async def step(self, message):
        await asyncio.sleep(0)
        self.steps += 1
        done = self.steps >= self.row["steps"]
        if self.row.get("dies_at") == self.steps:
            os._exit(9)
        if self.steps in self.row.get("waits_at", ()):
            time.sleep(self.row["waits_s"])  # noqa: ASYNC251
        return [] if done else "Go on", 0.25 if self.row.get("scores", True) else None, done


class Listening:
    """Writes down in `row["heard"]` what it is asked; each step is worth 0.25."""

    def reset(self, row, seed):
        self.row = row
        return "Hi"

    def step(self, message):
        with open(self.row["heard"], "a") as heard:
            heard.write(json.dumps(message) + "\n")
        return "Go on", 0.25, False


def calc(expression: str) -> str:
    """Calculate.

    Args:
        expression: such as 1+2
    """
    if expression == "wait":
        while True:
            try:
                time.sleep(600)
            except BaseException:  # noqa: S112
                continue
    return str(eval(expression))  # noqa: S307


class Door:
    """Written for TRL: a locked door."""

    def __init__(self):
        self.opened = False

    def reset(self, code=None, **row):
        self.code, self.row = code, row
        return f" The code begins with {code[0]}." if code else None

    def enter(self, code: str) -> str:
        """Try a code.

        Args:
            code: four digits
        """
        self.opened = code == self.code
        return "open" if self.opened else "locked"

    async def look(self) -> str:
        """Look at the door."""
        return f"a door of {self.row.get('colour')}"

    def _hidden(self):
        return None

    def get_reward(self):
        return float(self.opened)


def make_door():
    return Door()


def num_tries(prompts, completions, environments, colour, **columns):
    """Written for TRL: as many tries as the policy made, and what it was given to know."""
    (prompt,), (completion,), (door,) = prompts, completions, environments
    assert prompt[-1]["content"].endswith("The code begins with 1.")
    assert colour == [door.row["colour"]]
    assert completion[-1]["content"].strip() == "It is open."
    tries = [call["function"]["arguments"]["code"] for call in completion[0]["tool_calls"]]
    answers = [message for message in completion if message["role"] == "tool" and message["name"] == "enter"]
    assert len(tries) == len(answers)
    return (float(len(answers)) for _ in environments)


async def not_its_task(environments, completion_ids=None, **columns):
    return [None for _ in environments]


def of_a_batch(environments):
    return [1.0, 0.0]


def of_tokens(environments, completion_ids):
    return [0.0]


def steps_played(environments):
    return [environment.steps for environment in environments]


def logging(environments, completions, log_extra, log_metric, code=None):
    """Written for TRL: worth what it is, and says more."""
    log_extra("code", code or [None])
    log_extra("array", [[np.float32([0.5, 3])]])
    log_extra("keys", [{(1, 2): 3}])
    for tries, huge in ((1, 1e308), (2.0, 1e308)):
        log_metric("tries", tries)
        log_metric("huge", huge)
    log_metric("colour", "red")
    return [sum(message["role"] == "assistant" for message in completions[0])]


def raises(environments):
    return [{}["colour"]]


def hangs(environments):
    time.sleep(600)
    return [1.0]
