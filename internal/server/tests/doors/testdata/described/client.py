# The APIs as the clients call them that openapi-python-client makes: client.py HTTP ADMIN TOKEN
import sys

from admin import AuthenticatedClient as AdminWithToken, Client as Admin
from admin.api.default import bans, end_ban, keys, overview, reset_key, rule_reports, set_ban, signals
from admin.models import BanRequest
from decision import AuthenticatedClient as WeirWithToken, Client as Weir
from decision.api.default import commit, limit, reserve
from decision.models import Attributes, Commit, Request, ReserveRequest

http, port, token = sys.argv[1:]
weir = WeirWithToken(http, token) if token else Weir(http)
admin = AdminWithToken(port, token) if token else Admin(port)


def user(name):
    return Attributes.from_dict({"user": name})


def decide(name):
    d = limit.sync(client=weir, body=Request("shop", user(name)))
    print(name, d.allowed, d.limited_by, [x.limit for x in d.limits])


for _ in range(3):
    decide("ada")
held = reserve.sync(client=weir, body=ReserveRequest("shop", user("eve"), hits=2, timeout=60))
print("eve holds", held.allowed, held.expires_in)
print("eve commits", commit.sync_detailed(client=weir, body=Commit(held.reservation, 1)).status_code.value)
print("used", sorted((k.key, k.used) for k in keys.sync(client=admin, limit="api").keys))
ban = set_ban.sync(client=admin, body=BanRequest("api", "shop", ["eve"], "1h"))
print("banned", ban.ban.key, ban.shared)
decide("eve")
print("bans", [b.key for b in bans.sync(client=admin).bans])
print("unbanned", end_ban.sync(client=admin, limit="api", key="eve").ban.key)
decide("eve")
print("reset", reset_key.sync_detailed(client=admin, limit="api", key="ada").status_code.value)
decide("ada")
print("read", overview.sync(client=admin).before, [r.name for r in rule_reports.sync(client=admin).rules], len(signals.sync(client=admin).signals) > 0)
