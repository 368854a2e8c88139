"""The files that a run writes and resumes from.

run_folder.py, run_lock.py   the folder of a run, and the lock that admits a single trainer
saving.py                    checkpoints and the final model, with all ranks
file_writer.py               the files of one rank, at once or while training goes on
files.py                     the files of a checkpoint: complete or absent
space.py                     whether the disk has room for the next checkpoint
continuity.py                what else a run has in common with its checkpoint: seed, rows, model, the user's own files
rollbacks.py                 how often the run went back, and which checkpoints that abandoned
best.py                      which checkpoint is the best, and when no better one is to be expected
"""
