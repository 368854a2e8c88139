"""How many files a server may have open."""

import resource
import subprocess
import sys

import pytest

ASK = """
import resource
from grpo_proto.server.listening import ask_for_files, most_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
ask_for_files(300)
print(most_files())
"""


@pytest.mark.parametrize(("soft", "hard", "found"), [(100, 400, 300), (100, 200, 200), (350, 400, 350)])
def test_a_server_asks_for_the_files_that_it_may_have(soft, hard, found):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 400:
        pytest.skip("this process may not have as many itself")
    script = ASK.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == found
