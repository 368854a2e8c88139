"""Rank 0's half of the loop: everything that calls a server.

orchestrator.py      the parts below, put together; event_loop.py the thread in which they run
                     awaited.py: waits for a server at the start; start_checks.py: what a start says at once,
                     wrong_server.py of what is not the server it should be
pipeline.py          groups in flight, staleness, carry-over; refills.py: groups that teach nothing are replaced
rollout.py           rows → groups; places.py: which server takes a request
                     suspects.py: prompts that kill servers are found, named and dropped
reward.py            groups → scores; reward_code.py: the code that computes them must not change
                     prompt_prefix.py: what the prompts have written already
teachers.py          groups → the logprobs of their datasets' teachers
teacher.py           the same of one teacher
fleet.py             which servers are up, and which have our weights
push.py, push_plan.py, push_backend.py
                     the weights to all of them; weight_session.py the process group, lease.py keeps it ours
adapters.py          whether the adapter of a run is pushed, or the model with the adapter added
attendance.py        a failed push: which servers are at fault, and how long a faulty server is left out
canary.py            whether the served policy is the trained policy
evaluation.py        held-out rows
tracing.py           a trace for each group
"""
