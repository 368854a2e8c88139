"""What a service does with a connection between two requests."""

import http.client
import time
from urllib.parse import urlsplit

IDLE_S = 6.0
"""Longer than httpx keeps a connection, and the OpenAI and Anthropic clients with it."""


def assert_kept(url: str) -> None:
    """Two requests on one connection, as a client sends that was busy meanwhile."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20.0)
    connection.connect()
    connection.auto_open = 0  # or it would connect again without a word
    try:
        for pause_s in (0.0, IDLE_S):
            time.sleep(pause_s)
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
    finally:
        connection.close()
