"""The rollout server: vLLM's own API server, with routes that sample groups and routes that take new weights."""

__version__ = "0.1.0"
