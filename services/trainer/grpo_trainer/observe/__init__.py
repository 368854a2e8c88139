"""What a run shows of itself: metrics, completions, progress, its own HTTP routes and the report.

metrics.py       groups → the numbers of a step, under TRL's names
stage_clock.py   seconds per stage
jsonl.py         append-only files of steps that a resumed run can cut back
sinks.py         where the numbers go: metrics.jsonl, tensorboard_sink.py, wandb_sink.py
completions.py   completions.jsonl
progress.py      a bar on a terminal, a line per step elsewhere
run_status.py    what the loop tells; server.py, routes.py, prometheus.py: what the outside sees of it
summary.py       summary.json; report.py the page
run_log.py       logging
"""
