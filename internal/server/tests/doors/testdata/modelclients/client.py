"""Asks a model twice with an official client: client.py openai|anthropic URL NAME.

It prints how that ended, and how long the client slept between tries."""
import json, sys, time

maker, url, name = sys.argv[1:]
slept = []
time.sleep = slept.append  # it is not to be waited for
told = {"x-client": name}
say = [{"role": "user", "content": "hello"}]
if maker == "openai":
    import openai as package
    client = package.OpenAI(base_url=url + "/v1", api_key="secret", default_headers=told)
    ask = lambda: client.chat.completions.create(model="m", messages=say)
else:
    import anthropic as package
    client = package.Anthropic(base_url=url, api_key="secret", default_headers=told)
    ask = lambda: client.messages.create(model="m", messages=say, max_tokens=5)
ended = "answered"
try:
    ask(), ask()
except package.APIStatusError as e:
    ended = f"{type(e).__name__} {e.status_code}"
print(json.dumps({"ended": ended, "slept": slept}))
