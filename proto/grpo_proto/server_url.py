"""What is the URL of a server: one rule for clients, command lines and run files."""

from urllib.parse import urlsplit


def checked_url(url: str) -> str:
    """`url` itself. Raises ValueError unless it has the scheme http or https, a host, and a valid port."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError as error:
        raise ValueError(f"{url!r:.300} is no URL: {error}") from None
    if wrong:
        raise ValueError(f"{url!r:.300} is no URL of a server, such as http://127.0.0.1:8001")
    return url
