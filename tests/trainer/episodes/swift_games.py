"""Classes as people write them for ms-swift; nothing here knows of this project."""

import asyncio
import json
from pathlib import Path

from swift.infer_engine.protocol import RolloutInferRequest
from swift.rewards import ORM, orms
from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import GYMScheduler, MultiTurnScheduler, multi_turns
from swift.template import Messages
from swift.utils import get_logger

logger = get_logger()


class Guess(Env):
    def __init__(self, env_config):
        super().__init__(env_config)
        self.close_to = env_config.get("closed")

    async def reset(self, config: RolloutInferRequest):
        await asyncio.sleep(0)
        self.number = str(config.data_dict["number"])
        asked = config.messages[-1]["content"] if config.messages else "Guess."
        return asked, {"number": self.number}, self.env_config.get("system")

    async def step(self, action: Messages):
        await asyncio.sleep(0)
        said = action[-1]["content"]
        if "bug" in said:
            raise KeyError("bug")
        if "sleep" in said:
            await asyncio.sleep(600)
        won = self.number in said
        roles = "".join(message["role"][0] for message in action)
        return f"No, {roles}.", None if "pass" in said else 1.0 if won else -0.25, won, {"won": won}

    async def close(self):
        if self.close_to:
            Path(self.close_to).write_text("closed")  # noqa: ASYNC240


class Silent(Guess):
    async def step(self, action: Messages):
        return "Hm.", 0.0, len(action) > 3


class Duck:
    """Is derived of nothing; forgets what it has heard."""

    def __init__(self, env_config):
        pass

    async def reset(self, config: RolloutInferRequest):
        return "Say anything.", {}, None

    async def step(self, action: Messages):
        roles = "".join(message["role"][0] for message in action)
        action.clear()
        return roles, 0.0, False, {}


class Tips(MultiTurnScheduler):
    """Gives one tip; remembers what it was shown."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.shown = []

    async def on_trajectory_start(self, requests):
        requests[0].messages.append({"role": "user", "content": f"At most {self.max_turns} turns."})

    async def on_turn_end(self, infer_request, response_choice, current_turn):
        self.shown.append((current_turn, response_choice.finish_reason, len(response_choice.token_ids)))
        return {"rollout_infos": {"shown": len(self.shown)}}

    def check_finished(self, infer_request, response_choice, current_turn):
        if infer_request.data_dict["solution"] in response_choice.message.content:
            return True
        return super().check_finished(infer_request, response_choice, current_turn)

    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "user", "content": json.dumps(self.shown)})
        return {"infer_request": infer_request, "response_token_ids": response_choice.token_ids}


class Paying(Tips):
    async def on_turn_end(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "user", "content": "Go on."})
        return {"done": current_turn == 2, "rollout_infos": {"total_reward": current_turn / 4}}

    def step(self, infer_request, response_choice, current_turn):
        return {"infer_request": infer_request}


class PaidByStep(MultiTurnScheduler):
    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "user", "content": "Go on."})
        return {"infer_request": infer_request, "rollout_infos": {"total_reward": current_turn / 2}}


class Painting(PaidByStep):
    async def on_trajectory_start(self, requests):
        requests[0].images.append("cat.png")


class Patient(GYMScheduler):
    """Halves what its environment pays, and greets."""

    async def on_trajectory_start(self, requests):
        await super().on_trajectory_start(requests)
        requests[0].messages[-1]["content"] += " Good luck."

    async def on_turn_end(self, infer_request, response_choice, current_turn):
        found = await super().on_turn_end(infer_request, response_choice, current_turn)
        found["rollout_infos"]["total_reward"] /= 2
        return found


class Rewriting(MultiTurnScheduler):
    """Does what a row names to the policy's own words."""

    def step(self, infer_request, response_choice, current_turn):
        does, ids = infer_request.data_dict["does"], response_choice.token_ids
        if does == "edits":
            infer_request.messages[-1]["content"] += " But wait."
        elif does == "continues":
            infer_request.messages.append({"role": "assistant", "content": "But wait"})
            return {"infer_request": infer_request}
        elif does == "images":
            infer_request.images.append("cat.png")
        elif does == "tokenizes":
            ids.extend(self.tokenizer.encode("42", add_special_tokens=False))
        infer_request.messages.append({"role": "user", "content": "Go on."})
        found = {"infer_request": infer_request}
        if does == "ids":
            ids.append(7)
            found["response_token_ids"] = ids
        if does == "masks":
            found |= {"response_token_ids": ids, "response_loss_mask": [0] * len(ids)}
        return found


class Sampling(MultiTurnScheduler):
    async def run(self, infer_request, request_config, **kwargs):
        return await self.infer_engine.infer_async(infer_request, request_config)

    def step(self, infer_request, response_choice, current_turn):
        return {"infer_request": infer_request}


class Polite(ORM):
    def __call__(self, completions, **kwargs):
        return [float("please" in text) for text in completions]


envs["guess"] = Guess
envs["silent"] = Silent
envs["duck"] = Duck
multi_turns["tips"] = Tips
orms["polite"] = Polite
