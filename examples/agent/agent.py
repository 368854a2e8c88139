"""Answer one question with a calculator, by the stock client of OpenAI's API.

The question's numbers come as JSON on stdin. The last line on stdout is what the answer is worth.
"""

import json
import sys

from openai import BadRequestError, OpenAI

NUMBERS = json.load(sys.stdin)
CALC = {
    "name": "calc",
    "description": "Calculate.",
    "parameters": {"type": "object", "properties": {"expr": {"type": "string"}}, "required": ["expr"]},
}


def calc(arguments: str) -> str:
    try:
        left, _, right = json.loads(arguments)["expr"].partition("*")
        return str(int(left) * int(right))
    except (ValueError, TypeError, KeyError, AttributeError):
        return "error"


def ask(question: str) -> str:
    client = OpenAI()
    messages = [{"role": "user", "content": question}]
    while True:
        answer = client.chat.completions.create(
            model="any", messages=messages, tools=[{"type": "function", "function": CALC}]
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = calc(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


try:
    found = ask(f"What is {NUMBERS['a']}*{NUMBERS['b']}?")
except BadRequestError:  # out of turns or tokens: no answer
    found = ""
print(json.dumps({"rewards": {"right": float(found.strip() == str(NUMBERS["a"] * NUMBERS["b"]))}}))
