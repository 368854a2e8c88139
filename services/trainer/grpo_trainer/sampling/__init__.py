"""Groups, scored and taught: everything above the servers.

sampler.py           the one protocol: rows → groups
single_turn.py       its first implementation: a prompt and its completion
                     suspects.py: prompts that kill servers are found, named and dropped
pipeline.py          groups in flight, staleness, carry-over; refills.py: groups that teach nothing are replaced
                     dropped.py: what was sampled and enters no batch; batch.py: what it hands over
evaluation.py        held-out rows
reward.py            groups → scores; reward_code.py: the code that computes them must not change
                     prompt_prefix.py: what the prompts have written already
teachers.py          groups → the logprobs of their datasets' teachers
teacher.py           the same of one teacher
tracing.py           a trace for each group
"""
