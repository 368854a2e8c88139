"""Answers: where one stands (`place`), its text in one spelling (`plain`), what it is (`reading`), if it is right (`verdict`).

`words`, `units` and `formula` read the parts; `equality` and `exact` compare what was read.
"""
