"""What a run leaves, and goes on from.

run_folder.py, run_lock.py   the folder of a run, and the one trainer in it
saving.py                    checkpoints and the final model, with all ranks
files.py                     a checkpoint is whole or not there
"""
