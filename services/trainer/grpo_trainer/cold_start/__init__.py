"""Supervised fine-tuning before the first run: `grpo-train cold-start FILE.yaml`.

command.py   the command, around TRL's SFTTrainer, on the rows of data/demonstrations.py
"""
