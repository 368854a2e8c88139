"""Episodes of several turns.

sampler.py      the trainer's `Sampler` of them: which episode is played where, and again; groups

Below it one call plays one episode on one rollout server:

runner.py       what a sampler calls: one episode, from its reset to its end
environments.py … played by Python code: an environment, tools alone, a class for TRL
programs.py     … played by a program that speaks OpenAI's API
recording.py    the session of an episode: opened, closed, read, forgotten
identity.py     the name of an episode's session, and its seeds
played.py       an episode that has ended, as the trainer's types

The process of each episode:

processes.py    the trainer's side: start processes, call them, end them
nursery.py      the process that imports the users' files, and of which all are forked; output.py: what they print;
                kept_logs.py: the files of that;
                kinship.py: whose child is whose, and how processes end together; frames.py: the messages between them
child.py        one episode's process: it calls the user's code; time_limit.py: for a limited time
plays.py        an environment, tools alone, a class for TRL; tools.py: functions that the policy calls
swift_plays.py  classes for ms-swift: an environment of its gym, a scheduler of turns
reward_functions.py  functions written for TRL that pay by the state of an environment
messages.py     the messages that a user's code returns, checked and cut; pictures.py: the images in them
"""
