"""Answers: where one stands (`place`), its text in one spelling (`plain`), what it is (`reading`), and the `verdict`.

`labels`, `words`, `units` and `formula` read the parts; `equality` and `exact` compare what was read.
"""
