"""Imports what a rollout server imports, in the environment that it sets before: for the fork server of `warm_vllm`.

Each fork has vLLM call our plugin anew. An engine that is forked of a server would otherwise take it as called, and
outlive the server.
"""

import os
from importlib import import_module

from grpo_rollout.options import prepare_environment
from tests.rollout.pace import pace_engines


def load_plugins_anew() -> None:
    import_module("vllm.plugins").plugins_loaded = False


prepare_environment()
import_module("grpo_rollout.server")
pace_engines()
os.register_at_fork(after_in_child=load_plugins_anew)
