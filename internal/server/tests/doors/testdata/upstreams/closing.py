# A program for gunicorn that closes a connection under its second request, as gunicorn does when
# that comes just when the connection has been idle for too long.
import socket
import weakref

used = weakref.WeakSet()  # connections: a port may come again


def app(environ, start_response):
    environ["wsgi.input"].read()
    connection = environ["gunicorn.socket"]
    if connection in used:
        connection.shutdown(socket.SHUT_RDWR)
    used.add(connection)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
