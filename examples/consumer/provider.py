"""A provider's API that counts its calls, with the standard library only. See README.md."""
import collections
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WINDOW = 2_000_000_000  # nanoseconds


class Calls:
    """The calls of each window, and of each job."""

    def __init__(self):
        self.lock, self.windows, self.jobs = threading.Lock(), collections.Counter(), collections.Counter()

    def add(self, made_at, job):
        with self.lock:
            self.windows[made_at // WINDOW] += 1
            self.jobs[job] += 1

    def as_json(self):
        with self.lock:
            windows = [count for _, count in sorted(self.windows.items())]
            return {"windows": windows, "jobs": len(self.jobs), "calls": sum(windows)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    calls = Calls()

    def do_POST(self):
        job = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # when the caller made it: a busy machine or network may deliver it in the next window
        self.calls.add(int(self.headers.get("X-Made-At", time.time_ns())), job)
        self.answer(b"")

    def do_GET(self):
        self.answer(json.dumps(self.calls.as_json()).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Calls are counted, not logged."""


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 256


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9090), Handler)
    print(f"listening on 127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
