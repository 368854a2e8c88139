#!/bin/sh
# The leader of an engine over several pods: Ray's head, then the server once all pods are there.
# Environment: ENGINE_NODES, JOIN_TIMEOUT_S. Arguments: those of grpo-rollout.
set -eu
ray start --head --port=6379 --include-dashboard=false --disable-usage-stats
export RAY_ADDRESS=auto
python3 - <<'PYTHON'
import os
import sys
import time

import ray

wanted, limit_s = int(os.environ["ENGINE_NODES"]), float(os.environ["JOIN_TIMEOUT_S"])
ray.init(log_to_driver=False)
deadline_s = time.monotonic() + limit_s
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline_s:
        sys.exit(f"error: {there} of {wanted} pods of this engine joined within {limit_s:.0f} s; are all of them scheduled?")
    print(f"{there} of {wanted} pods have joined", flush=True)
    time.sleep(5)
PYTHON
exec grpo-rollout "$@"
