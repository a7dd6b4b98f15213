"""An application of Flask: python3 flask_app.py PORT. What a handler answers names it."""
import sys

import flask
from werkzeug.serving import run_simple

app = flask.Flask("upstream")


def reached(name):
    return flask.Response(name, headers={"X-Reached": name})


@app.post("/login")
def login():
    return reached("login")


@app.post("/Sign-In/")
def signin():
    return reached("signin")


@app.post("/api/pay/<id>")
def pay(id):
    return reached("pay")


@app.get("/report")
def report():
    return reached("report")


run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
