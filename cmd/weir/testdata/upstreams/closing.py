# A program for gunicorn that reads what it is sent.
def app(environ, start_response):
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
