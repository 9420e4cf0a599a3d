"""A proxy that does harm by a seeded plan: to a real server, between it and the client, as networks do."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import socketserver
import struct
import threading
import time
from urllib.parse import urlsplit

HARMS = (
    "delay",        # the answer comes late
    "error-500",    # the request never reaches the server
    "error-503",
    "error-429",
    "acted-500",    # it did, but the answer says that it did not
    "reset-before", # the connection breaks before the server sees anything
    "reset-after",  # the server acted, and its answer is lost
    "cut-answer",   # the answer's body ends too early
    "cut-request",  # the server gets half of what was sent
    "flip-request", # one bit of the body is another when the server gets it
    "flip-answer",  # one bit of the body is another when the client gets it
    "twice",        # the server gets the request twice, the client the second answer
)  # fmt: skip
"""What a plan may do to a request. By name also `silence`: no answer comes, and the connection stays."""

_SLOW_S = 0.05


class Proxy(socketserver.ThreadingTCPServer):
    """Passes requests on to a server, and harms some.

    Args:
        endpoint: the server.
        seed: of the plan.
        share: how many requests are harmed: 0 for none, 1 for all.
        harms: which may happen; all where None.
        most: harms in a row, at most, so that who tries again gets through in the end.
        at: which requests may be harmed, by their method and path; all where None.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, endpoint, seed, share=0.3, harms=None, most=3, at=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = urlsplit(endpoint)
        self.chance = random.Random(seed)
        self.share = share
        self.harms = harms or HARMS
        self.most = most
        self.at = at or (lambda method, path: True)
        self.row = 0
        self.lock = threading.Lock()
        self.log = []
        self.sent = []
        """Of each request: the method, the path, and its headers by their lower-case names."""

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def harm(self, method, path):
        """What happens to the next request; None where nothing."""
        with self.lock:
            harmed = self.at(method, path) and self.row < self.most and self.chance.random() < self.share
            self.row = self.row + 1 if harmed else 0
            chosen = self.chance.choice(self.harms) if harmed else None
            self.log.append((method, path, chosen))
            return chosen, self.chance.random()

    def handle_error(self, request, client_address):
        pass  # a client that goes away is what this is about

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _BrokenError(Exception):
    """The connection to the client is cut."""


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        with contextlib.suppress(OSError, _BrokenError, http.client.HTTPException):
            while self.one():
                pass

    def one(self):
        line = self.rfile.readline(65537)
        if not line.strip():
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = []
        length = 0
        while (header := self.rfile.readline(65537).strip()) != b"":
            name, _, value = header.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
            if name.lower() == "expect":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif name.lower() != "connection":
                headers.append((name, value.strip()))
        body = self.rfile.read(length)
        if len(body) < length:
            return False
        self.server.sent.append((method, path, {name.lower(): value for name, value in headers}))
        harm, where = self.server.harm(method, path)
        if harm == "silence":
            self.rfile.read(1)  # until the client goes
            return False
        self.harmed(harm, where, method, path, headers, body)
        return True

    def harmed(self, harm, where, method, path, headers, body):
        if harm == "delay":
            time.sleep(_SLOW_S * where)
        elif harm is not None and harm.startswith("error-"):
            return self.refuse(int(harm[-3:]))
        elif harm == "reset-before":
            self.reset()
        elif harm == "cut-request" and body:
            self.send(method, path, headers, body[: int(len(body) * where)])
            self.reset()
        elif harm == "flip-request" and body:
            body = _flipped(body, where)
        elif harm == "twice":
            self.ask(method, path, headers, body)
        status, reason, found, data = self.ask(method, path, headers, body)
        if harm == "acted-500":
            return self.refuse(500)
        if harm == "reset-after":
            self.reset()
        told = len(data)
        if harm == "flip-answer" and data:
            data = _flipped(data, where)
        if harm == "cut-answer" and data:
            data = data[: int(len(data) * where)]
        self.answer(status, reason, found, data, told if method != "HEAD" else None)
        if len(data) < told:
            self.reset()
        return None

    def connect(self):
        return http.client.HTTPConnection(self.server.server.hostname, self.server.server.port, timeout=30)

    def ask(self, method, path, headers, body):
        with contextlib.closing(self.connect()) as there:
            there.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                there.putheader(name, value)
            there.endheaders(body or None)
            answer = there.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()

    def send(self, method, path, headers, body):
        """Send a request whose body ends too early, and go."""
        with contextlib.suppress(OSError), contextlib.closing(self.connect()) as there:
            there.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                there.putheader(name, value)
            there.endheaders(body or None)

    def answer(self, status, reason, headers, data, told):
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [
            f"{name}: {value}" for name, value in headers if name.lower() not in ("transfer-encoding", "connection")
        ]
        if (
            told is not None
            and not any(name.lower() == "content-length" for name, _ in headers)
            and status not in (204, 304)
        ):
            lines.append(f"Content-Length: {told}")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
        self.wfile.flush()

    def refuse(self, status):
        code = {403: "AccessDenied", 429: "TooManyRequestsException", 500: "InternalError", 503: "SlowDown"}[status]
        data = f"<Error><Code>{code}</Code><Message>by plan</Message></Error>".encode()
        self.answer(status, "By Plan", [("Content-Type", "application/xml")], data, len(data))

    def reset(self):
        """Break the connection so that the client sees a reset, and no orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise _BrokenError


def _flipped(data, where):
    """The data with one bit the other way."""
    changed = bytearray(data)
    index = min(len(changed) - 1, int(len(changed) * where))
    changed[index] ^= 1 << (int(where * 1e6) % 8)
    return bytes(changed)
