"""What a run file may say, and where each value comes from.

run_config.py   the run file: all its sections but one; section.py: what they have in common
algorithm.py    the section of the algorithm
cold_start.py   the file of a cold start
settings.py     files, environment and flags → one of the two
doubts.py       what is allowed and seldom meant
"""
