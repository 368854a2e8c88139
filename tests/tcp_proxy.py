"""A network that can be broken: connections to one server, passed on, held back, refused or cut off."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TcpProxy:
    """Listens on a port of loopback and passes everything on to `target_port`. Its methods may be called anywhere."""

    def __init__(self, target_port: int):
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        """Accepted so far."""
        self._passes = asyncio.Event()
        self._cut_after: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Accept connections, on the same port as before."""
        self._do(self._open())

    def close(self) -> None:
        """Refuse connections and break those that there are, as a server that has died."""
        self._do(self._close())

    def hold(self) -> None:
        """Nothing comes through any more, and nobody is told: a partition."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.set)

    def cut_next_answer(self, after_bytes: int) -> None:
        """Break the next connection on which the server says something, after so many bytes of it."""
        self._loop.call_soon_threadsafe(self._cut_after.append, after_bytes)

    @property
    def answers_to_cut(self) -> int:
        return len(self._cut_after)

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)  # type: ignore[arg-type]

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for stream in self._streams:
            stream.transport.abort()

    async def _connected(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._streams.add(client)
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._streams.add(server)
            try:
                await asyncio.gather(
                    self._pass_on(client_reader, server, answers=False),
                    self._pass_on(server_reader, client, answers=True),
                )
            finally:
                self._streams.discard(server)
                server.transport.abort()
        except (ConnectionError, OSError):
            pass
        finally:
            self._streams.discard(client)
            client.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        """Until an end closes; raises ConnectionError then, so that the other direction ends as well."""
        while data := await reader.read(65536):
            await self._passes.wait()
            if answers and self._cut_after:
                writer.write(data[: self._cut_after.pop(0)])
                await writer.drain()
                raise ConnectionAbortedError
            writer.write(data)
            await writer.drain()
        raise ConnectionAbortedError

    @contextmanager
    def running(self) -> Iterator["TcpProxy"]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.heal()
        try:
            yield self
        finally:
            self.close()
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10.0)
            self._loop.close()

    async def _end(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*rest, return_exceptions=True)
