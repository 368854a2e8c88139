"""Supervised fine-tuning before the first run: `grpo-train cold-start FILE.yaml`.

command.py    the command, around TRL's SFTTrainer
examples.py   rows → prompts with their answers
"""
