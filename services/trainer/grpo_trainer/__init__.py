"""The trainer. Read it in this order:

loop.py                      one step, stage by stage; every rank runs it
samples.py                   the data, in the order it changes, and the legend of the dimension suffixes
stages/                      prompt, rollout, reward, advantage, loss, push
conductor.py, pipeline.py    rank 0: all that talks to servers; groups in flight, staleness, carry-over
fleet.py, weight_session.py, lease.py
                             which servers have our weights, the process group with them, and for how long
batching.py, logprobs.py, reduction.py
                             samples → micro-batches → logprobs and entropy → metrics of all ranks
engine.py                    DeepSpeed; its parts: model.py, schedule.py, deepspeed_settings.py, engine_state.py,
                             outgoing.py (weights → buckets), random_state.py
__main__.py → start.py → run.py
                             how a run begins; several ranks: launch.py, meeting.py, process_group.py, ranks.py
config.py, settings.py       what a run file may say, and where each value comes from; doubts.py, dry_run.py: what
                             seldom is meant, what it would do
data.py, sources.py, prompts.py, recipes/
                             rows → prompts; tokenizer.py
checkpoint.py, saving.py, run_folder.py, run_lock.py
                             what a run leaves, and goes on from
blame.py, absences.py        a push that failed: who is at fault, and which server is left out for a while
canary.py, evaluation.py     is the served policy the trained one; held-out rows
reward_code.py               is the code of the rewards still that of the run
journal.py, observe/         all that a run shows of itself
event_loop.py, stop_signal.py, errors.py, ending.py
                             the thread that speaks HTTP, SIGTERM, how a run ends early, and how its process does
cold_start.py, cold_start_config.py, cold_start_data.py
                             supervised fine-tuning before the first run
"""

__version__ = "0.1.0"
