# A program for gunicorn that closes a connection under its second request, as gunicorn does when
# that comes just when the connection has been idle for too long.
import socket

used = set()


def app(environ, start_response):
    environ["wsgi.input"].read()
    client = environ["REMOTE_PORT"]
    if client in used:
        environ["gunicorn.socket"].shutdown(socket.SHUT_RDWR)
    used.add(client)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
