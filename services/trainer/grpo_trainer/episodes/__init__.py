"""Episodes of several turns, below the trainer's sampler: one call plays one episode against one rollout server.

identity.py   the name of an episode's session, and its seeds
played.py     an episode that has ended, as the trainer's types
"""
