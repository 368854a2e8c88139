"""Which rollout servers there are, and what they have: below what samples from them.

fleet.py             which servers are up, and which have our weights; places.py: which of them takes a request
needs.py             what a run needs of them; adapters.py: whether its adapter is pushed, or the model with it added
event_loop.py        the thread in which everything that calls a server runs
awaited.py           waits for servers at the start; start_checks.py: what a start says at once,
                     wrong_server.py of what is not the server it should be
push.py, push_plan.py, push_backend.py
                     the weights to all of them; weight_session.py the process group, lease.py keeps it ours
attendance.py        a failed push: which servers are at fault, and how long a faulty server is left out
canary.py            whether the served policy is the trained policy
"""
