"""A management API of RabbitMQ that says what a test wants it to."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BY_POLICY = {"policy": "slow", "effective_policy_definition": {"consumer-timeout": 3_600_000}}
BY_BOTH = BY_POLICY | {"arguments": {"x-consumer-timeout": 60_000}}


@dataclass
class ManagementApi:
    """Answers for queues as RabbitMQ's management plugin does, and keeps who asked for what."""

    facts: dict[str, Any]
    status: int = 200
    asked: list[str] = field(default_factory=list)
    logins: set[str] = field(default_factory=set)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator[ManagementApi]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(self.path)
                _, _, login = self.headers["Authorization"].partition(" ")
                api.logins.add(base64.b64decode(login).decode())
                body = json.dumps(api.facts).encode()
                self.send_response(api.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.url = f"http://ann:top%40secret@127.0.0.1:{server.server_port}/rabbit"
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
