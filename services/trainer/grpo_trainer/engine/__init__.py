"""DeepSpeed: the model, its optimizer, its state, and the weights on their way out.

training_engine.py       all of it, put together
model.py, output_head.py the policy; logprob and entropy of each completion token
deepspeed_settings.py, schedule.py, random_state.py, state.py
                         settings, learning rate, random numbers, what a checkpoint says of itself
export.py                the weights, bucket by bucket
"""
