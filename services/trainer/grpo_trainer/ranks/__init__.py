"""The processes of one trainer.

launch.py          the trainer starts itself again, once for each rank
rendezvous.py      rank 0 tells the others that a run can begin
process_group.py   joining the others; this rank's device
crew.py            rank 0 commands, the others follow
ranks.py           JSON and arrays from rank to rank
stop_signal.py     SIGTERM; process_exit.py: the end of a process that was in a Gloo group
"""
