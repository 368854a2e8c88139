"""Rows → prompts, in the order of the run.

sources.py      files, folders, the Hub → rows of plain JSON values
recipes/        what a row asks, one file a dataset
prompts.py      a row → its prompt, as text and as tokens; tokenizer.py
rows.py         the rows of a run file, each a PromptRow (prompt_row.py), ready to sample from
order.py        which row is prompt number n, and its seed
"""
