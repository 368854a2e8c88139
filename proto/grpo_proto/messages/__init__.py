"""The messages of the wire. The docstring of each message names its sender, its receiver and its route.

base.py      base classes, protocol version, chat message
errors.py    the error body of all services, and the exceptions that a client raises for it
health.py    GET /livez and GET /readyz of every service
reward.py    POST /v1/score, GET /v1/rewards and GET /info of the reward server
rollout.py   POST /v1/rollouts and GET /info of the rollout server
sessions.py  /v1/sessions of the rollout server: open, generate, reward, close, trajectory
sessions_info.py  what GET /info of the rollout server says about its sessions
logprobs.py  POST /v1/logprobs of the rollout server
weights.py   /v1/weights/* of the rollout server: session, begin, commit, abort, renew, close
trainer.py   GET /info of the trainer
"""
