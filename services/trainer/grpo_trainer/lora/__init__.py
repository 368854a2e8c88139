"""LoRA: an adapter of low rank on a frozen model, for runs and for the cold start.

adapter.py   put the adapter on a model; its tensors by PEFT's names; the model with the adapter switched off
nf4.py       the frozen linear layers in four bits a weight, for QLoRA
merging.py   what the adapter adds to each parameter of the model, in float32
files.py     adapter folders as PEFT saves them, their model cards, and the digest of the model below
"""
