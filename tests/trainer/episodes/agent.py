"""A program as somebody else writes it: it speaks OpenAI's API by the standard library, and knows nothing of us."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def chat(messages: list[dict[str, str]]) -> str:
    request = urllib.request.Request(  # noqa: S310
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": "mine", "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text


def main() -> None:
    row = json.load(sys.stdin)
    assert row == json.loads(Path(os.environ["GRPO_ROW"]).read_text())
    print("variables:", *sorted(os.environ))
    messages = [{"role": "user", "content": "Hello"}]
    try:
        for _ in range(row["turns"]):
            said = chat(messages)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on"}]
    except urllib.error.HTTPError as refused:
        if refused.code != 400 or row.get("crashes"):
            raise
    if row.get("leaves"):
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(row["leaves"]).write_text(str(left.pid))
    time.sleep(row.get("waits_s", 0))
    print(json.dumps({"rewards": row.get("rewards", {"won": 0.5, "tidy": None})}))
    sys.exit(row.get("exit", 0))


main()
