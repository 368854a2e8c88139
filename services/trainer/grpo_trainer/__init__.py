"""The trainer. Read it in this order:

loop.py          one step, stage by stage: the script of rank 0; guarding.py, what it does when a rule is broken;
                 rollback.py, the way back to an earlier checkpoint; callbacks.py, a user's own code beside it
sharing.py       whether shared prefixes compute what padded rows do, tried before the first step
parts.py         every rank's part of a batch
rank_work.py     what every rank does when rank 0 commands it; crew_export.py, the weights of all of them
algorithm/       pure: sequences, advantages, losses, normalisers, batching
orchestrator.py  rank 0: all that calls a server, put together
episodes/        rows → groups of episodes: environments, tools, programs
sampling/        rows → groups, scored; above
fleet/           the rollout servers, and the weights that they have
engine/          DeepSpeed
lora/            an adapter on a frozen model
data/            rows → prompts
config/          what a run file may say
ranks/           the processes of one trainer
checkpoint/      what a run leaves, and goes on from
cold_start/      supervised fine-tuning before the first run; quantize_base.py, the model below an adapter in four bits;
                 merge_adapter.py, the sum of both
imports/         the commands of other trainers become run files
observe/         what a run shows of itself; journal.py tells it, live_sources.py lets the live page read the servers
__main__.py → start.py → run.py
                 how a run begins; prepared.py, what it and a dry run do before the model is loaded; dry_run.py, what a
                 run would do; evaluate.py, what is served now, on a run's held-out rows; launch.py is torchrun with our
                 exit status
errors.py, atomic_file.py, kept_identity.py, model_files.py, model_class.py, group_trace.py, extension.py, parameters.py
                 how a run ends early; files that are whole; who a run is; the files of a saved model, and which class
                 loads one; the trace of a group; a user's own as FILE.py:NAME, and what a run file gives it

A folder imports only from those below it: `tests/test_architecture.py` holds the arrows.
"""

__version__ = "0.1.0"
