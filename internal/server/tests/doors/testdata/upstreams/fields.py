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
    return held(token(value))


def held(value):
    """Whether a JSON Web Token is ada's."""
    try:
        return jwt.decode(value or "", SECRET, algorithms=["HS256"])["sub"] == "ada"
    except Exception:
        return False


def judge(path, authorization, key, parameter, cookie, header_token, query_token, session):
    return {"/session": session, "/signed-header": lambda: held(header_token()), "/signed-query": lambda: held(query_token()),
            "/basic": lambda: basic(authorization()), "/jwt": lambda: signed(authorization()), "/bearer": lambda: token(authorization()) == KEY,
            "/authorization": lambda: token(authorization()) == KEY,
            "/header": lambda: key() == KEY, "/query": lambda: parameter() == KEY, "/cookie": lambda: cookie() == KEY}[path]()


if framework == "flask":
    import flask
    import logging
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = flask.Flask("upstream")
    app.secret_key, app.config["SESSION_COOKIE_NAME"], app.config["PERMANENT_SESSION_LIFETIME"] = SECRET, "sess", 10**10

    @app.route("/<path:path>")
    def answer(path):
        r = flask.request

        def user():
            return r.authorization is not None and (r.authorization.username, r.authorization.password) == ("ada", "s3cret")
        ok = judge("/" + path, lambda: r.headers.get("Authorization"), lambda: r.headers.get("X-Api-Key"), lambda: r.args.get("key"), lambda: r.cookies.get("sid"),
                   lambda: r.headers.get("X-Token"), lambda: r.args.get("token"), lambda: flask.session.get("user") == "ada")
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
        ok = judge(r.path, lambda: r.META.get("HTTP_AUTHORIZATION"), lambda: r.META.get("HTTP_X_API_KEY"), lambda: r.GET.get("key"), lambda: r.COOKIES.get("sid"),
                   lambda: r.META.get("HTTP_X_TOKEN"), lambda: r.GET.get("token"), lambda: held(r.COOKIES.get("sess")))
        return HttpResponse("ok") if ok else HttpResponse("no", status=403)
    urlpatterns = [re_path(".*", view)]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *args):
            pass
    make_server("127.0.0.1", port, get_wsgi_application(), handler_class=Quiet).serve_forever()
else:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.sessions import SessionMiddleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def endpoint(r):
        ok = judge(r.url.path, lambda: r.headers.get("authorization"), lambda: r.headers.get("x-api-key"), lambda: r.query_params.get("key"), lambda: r.cookies.get("sid"),
                   lambda: r.headers.get("x-token"), lambda: r.query_params.get("token"), lambda: r.session.get("user") == "ada")
        return PlainTextResponse("ok" if ok else "no", 200 if ok else 403)
    sessions = Middleware(SessionMiddleware, secret_key=SECRET, session_cookie="sess", max_age=None)
    uvicorn.run(Starlette(routes=[Route("/{path:path}", endpoint)], middleware=[sessions]), host="127.0.0.1", port=port, log_level="error")
