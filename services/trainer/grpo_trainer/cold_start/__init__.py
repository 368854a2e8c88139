"""Supervised fine-tuning before the first run: `grpo-train cold-start FILE.yaml`.

command.py       the command, around TRL's SFTTrainer
examples.py      rows → prompts with their answers
answer_turn.py   how a chat template writes and ends an answer
"""
