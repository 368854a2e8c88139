"""What the clients of other trainers send."""

from typing import Any

RIGHT = "<think>2/4 + 1/4</think><answer>3/4</answer>"


def gym_row(text: str, **task: Any) -> dict[str, Any]:
    """What its agent posts: the row of the dataset as it dumps it, with the response of the model server."""
    message = {
        "id": "msg_1",
        "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3],
        "generation_log_probs": [-0.5],
    }
    return {
        "responses_create_params": {
            "background": None,
            "input": [{"content": [{"type": "input_text", "text": "What?"}], "role": "user", "type": "message"}],
            "instructions": None,
            "temperature": 1.0,
        },
        "response": {
            "id": "resp_1", "created_at": 1.5, "error": None, "incomplete_details": None, "model": "m", "usage": None,
            "object": "response", "output": [{"id": "r", "type": "reasoning", "summary": []}, message],
            "status": "completed",
        },
        "agent_ref": {"name": "simple_agent"},
        **task,
    }  # fmt: skip
