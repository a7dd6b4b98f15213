"""An application of Django: python3 django_app.py PORT. What a handler answers names it."""
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from socketserver import ThreadingMixIn

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path, re_path

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="none", MIDDLEWARE=["django.middleware.common.CommonMiddleware"])


def reached(name, *methods):
    def view(request, **_):
        if request.method not in methods:
            return HttpResponse(status=405)
        return HttpResponse(name, headers={"X-Reached": name})
    return view


urlpatterns = [
    re_path(r"^login$", reached("login", "POST")),
    path("Sign-In/", reached("signin", "POST")),
    path("api/pay/<str:id>", reached("pay", "POST")),
    path("report", reached("report", "GET", "HEAD")),
]


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


make_server("127.0.0.1", int(sys.argv[1]), get_wsgi_application(), Server, Quiet).serve_forever()
