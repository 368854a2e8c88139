"""Typed HTTP clients of the reward server and the rollout server.

clients.py        one class for each server's routes: timeouts, backoff, retry budget
sessions.py       the routes of one recorded session of a rollout server
answer.py         read an answer within a limit, and turn it into a message or an exception
certificates.py   the certificate authorities that a client trusts
"""
