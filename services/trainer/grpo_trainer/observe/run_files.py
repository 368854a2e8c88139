"""Names of the files in a run folder that are written here or read for the report."""

METRICS_FILE = "metrics.jsonl"
COMPLETIONS_FILE = "completions.jsonl"
EVAL_COMPLETIONS_FILE = "eval_completions.jsonl"
DECISIONS_FILE = "decisions.jsonl"
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
CONFIG_FILE = "run.yaml"
