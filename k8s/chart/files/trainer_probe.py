"""`trainer_probe.py ROUTE`: exit status 0 when the trainer's ROUTE answers 200, 3 for another answer, 4 when it takes
the connection and says nothing, 1 when nobody listens.

Only the first pod has a server.
"""

import os
import sys
import urllib.error
import urllib.request

if os.environ.get("NODE_RANK", "0") != "0":
    sys.exit(0)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # 127.0.0.1 is behind no proxy
try:
    with opener.open(f"http://127.0.0.1:8002{sys.argv[1]}", timeout=5) as answer:
        print(answer.status)
except urllib.error.HTTPError as error:
    print(f"{sys.argv[1]}: {error}", file=sys.stderr)
    sys.exit(3)
except OSError as error:
    print(f"{sys.argv[1]}: {error}", file=sys.stderr)
    sys.exit(4 if isinstance(getattr(error, "reason", error), TimeoutError) else 1)
