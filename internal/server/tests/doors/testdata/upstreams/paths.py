"""A server of the test of paths: paths.py FRAMEWORK PORT. What a handler answers names it."""
import sys

framework, port = sys.argv[1], int(sys.argv[2])
# As each framework writes a part of the path that may be anything.
ANY = {"django": "<str:id>", "flask": "<id>", "fastapi": "{id}"}[framework]
ROUTES = {"login": ("/login", ["POST"]), "signin": ("/Sign-In/", ["POST"]), "pay": (f"/api/pay/{ANY}", ["POST"]), "report": ("/report", ["GET", "HEAD"])}


def handler(response, name):
    if framework == "fastapi":  # which takes what it does not know for parameters
        return lambda: response(name, headers={"X-Reached": name})
    return lambda *_, **__: response(name, headers={"X-Reached": name})


if framework == "flask":
    import flask
    from werkzeug.serving import run_simple

    app = flask.Flask("upstream")
    for name, (path, methods) in ROUTES.items():
        app.add_url_rule(path, name, handler(flask.Response, name), methods=methods)
    run_simple("127.0.0.1", port, app, threaded=True)
elif framework == "django":
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    from django.conf import settings

    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="none", MIDDLEWARE=["django.middleware.common.CommonMiddleware"])
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path as at, re_path
    from django.views.decorators.http import require_http_methods

    urlpatterns = [at(path[1:], require_http_methods(methods)(handler(HttpResponse, name))) for name, (path, methods) in ROUTES.items() if name != "login"]
    # To a regular expression a newline at the end is none.
    urlpatterns.append(re_path("^login$", require_http_methods(["POST"])(handler(HttpResponse, "login"))))

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    make_server("127.0.0.1", port, get_wsgi_application(), Server, Quiet).serve_forever()
else:
    import uvicorn
    from fastapi import FastAPI, Response

    app = FastAPI()
    for name, (path, methods) in ROUTES.items():
        app.add_api_route(path, handler(Response, name), methods=methods)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
