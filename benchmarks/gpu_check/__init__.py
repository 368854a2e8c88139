"""The acceptance of a GPU box: `make gpu-check`, or `python -m benchmarks.gpu_check` (see docs/gpu-check.md).

It stands beside the benchmarks because its figures depend on the machine, as theirs do; it is no test, because most of
it needs hardware that the tests do not have.

check.py      what a check is: a function and what it needs
bounds.py     the bound of every figure, in one table
box.py        what this machine has: GPUs, their memory, packages and versions
checks.py     the table of all checks
runner.py     each check in a process of its own, with a deadline
table.py      the table at the end, gpu-check.json, the exit status
made.py       models of random weights and sequences for them
head.py       the output head against whole logits
losses.py     every loss type against float64 on the CPU
policies.py   policies of random weights, training engines, and batches for them
trained.py    what a few updates of an engine do and cost
updates.py    bf16 against float32, ZeRO-2 and 3 with offload
prefixes.py   each token computed once, against a padded row for each sequence
quantized.py  an adapter on a model in NF4, against the same weights in bf16
throughput.py memory, tokens/s and MFU at three sizes
families.py   pushes to models of several families, as `make families` makes them, eager and in CUDA graphs
whole_run.py  runs through the three services, vLLM on the trainer's GPU: of text, and of pictures
lost_members.py  a trainer and one of two servers, killed and frozen in a push of large tensors
zero3.py      ZeRO-3 over two GPUs against one
several_gpus.py  a push's transfer to a second GPU, its digest, a lost member
pushes.py     pushes to a rollout server: over NCCL, cut off by a kill, into two tensor-parallel GPUs
served.py     a rollout server, and a trainer that pushes to it
"""
