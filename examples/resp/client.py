"""Asks Weir for twenty decisions in one round trip, over a bare socket."""

import socket

ADDRESS = "127.0.0.1:6380"


def command(*words):
    encoded = [str(w).encode() for w in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in encoded)


def integers(answers):
    """Reads an array of integers."""
    head = answers.readline()
    if not head.startswith(b"*"):
        raise RuntimeError(head.decode().strip())
    return [int(answers.readline()[1:]) for _ in range(int(head[1:]))]


host, port = ADDRESS.split(":")
with socket.create_connection((host, int(port))) as weir, weir.makefile("rb") as answers:
    weir.sendall(command("CL.THROTTLE", "from-python", 14, 1, 3600) * 20)
    limited = sum(integers(answers)[0] for _ in range(20))
    print(20 - limited, "of 20 may pass")
