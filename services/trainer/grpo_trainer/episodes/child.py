"""The process of one episode: it calls the user's code, and answers the trainer.

One frame is one call: `{"call": "reset" | "step" | "show" | "finish" | "close", …, "timeout_s": n, "budget_s": n}`. The
answer is `{"ok": …}`, or `{"error": text}` when the user's code raised, ran late or returned something that it may not.
`plays.py` has the calls, and `reward_functions.py` adds rewards to their `finish`.
"""

import os
import random
import socket
import sys
import sysconfig
import traceback
from typing import Any

from .frames import Frame, FrameError, packed, receive, unpacked
from .pictures import opened, row_with_images
from .plays import Environment, Play, Toolbox, TrlClass
from .reward_functions import PaidByFunctions
from .swift_plays import GymEnvironment, Scheduler, is_gym_environment
from .time_limit import CallTimeoutError

NUMPY_SEEDS = 2**32
NOT_THE_USERS = (os.path.dirname(__file__), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
"""Folders of code that calls the user's, or is called by it."""


def serve(channel: socket.socket, parts: dict[str, Any], kind: dict[str, Any], *, seed: int) -> None:
    """Answer calls until the trainer shuts the channel or sends `close`.

    `parts`: what the users' files have; `kind`: those of this episode, as `play_of` takes them.
    """
    os.register_at_fork(after_in_child=channel.close)  # what the user's code forks must not answer in its place
    give_seeds(seed)
    play: Play | None = None
    while (request := receive(channel)) is not None:
        call = request.pop("call")
        try:
            if call == "close":
                if play is not None:
                    play.close(request["timeout_s"])
                channel.sendall(packed({"ok": None}))
                return
            if play is None:
                play = play_of(kind, parts)
            if call == "reset":
                request = _with_images(request)
            answer: Frame = {"ok": getattr(play, call)(**request)}
        except (KeyboardInterrupt, FrameError):
            raise
        except BaseException as error:  # SystemExit and time-outs, too: the trainer decides what becomes of them
            traceback.print_exc()
            sys.stderr.flush()
            answer = {"error": _told(error), "late": isinstance(error, CallTimeoutError)}
        sys.stdout.flush()
        channel.sendall(_packed(answer))


def play_of(kind: dict[str, Any], parts: dict[str, Any]) -> Play:
    """Make what plays an episode. `kind` has names of `parts`:

    `{"environment": name or null, "scheduler": name or null, "factory": name or null, "by_name": bool,
    "tools": [name, …], "rewards": [name, …], "max_turns": n}`
    """
    tools = [parts[name] for name in kind["tools"]]
    environment, scheduler, factory = kind["environment"], kind["scheduler"], kind["factory"]
    if scheduler is not None:
        return Scheduler(parts[scheduler], tools, max_turns=kind["max_turns"])
    if environment is None and factory is None:
        return Toolbox(tools)
    play: Environment | TrlClass
    if environment is not None:
        is_gym = is_gym_environment(parts[environment])
        play = (GymEnvironment if is_gym else Environment)(parts[environment], tools)
    else:
        name = factory.rpartition(":")[2]
        play = TrlClass(name, parts[factory], tools, drops_environment=kind["by_name"])
    functions = {name.rpartition(":")[2]: parts[name] for name in kind["rewards"]}
    return PaidByFunctions(play, functions) if functions else play


def _with_images(reset: Frame) -> Frame:
    """The call with the images of its row, which come by themselves: a row and its prompt show the same."""
    images, column = reset.pop("images", ()), reset.pop("image_column", None)
    row, prompt = row_with_images(reset["row"], reset["prompt"], images, column, form=opened)
    return {**reset, "row": row, "prompt": prompt}


def give_seeds(seed: int) -> None:
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % NUMPY_SEEDS)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _told(error: BaseException) -> str:
    """The error, with the innermost line of the user's: none of ours, of Python's or of an installed package."""
    cause: BaseException | None = error
    frames: list[traceback.FrameSummary] = []
    while cause is not None and not frames:
        found = traceback.extract_tb(cause.__traceback__)
        frames = [frame for frame in found if not frame.filename.startswith(NOT_THE_USERS)]
        cause = cause.__cause__
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"[:4000]


def _packed(answer: Frame) -> bytes:
    try:
        body = packed(answer)
        unpacked(body[4:])
        return body
    except (FrameError, ValueError, TypeError) as error:
        return packed({"error": f"the answer cannot be sent: {error}"[:4000], "late": False})
