"""How long a dataset takes until a run can sample from it, and how much memory: the demo's rows, a million of them.

    python benchmarks/data.py [--rows 100000 1000000]

Cold is read, made into prompts, tokenized, checked and written; warm is found in the run folder; read is a row of the
run's order, out of the memory map. Each line is a fresh process. Memory is its peak (`ru_maxrss`), above what it had
when it had imported everything and loaded the tokenizer. It counts the pages of the memory map that were looked at,
which the kernel takes back when memory is short; "private" leaves them out.

The bounds, for a million rows: 60 s cold, 500 MB above the imports.
"""

import argparse
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples/countdown"))

MB = 1e6
ROWS_READ = 20_000
TIMEOUT_S = 1200.0


def make_dataset(path: Path, num_rows: int) -> None:
    """Rows as `make_data.py` writes them, one at a time."""
    from make_data import all_problems, make_rows

    rng = random.Random(0)
    problems = all_problems(count=3, largest=20)
    with path.open("w", encoding="utf-8") as file:
        rows = itertools.chain.from_iterable(make_rows(problems, len(problems), rng) for _ in itertools.count())
        file.writelines(json.dumps(row) + "\n" for row in itertools.islice(rows, num_rows))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def private_mb() -> float:
    """Anonymous memory now, which no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("RssAnon:"))


def measure(dataset: Path, tokenizer_folder: Path, run_folder: Path) -> dict[str, Any]:
    """Load the rows as a run does, then read some in its order."""
    from grpo_trainer.config.run_config import DataConfig, ModelConfig
    from grpo_trainer.data.order import PromptOrder
    from grpo_trainer.data.rows import load_prompt_rows
    from grpo_trainer.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tokenizer_folder)))
    tokenizer_s, call = 0.0, type(tokenizer).__call__

    def timed_call(*arguments: Any, **options: Any) -> Any:
        nonlocal tokenizer_s
        started = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            tokenizer_s += time.perf_counter() - started

    type(tokenizer).__call__ = timed_call
    imports_mb, imports_private_mb = peak_mb(), private_mb()
    started, started_cpu = time.perf_counter(), time.process_time()
    rows = load_prompt_rows(DataConfig(dataset=str(dataset), recipe="countdown"), tokenizer, folder=run_folder)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    loaded_mb = peak_mb()
    prompts = PromptOrder(rows, seed=42, shuffle=True)
    prompts.row_at(0)
    started = time.perf_counter()
    for position in range(min(ROWS_READ, len(rows))):
        prompts.row_at(position)
    read_us = 1e6 * (time.perf_counter() - started) / min(ROWS_READ, len(rows))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokenizer_s": tokenizer_s,
        "imports_mb": imports_mb,
        "imports_private_mb": imports_private_mb,
        "loaded_mb": loaded_mb,
        "read_us": read_us,
        "read_mb": peak_mb(),
        "private_mb": private_mb(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--measure", type=Path, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return

    from make_model import make_tokenizer

    print(
        "| rows | start | seconds | of them tokenizer | CPU seconds | peak MB, imports | peak MB, above them "
        f"| a row read, µs | peak MB after {ROWS_READ:,} rows read, above imports | of it private | on disk, MB |"
    )
    print(f"|---:|---|{'---:|' * 9}")
    with tempfile.TemporaryDirectory(prefix="grpo-benchmark-") as temporary:
        folder = Path(temporary)
        make_tokenizer().save_pretrained(folder / "tokenizer")
        for num_rows in options.rows:
            dataset, run_folder = folder / f"rows-{num_rows}.jsonl", folder / f"data-{num_rows}"
            make_dataset(dataset, num_rows)
            for start in ("cold", "warm"):
                command = [sys.executable, __file__, "--measure", dataset, folder / "tokenizer", run_folder]
                found = json.loads(subprocess.check_output(command, timeout=TIMEOUT_S))
                kept_mb = found["private_mb"] - found["imports_private_mb"]
                disk_mb = sum(path.stat().st_size for path in run_folder.iterdir()) / MB
                print(
                    f"| {num_rows:,} | {start} | {found['seconds']:.2f} | {found['tokenizer_s']:.1f} "
                    f"| {found['cpu_seconds']:.1f} | {found['imports_mb']:.0f} "
                    f"| {found['loaded_mb'] - found['imports_mb']:.0f} | {found['read_us']:.0f} "
                    f"| {found['read_mb'] - found['imports_mb']:.0f} | {kept_mb:.0f} "
                    f"| {disk_mb:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
