"""Rows → prompts, in the order of the run.

sources.py      files, folders, the Hub → rows of plain JSON values; splits.py: which files of a folder
formats.py      the rows of one file: csv_file.py, json_text.py; values.py has the values
recipes/        what a row asks, one file a dataset
prompts.py      a row → its prompt, as text and as tokens; tokenizer.py
messages.py     … of which messages are read here; rendering.py: prompts → token ids by the chat template
first_row.py    what is odd about the tokens of the first prompt; turn_end.py: do servers stop where an answer ends
images.py       the images of a row, and their places in its messages; sent_images.py: how they are sent;
                image_files.py: files of images, and base64
columns.py      which columns there must be; same_prompt.py: no template makes one prompt of all rows
teacher_prompts.py
                what a teacher reads in place of a row's prompt
demonstrations.py
                rows → prompts with their answers; answer_turn.py: how a chat template writes and ends an answer
batches.py      all rows → prompts and tokens, checked, some hundred at a time
row_store.py    … kept on disk, and read one at a time, each a PromptRow (prompt_row.py)
rows.py         the rows of a dataset, ready to sample from: out of the run folder, or made; episode_rows.py: without
                prompts, or numbers alone
run_rows.py     the rows of all datasets of a run file; repeats.py: those that stand more than once
mixture.py      which dataset prompt number n is from, by the ratios
order.py        which row is prompt number n, and its seed; difficulty.py: which rows an epoch passes over
"""
