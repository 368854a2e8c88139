"""The processes of one trainer.

one_machine.py     start the ranks of one machine; launch.py: those of several, by torchrun
rendezvous.py      wait until rank 0 announces that the run can begin
one_run.py         rank 0's settings and code hold on every machine
process_group.py   join the process group; this rank's device
place.py           where a rank's main thread is; silent_ranks.py: end the run when a rank stands still
crew.py            rank 0 commands, the others follow
ranks.py           broadcast, scatter and gather JSON and arrays
stop_signal.py     SIGTERM, SIGINT and SIGHUP; process_exit.py: end a process that was in a Gloo group
"""
