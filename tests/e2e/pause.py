"""A callback that has the run wait after each step."""

import time


def pause(step, metrics, *, seconds):
    time.sleep(seconds)
