"""The output of a run: files, trackers, terminal and pages.

metrics.py       groups → the numbers of a step, under TRL's names; dynamic_sampling.py: of what it replaced,
                 dataset_metrics.py: of each dataset, episode_metrics.py: of episodes, and where their tokens went
stage_clock.py   seconds per stage
run_status.py    the state that the loop reports; the HTTP routes read snapshots of it

files:           run_files.py has their names; jsonl.py; completions.py, summary.py, run_log.py
trackers:        sinks.py writes a step to each *_sink.py, background_sink.py in a separate thread; run_identity.py
terminal:        progress.py
HTTP:            server.py, routes.py, prometheus.py
live page:       live_page.py, live_guard.py, live_events.py; live_view.py from live_history.py, live_groups.py
                 and live_warnings.py
report:          report.py from curves.py, thinned.py, report_charts.py, report_facts.py and report_samples.py;
                 episode_shown.py has the conversation of an episode, for both pages
rules, warnings: learning.py judges the last steps, with repetition.py and missing_scores.py; decisions.py keeps
                 what was decided; standing_still.py
"""
