"""The commands for people who write rewards. Each has a file: list, score, test, bench.

    list_rewards.py  list     what there is
    rescore.py       score    a file of completions, and how its own scores differ
    try_reward.py    test     checks of a reward (checks.py, fuzzing.py, payloads.py, examples.py)
    benchmark.py     bench    scores per second

What they share: options.py (flags), scorers.py (where scores come from), rows.py (files), output.py (tables and JSON).
Each command is a function `run(arguments) → exit status`; what it cannot do it says with ConfigError or CommandFailed.
"""
