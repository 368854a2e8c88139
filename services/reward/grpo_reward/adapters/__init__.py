"""Routes for the clients of other trainers: a request of theirs becomes a `ScoreRequest`, the scores their answer.

One file per peer, pure functions; what they share is in `base`, `choice`, `label` and `text`. `peers` lists them.
"""
