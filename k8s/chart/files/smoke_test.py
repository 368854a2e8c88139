"""What `helm test` runs: one score, one sampled group from every rollout server, and whether weights arrive.

Environment: GRPO_API_TOKEN, REWARD_URL, SCORE, ROLLOUT_URLS (by commas), TRAINER_URL, LIMIT_S, CA_FILE. An empty URL is
left out. It asks until LIMIT_S has passed, since a server may still be loading; what fails last is what it says. It
trusts the usual authorities, and those in CA_FILE if there is such a file.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

RETRY_S = 5.0


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of an answer. Raises OSError, with the server's own words when it refuses."""
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())  # noqa: S310
    request.add_header("Authorization", f"Bearer {os.environ['GRPO_API_TOKEN'].strip()}")
    request.add_header("Content-Type", "application/json")
    # Proxies of the environment are for the world outside.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted())
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.code} {error.read(500).decode(errors='replace')}") from error
    except OSError as error:
        raise OSError(f"{url}: {error}") from error


def trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if os.path.exists(os.environ["CA_FILE"]):
        context.load_verify_locations(os.environ["CA_FILE"])
    return context


def score(url: str) -> str:
    results = ask(f"{url}/v1/score", json.loads(os.environ["SCORE"]))["results"]
    if not results or any(result["total"] is None for result in results):
        raise OSError(f"{url}: no score: {results}")
    return f"reward: {len(results)} scored, total {results[0]['total']}"


def sample(url: str) -> str:
    body = {
        "request_id": f"helm-test-{time.time_ns()}",
        "n": 2,
        "prompts": [{"token_ids": [1], "seed": 7}],
        "sampling": {"max_tokens": 4},
    }
    completions = ask(f"{url}/v1/rollouts", body)["groups"][0]["completions"]
    if len(completions) != 2 or any(not completion["token_ids"] for completion in completions):
        raise OSError(f"{url}: no group of two completions: {completions}")
    return f"rollout {url}: sampled 2"


def pushed(url: str, trainer: str) -> str:
    """Weights are as loaded, or current; and current once the trainer says that it has pushed."""
    weights = ask(f"{url}/v1/weights")
    if weights["state"] not in ("initial", "loading", "current"):
        raise OSError(f"{url}: weights are {weights['state']}: {weights['reason']}")
    # A trainer that is done does not answer any more, and what it pushed is still there.
    if trainer and weights["state"] == "initial":
        try:
            info = ask(f"{trainer}/info")
        except OSError as error:
            raise OSError(f"{url} has the weights it loaded, and the trainer does not answer: {error}") from error
        if info["policy_version"]:
            raise OSError(f"{url}: the trainer is at version {info['policy_version']} and never pushed here")
    return f"rollout {url}: weights {weights['state']}, version {weights['version']}"


def main() -> int:
    reward, trainer = os.environ["REWARD_URL"], os.environ["TRAINER_URL"]
    rollouts = [url for url in os.environ["ROLLOUT_URLS"].split(",") if url]
    checks = [lambda: score(reward)] if reward else []
    checks += [lambda url=url: sample(url) for url in rollouts]
    checks += [lambda url=url: pushed(url, trainer) for url in rollouts]
    deadline_s = time.monotonic() + float(os.environ["LIMIT_S"])
    for check in checks:
        while True:
            try:
                print(check(), flush=True)
                break
            except OSError as error:
                if time.monotonic() > deadline_s:
                    print(f"error: {error}", file=sys.stderr)
                    return 1
                print(f"not yet: {error}", flush=True)
                time.sleep(RETRY_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
