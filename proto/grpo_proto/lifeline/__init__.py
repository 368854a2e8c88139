"""The lifeline: a TCP connection of each worker of a weight session to rank 0, beside the data.

It says who is there (a challenge with the session's secret), carries the keys that a process group forms with, and
tells both ends within seconds that the other one has died or stands still: a backend may notice only at its own limit,
or never. Nothing is pickled.

line.py      one end of a connection: frames, a beat every second, how long the other end has been silent
handshake.py both ends prove that they know the secret
lifeline.py  what both sides have: keys, and the end
crew.py      rank 0: the workers of one session
host.py      rank 0: the listener, for all sessions of a trainer
member.py    a worker: its connection to rank 0
"""

from .crew import Crew
from .host import Host
from .lifeline import Lifeline
from .member import Member

__all__ = ["Crew", "Host", "Lifeline", "Member"]
