"""The algorithm, pure: nothing here talks to a server or to DeepSpeed.

sequences.py    the types, in the order the data changes, and the legend of the dimension suffixes
advantages.py   groups → advantages → what is trained on
batching.py     samples → optimizer updates → micro-batches of each rank
loss.py         logprobs and advantages → loss and metrics
scores.py       statistics in which null is never 0
reduction.py    metrics that come out the same however a batch is cut
"""
