"""report.html: a run on one page that opens from disk, without a network.

`python -m grpo_trainer.observe.report RUN_DIR` writes it at any time, also while the run goes on.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from ..atomic_file import write_text_atomically
from .curves import read_curves
from .decisions import read_decisions
from .report_charts import make_charts
from .report_facts import best_checkpoint, config_text, facts_of, headlines_of, read_config
from .report_samples import read_samples
from .run_files import REPORT_FILE


def write_report(run_dir: Path, *, output: Path | None = None) -> Path:
    """Write the page, whole or not at all, and return its path: `output`, or `report.html` in the run folder.

    Reads the run's files once, line by line; memory and page stay small for any length of run. The section of a missing
    file notes that it is missing. Raises OSError when the page cannot be written.
    """
    curves, config = read_curves(run_dir), read_config(run_dir)
    charts = make_charts(curves) if curves.last_step is not None else []
    algorithm = config.get("algorithm")
    masks = isinstance(algorithm, dict) and algorithm.get("mask_truncated_completions") is True
    steps = read_samples(run_dir, mask_truncated=masks)
    environment = Environment(
        loader=PackageLoader("grpo_trainer.observe", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        run=run_dir.resolve().name,
        written=time.strftime("%Y-%m-%d %H:%M"),
        facts=[*facts_of(config, curves), *best_checkpoint(run_dir, curves)],
        headlines=headlines_of(curves),
        charts=charts,
        figures={chart.id: chart.figure for chart in charts if chart.figure is not None},
        steps=steps,
        has_episodes=any(
            one.episode for step in steps for prompt in step.prompts for one in (prompt.best, prompt.worst) if one
        ),
        decisions=read_decisions(run_dir),
        config=config_text(config),
        empty=curves.last_step is None,
        plotly_js=_embeddable(get_plotlyjs()) if charts else "",
        # Only scripts with the nonce may run: text that a model wrote cannot guess it.
        nonce=secrets.token_urlsafe(16),
    )
    path = output or run_dir / REPORT_FILE
    write_text_atomically(path, page)
    return path


def _embeddable(script: str) -> str:
    """Escape the tag that would end the script inside a page."""
    return script.replace("</script", "<\\/script")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_trainer.observe.report", description="Write the report of a run, finished or not."
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of the run, with its metrics.jsonl")
    parser.add_argument("--output", type=Path, metavar="FILE", help="instead of RUN_DIR/report.html")
    options = parser.parse_args(arguments)
    if not options.run_dir.is_dir():
        print(f"error: {options.run_dir} is not a folder; give the run_dir of a run", file=sys.stderr)
        return 1
    try:
        print(write_report(options.run_dir, output=options.output))
    except OSError as error:
        print(f"error: the report cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
