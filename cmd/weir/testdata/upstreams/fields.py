"""A server of the test of spellings: fields.py FRAMEWORK PORT. What it takes for the credential of ada it answers with ok."""
import base64, os, sys

import jwt

framework, port = sys.argv[1], int(sys.argv[2])
SECRET, KEY = os.environ["JWT_SECRET"], "k-ada"


def basic(value):
    """As frameworks and tutorials do it: a scheme in any case, blanks, and base64 that is not looked at closely."""
    parts = (value or "").split(None, 1)
    if len(parts) != 2 or parts[0].lower() != "basic":
        return False
    try:
        text = parts[1].strip()
        text += "=" * (-len(text) % 4)
        return base64.b64decode(text).decode("latin-1").partition(":")[::2] == ("ada", "s3cret")
    except Exception:
        return False


def token(value):
    parts = (value or "").split()
    return parts[1] if len(parts) == 2 and parts[0].lower() == "bearer" else ""


def signed(value):
    try:
        return jwt.decode(token(value), SECRET, algorithms=["HS256"])["sub"] == "ada"
    except Exception:
        return False


def judge(path, authorization, key, parameter, cookie):
    return {"/basic": lambda: basic(authorization()), "/jwt": lambda: signed(authorization()), "/bearer": lambda: token(authorization()) == KEY,
            "/authorization": lambda: token(authorization()) == KEY,
            "/header": lambda: key() == KEY, "/query": lambda: parameter() == KEY, "/cookie": lambda: cookie() == KEY}[path]()


if framework == "flask":
    import flask
    import logging
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = flask.Flask("upstream")

    @app.route("/<path:path>")
    def answer(path):
        r = flask.request

        def user():
            return r.authorization is not None and (r.authorization.username, r.authorization.password) == ("ada", "s3cret")
        ok = judge("/" + path, lambda: r.headers.get("Authorization"), lambda: r.headers.get("X-Api-Key"), lambda: r.args.get("key"), lambda: r.cookies.get("sid"))
        return "ok" if ok or path == "basic" and user() else ("no", 403)
    app.run("127.0.0.1", port, threaded=True)
elif framework == "django":
    from wsgiref.simple_server import WSGIRequestHandler, make_server
    from django.conf import settings
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", DEBUG=False)
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import re_path

    def view(r):
        ok = judge(r.path, lambda: r.META.get("HTTP_AUTHORIZATION"), lambda: r.META.get("HTTP_X_API_KEY"), lambda: r.GET.get("key"), lambda: r.COOKIES.get("sid"))
        return HttpResponse("ok") if ok else HttpResponse("no", status=403)
    urlpatterns = [re_path(".*", view)]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *args):
            pass
    make_server("127.0.0.1", port, get_wsgi_application(), handler_class=Quiet).serve_forever()
else:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def endpoint(r):
        ok = judge(r.url.path, lambda: r.headers.get("authorization"), lambda: r.headers.get("x-api-key"), lambda: r.query_params.get("key"), lambda: r.cookies.get("sid"))
        return PlainTextResponse("ok" if ok else "no", 200 if ok else 403)
    uvicorn.run(Starlette(routes=[Route("/{path:path}", endpoint)]), host="127.0.0.1", port=port, log_level="error")
