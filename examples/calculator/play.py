"""Play held-out games with a saved model, by transformers alone.

    python -m examples.calculator.play runs/demo-episodes/cold-start --at-least 0.05

Prints the share of games that end with the right answer. With `--at-least` a smaller share is an error: what is never
sampled is never rewarded, so GRPO would have nothing to strengthen.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from examples.calculator.game import Game, calc
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from grpo_trainer.data.sources import read_rows

MAX_TURNS, MAX_TURN_TOKENS = 4, 24
CALL = re.compile(r'<tool_call>{"name": "calc", "arguments": {"expr": "([^"]*)"}}</tool_call>')


@dataclass
class Played:
    """A game and its text so far, which is the next prompt."""

    game: Game
    text: str
    said: list[str] = field(default_factory=list)
    reward: float = 0.0


class Policy:
    """A saved model that plays. `greedy`: the likeliest token each time, in place of a sampled one."""

    def __init__(self, folder: str, *, greedy: bool):
        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.how: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0, "top_p": 1.0}

    def play(self, rows: Sequence[dict[str, Any]]) -> list[Played]:
        """Play one game for each row, all side by side."""
        played = []
        for row in rows:
            game = Game()
            question = {"role": "user", "content": game.reset(row, 0)}
            played.append(Played(game, self.tokenizer.apply_chat_template([question], tokenize=False)))
        going = played
        for _ in range(MAX_TURNS):
            going = [one for one, text in zip(going, self.say(going), strict=True) if self.goes_on(one, text)]
            if not going:
                break
        return played

    def say(self, played: list[Played]) -> list[str]:
        """The next message of each, with its end."""
        opening = "<|im_start|>assistant\n"
        prompts = [one.text + opening for one in played]
        batch = self.tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
        answers = self.model.generate(**batch, max_new_tokens=MAX_TURN_TOKENS, **self.how)
        texts = self.tokenizer.batch_decode(answers[:, batch["input_ids"].shape[1] :])
        return [opening + text.replace(self.tokenizer.pad_token, "") for text in texts]

    def goes_on(self, one: Played, message: str) -> bool:
        """Take a message into the game. Returns whether it was a call, so that another one follows."""
        end = self.tokenizer.eos_token
        text = message.partition("\n")[2].removesuffix(end)
        one.said.append(text)
        call = CALL.fullmatch(text)
        if call is None:
            _, one.reward, _ = one.game.step({"role": "assistant", "content": text})
            return False
        result = calc(call[1])
        one.said.append(result)
        one.text += f"{message}<|im_start|>tool\n{result}{end}"
        return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a saved model")
    parser.add_argument("--rows", type=Path, default=Path("runs/demo-episodes/data/held_out.jsonl"))
    parser.add_argument("--games", type=int, default=500)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--at-least", type=float, default=0.0)
    arguments = parser.parse_args(argv)
    torch.manual_seed(0)
    rows = list(read_rows(f"{arguments.rows}#{arguments.games}", "train"))
    played = Policy(arguments.folder, greedy=arguments.greedy).play(rows)
    share = sum(one.reward for one in played) / len(played)
    print(f"{arguments.folder}: {share:.3f} of {len(played)} held-out games end with the right answer")
    if share < arguments.at_least:
        sys.exit(
            f"error: {share:.3f} is below {arguments.at_least:g}: GRPO strengthens what is sampled sometimes, and here "
            "nearly nothing is right\nhint: raise max_steps in examples/calculator/cold_start.yaml, or change its seed"
        )


if __name__ == "__main__":
    main()
