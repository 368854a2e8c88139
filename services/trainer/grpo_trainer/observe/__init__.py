"""What a run shows of itself.

metrics.py       groups → the numbers of a step, under TRL's names
stage_clock.py   seconds per stage
run_status.py    what the loop tells, and takes snapshots of; what all the pages below read

files:           run_files.py their names; jsonl.py; completions.py, summary.py, run_log.py
trackers:        sinks.py hands a step to each *_sink.py, background_sink.py in a thread of its own; run_identity.py
terminal:        progress.py
HTTP:            server.py, routes.py, prometheus.py
live page:       live_page.py, live_guard.py, live_events.py; live_view.py from live_history.py, live_groups.py
                 and live_warnings.py
report:          report.py from curves.py, thinned.py, report_charts.py, report_facts.py and report_samples.py
signs:           learning.py, missing_scores.py, standing_still.py
"""
