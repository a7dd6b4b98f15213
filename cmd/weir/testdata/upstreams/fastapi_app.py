"""An application of FastAPI: python3 fastapi_app.py PORT. What a handler answers names it."""
import sys

import uvicorn
from fastapi import FastAPI, Response

app = FastAPI()


def reached(name):
    return Response(name, headers={"X-Reached": name})


@app.post("/login")
def login():
    return reached("login")


@app.post("/Sign-In/")
def signin():
    return reached("signin")


@app.post("/api/pay/{id}")
def pay(id: str):
    return reached("pay")


@app.get("/report")
@app.head("/report")
def report():
    return reached("report")


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
