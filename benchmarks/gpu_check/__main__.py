"""Check what only a GPU can show, and print a table with bounds; a machine-readable copy goes to gpu-check.json.

    python -m benchmarks.gpu_check [--only NAME …] [--json FILE]
    python -m benchmarks.gpu_check --device cpu --tiny      a trial of the checks themselves

Exit status: 0 all that ran is within its bounds; 1 something is not, or failed; 3 nothing was checked (no GPU);
130 after Ctrl-C, with a table of the checks that ran.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from .box import Box
from .check import Check, Figures
from .checks import CHECKS
from .runner import ROOT, CheckFailedError, child_environment, in_a_child, in_this_process, run_checks
from .table import as_json, exit_status, table, with_earlier

INTERRUPTED = 128 + signal.SIGINT


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a trial, only with --tiny")
    parser.add_argument("--tiny", action="store_true", help="shapes that a CPU computes in a second")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), metavar="NAME", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="where the copy of the table goes")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.tiny != (options.device == "cpu"):
        parser.error("--device cpu and --tiny belong together: a CPU says nothing about the shapes that are checked")
    if options.child:
        # A stop unwinds the check, which stops what it started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        status = answer(options.child[0], Path(options.child[1]), options.device, tiny=options.tiny)
        # Run no destructors: those of a NCCL group whose peer is gone would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return report([CHECKS[name] for name in options.only or CHECKS], options.device, options.json, tiny=options.tiny)


def report(checks: list[Check], device: str, file: Path, *, tiny: bool) -> int:
    """Run the checks, print the table and write its copy to `file`. Returns the exit status."""
    results, box = [], box_seen_from(device)

    def measure(check: Check) -> Figures:
        print(f"== {check.name}: {check.title}", file=sys.stderr, flush=True)
        return in_a_child(check, device=device, tiny=tiny)

    interrupted = False
    try:
        for result in run_checks(checks, box, measure, trial=tiny):
            results.append(result)
            outcome = ": ".join(filter(None, [result.outcome, result.reason]))
            print(f"== {result.check.name}: {outcome} ({result.seconds:.0f} s)", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print("== interrupted: the other checks did not run", file=sys.stderr, flush=True)
    status = INTERRUPTED if interrupted else exit_status(results)
    print(table(results, box, trial=tiny))
    file.write_text(json.dumps(with_earlier(as_json(results, box, trial=tiny, status=status), file), indent=1) + "\n")
    return status


def box_seen_from(device: str) -> Box:
    command = [sys.executable, "-m", "benchmarks.gpu_check.box"]
    found = subprocess.run(
        command, cwd=ROOT, env=child_environment(device), check=True, capture_output=True, text=True, timeout=120.0
    )
    return Box(**json.loads(found.stdout.splitlines()[-1]))


def answer(name: str, file: Path, device: str, *, tiny: bool) -> int:
    """Run one check here, and write its figures, or its error, into `file`."""
    check: Check = CHECKS[name]
    try:
        file.write_text(json.dumps({"figures": dict(in_this_process(check, device, tiny=tiny))}))
    except CheckFailedError as error:
        file.write_text(json.dumps({"error": str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
