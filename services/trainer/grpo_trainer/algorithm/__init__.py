"""The algorithm, pure: nothing here talks to a server or to DeepSpeed.

sequences.py    the types, in the order the data changes, and the legend of the dimension suffixes
decisions.py    scored groups → what is trained on, with which advantage and weight, in which update
                kl_in_reward.py  what is subtracted from rewards before
                estimators/    rewards → advantages; turn_advantages.py: of each turn
                distillation.py  what a teacher does to the advantages of tokens; teacher_view.py: what it reads
                normalisers/   the weight of a token
staleness.py    turns that are too old are masked
skipping.py     sequences without a gradient are not computed
planning.py     sequences → ranks and micro-batches; named_arrays.py: their way to a rank; batching.py: as tensors there
prefixes.py     each token once: which tokens of a micro-batch several sequences share; attention_layout.py: what
                attention reads of it; sharing_trial.py: sequences that share in every way
image_tokens.py the places of images in a sequence, by names that tell different images apart
demonstrations.py
                what an update imitates beside its samples, and its share of the loss
loss.py         logprobs → the loss of a micro-batch; kl.py: its KL term
                surrogates/    the loss of a token
correction.py   the trainer's over the server's probability; off_policy_mask.py, entropy_mask.py: episodes and tokens
                that are left out
agreement.py    how far two computations of the same logprobs may differ
scores.py       statistics in which null is never 0; spread.py: whether a group has anything to teach
at_k.py         avg@k and pass@k
trial.py        settings that cannot work, and a user's own surrogate on made tokens, before the run begins
reduction.py    metrics that come out the same however a batch is cut
"""
