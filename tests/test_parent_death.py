"""A killed run of the tests leaves no service."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import gone_within

ROOT = Path(__file__).parents[1]
STARTS = """
import sys, time
from pathlib import Path
from tests.processes import service
from tests.warm_python import WarmPython
sleeps, log, warm = Path(sys.argv[1]), Path(sys.argv[2]), WarmPython("json") if sys.argv[3:] else None
with service([sleeps] if warm else [sys.executable, sleeps], log, port=1, python=warm) as running:
    print(running.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("warm", [(), ("warm",)], ids=["spawned", "forked"])
def test_a_service_ends_with_the_killed_process_that_started_it(tmp_path: Path, warm: tuple[str, ...]) -> None:
    sleeps = tmp_path / "sleeps.py"
    sleeps.write_text("import time\nprint('sleeps', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-c", STARTS, sleeps, tmp_path / "log", *warm]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as starter:
        assert starter.stdout is not None
        service = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    assert gone_within([service], 20.0)
