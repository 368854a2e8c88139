"""A rollout server without an engine, which dies, stands still or hangs up at certain prompts. Run it as a script:

    python mortal_server.py PORT LOG INFO BEHAVIOUR

INFO is the JSON of GET /info, less `server_id`; BEHAVIOUR maps the first token of a prompt to `die`, `freeze`, or
`hang up`. Each request becomes a line of LOG: the first tokens of its prompts, and how many requests ran beside it.
The answer to a prompt is a function of its tokens and seed. None is given while a file exists that is named as LOG and
ends in .hold.
"""

import json
import os
import signal
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAUSE_S = 0.1
"""Long enough that requests which are sent together are in flight together."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    info: dict[str, Any]
    behaviour: dict[str, str]
    log: Path
    lock = threading.Lock()
    running = 0

    def do_GET(self) -> None:
        self._answer({"ok": True} if self.path == "/livez" else self.info)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        firsts = [prompt["token_ids"][0] for prompt in request["prompts"]]
        with self.lock:
            type(self).running += 1
            line = {"prompts": firsts, "beside": self.running - 1, "server": self.info["server_id"]}
            with self.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
        time.sleep(PAUSE_S)
        while self.log.with_suffix(".hold").exists():
            time.sleep(0.01)
        for first in firsts:
            match self.behaviour.get(str(first)):
                case "die":
                    os._exit(1)
                case "freeze":
                    os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(60.0)  # the signal may stop this thread a moment later
                case "hang up":
                    self.close_connection = True
        with self.lock:
            type(self).running -= 1
        if not self.close_connection:
            groups = [group_of(prompt, request) for prompt in request["prompts"]]
            self._answer({"groups": groups, "session": request["session"], "server_id": self.info["server_id"]})

    def _answer(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def group_of(prompt: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    token_ids = [(prompt["seed"] + prompt["token_ids"][0]) % 997, 5]
    completion = {
        "token_ids": token_ids, "logprobs": [-0.5, -0.25], "text": str(token_ids), "finish_reason": "stop",
        "versions": [[request["min_version"], 2]],
    }  # fmt: skip
    return {"prompt_token_ids": prompt["token_ids"], "completions": [completion] * request["n"]}


if __name__ == "__main__":
    port, log, info, behaviour = sys.argv[1:]
    Handler.info = json.loads(info) | {"server_id": uuid.uuid4().hex}
    Handler.behaviour, Handler.log = json.loads(behaviour), Path(log)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
