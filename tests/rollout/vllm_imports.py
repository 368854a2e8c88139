"""Imports what a rollout server imports, in the environment that it sets before: for the fork server of `warm_vllm`."""

from importlib import import_module

from grpo_rollout.options import prepare_environment

prepare_environment()
import_module("grpo_rollout.server")
