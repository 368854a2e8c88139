"""Serve a request that offers an upgrade as HTTP/1.1, with its body: ignore the offer (RFC 9110, 7.8)."""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Parser(httptools.HttpRequestParser):
    """httptools' parser, which ignores an offer to upgrade that its connection does not accept.

    httptools stops behind the headers of such a request and drops its body, though the client has sent one (as
    `curl --http2` does). So give a new parser the headers again, without `Upgrade`, and then the rest of the data.
    """

    def __init__(self, connection: HttpToolsProtocol):
        super().__init__(connection)
        self._connection = connection
        # As uvicorn sets it: data behind a request that closes the connection is not an error of that request.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    @property
    def passes_over_upgrade(self) -> bool:
        """Whether the headers just read offer an upgrade that the connection ignores. (CONNECT is an upgrade, too.)"""
        return self.should_upgrade() and self.get_method() != b"CONNECT" and not self._connection._should_upgrade()

    def feed_data(self, data: Any) -> None:
        parser, rest = self, memoryview(data)
        while True:
            try:
                return super(Parser, parser).feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                if not parser.passes_over_upgrade:
                    raise
                rest = rest[upgrade.args[0] :]
            head = parser._head_without_upgrade()
            parser = self._connection.parser = Parser(self._connection)
            super(Parser, parser).feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        """First line and headers of the request that was parsed last, without `Upgrade`."""
        connection = self._connection
        lines = [b"%b %b HTTP/%b" % (self.get_method(), connection.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in connection.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
