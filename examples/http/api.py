"""An API that asks Weir before it does the work."""

import json
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LISTEN = "127.0.0.1:3000"
WEIR = "http://127.0.0.1:8080/api/v1/limit"
PASS_ON = ("Retry-After", "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


def may(**attributes):
    """Asks whether a request may pass. Returns that, the headers for the answer, and Weir's verdict."""
    question = json.dumps({"attributes": attributes}).encode()
    request = urllib.request.Request(WEIR, question, {"Content-Type": "application/json"})
    try:
        answer = urllib.request.urlopen(request, timeout=0.05)
    except urllib.error.HTTPError as refusal:
        if refusal.code != 429:
            raise
        answer = refusal
    except OSError:  # Weir is away
        return True, {}, None
    verdict = json.load(answer)
    return verdict["allowed"], {k: v for k, v in answer.headers.items() if k.title() in map(str.title, PASS_ON)}, verdict


class API(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, {}, "POST /orders orders something\n")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        allowed, headers, verdict = may(method="POST", path=self.path, user=self.headers.get("X-User", ""))
        if not allowed:
            problem = {"title": "Too many orders", "status": 429, "violated-policies": verdict["limited_by"]}
            self.answer(429, headers, json.dumps(problem, separators=(",", ":")) + "\n", "application/problem+json")
            return
        self.answer(200, headers, "ordered\n")

    def answer(self, status, headers, body, kind="text/plain"):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    host, port = LISTEN.split(":")
    ThreadingHTTPServer((host, int(port)), API).serve_forever()
