"""Rank 0's half of the loop: everything that talks to a server.

orchestrator.py      the parts below, put together; event_loop.py the thread in which they run
pipeline.py          groups in flight, staleness, carry-over
rollout.py           rows → groups
reward.py            groups → scores; reward_code.py: by the code the run began with
fleet.py             which servers have our weights
push.py, push_plan.py
                     the weights to all of them; weight_session.py the group they travel in, lease.py for how long
blame.py, absences.py
                     a push that failed: who is at fault, and which server is left out for a while
canary.py            is the served policy the trained one
evaluation.py        held-out rows
tracing.py           a trace for each group
"""
