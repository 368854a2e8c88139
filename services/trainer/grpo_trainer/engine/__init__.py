"""DeepSpeed: the model, its optimizer, its state, and the export of its weights.

training_engine.py       the parts below, put together
model.py, policy.py, output_head.py
                         loads the policy; logprob and entropy of each completion token
vision_tower.py          what the model's vision tower makes of images, and how it learns
images.py, sight.py      images as a decoder reads them; the towers of policy and reference
trained_parameters.py    which of the model's parameters are trained, where a run file freezes some
family.py                the configuration of the model's family
rope.py                  the context up to which the model's rotary embedding does not depend on the length
shared_attention.py      attention over rows in which sequences share their beginnings
sequence_parallel.py     rows that several ranks compute together
prefix_sharing.py        for which families, and what it keeps
load_balancing.py        the load-balancing loss of a mixture of experts
batch_loss.py            the loss of a micro-batch, in one pass through the output head or in two
own_logprobs.py          the logprobs that the canary compares
imitation.py             the loss of demonstrations beside the samples
optimizers.py            the optimizer: which parameters it decays, and the learning rate of each
deepspeed_settings.py, schedule.py, random_state.py, state.py
                         settings, learning rate, random numbers, engine.json of a checkpoint
one_reduction.py         gradients that are reduced once an update under ZeRO-3
entropy_coefficient.py   the weight of the entropy bonus from update to update
skipped_updates.py, write_errors.py
                         gradients that are not finite; write errors that wait for the other ranks
saved_state.py           saves and loads all that a run goes on from
deepspeed_start.py       DeepSpeed around a model
deepspeed_import.py      DeepSpeed without what it imports for nothing
deepspeed_files.py       loads DeepSpeed's files as data, not as programs
reshaping.py             the optimizer's state for another number of ranks
reference.py             a reference model that follows the policy
export.py                the weights, bucket by bucket
"""
