// The APIs as openapi-fetch calls them with the types that openapi-typescript makes.
// Arguments: HTTP ADMIN TOKEN
import createClient from "openapi-fetch";
import type { paths as AdminPaths } from "./admin.js";
import type { paths as WeirPaths } from "./decision.js";

declare const process: { argv: string[] };
const [http, port, token] = process.argv.slice(2);
const headers = token ? { Authorization: `Bearer ${token}` } : {};
const weir = createClient<WeirPaths>({ baseUrl: http, headers });
const admin = createClient<AdminPaths>({ baseUrl: port, headers });

async function decide(user: string) {
  const { data, error } = await weir.POST("/api/v1/limit", { body: { domain: "shop", attributes: { user } } });
  const d = data ?? error; // a refusal is a decision, too
  if (d === undefined || !("allowed" in d)) throw new Error(d?.detail);
  console.log(user, d.allowed, d.limited_by, d.limits.map((l) => l.limit));
}

for (let i = 0; i < 3; i++) await decide("ada");
const held = await weir.POST("/api/v1/reserve", { body: { domain: "shop", attributes: { user: "eve" }, hits: 2, timeout: 60 } });
console.log("eve holds", held.data?.allowed, held.data?.expires_in);
const settled = await weir.POST("/api/v1/commit", { body: { reservation: held.data?.reservation ?? "", hits: 1 } });
console.log("eve commits", settled.response.status);
const keys = await admin.GET("/api/v1/keys", { params: { query: { limit: "api" } } });
console.log("used", keys.data?.keys.map((k) => [k.key, k.used]).sort());
const ban = await admin.POST("/api/v1/bans", { body: { limit: "api", domain: "shop", key: ["eve"], for: "1h" } });
console.log("banned", ban.data?.ban.key, ban.data?.shared);
await decide("eve");
console.log("bans", (await admin.GET("/api/v1/bans")).data?.bans.map((b) => b.key));
console.log("unbanned", (await admin.DELETE("/api/v1/bans", { params: { query: { limit: "api", key: "eve" } } })).data?.ban.key);
await decide("eve");
console.log("reset", (await admin.DELETE("/api/v1/keys", { params: { query: { limit: "api", key: "ada" } } })).response.status);
await decide("ada");
const [overview, reports, signals] = await Promise.all([admin.GET("/api/v1/insight"), admin.GET("/api/v1/insight/rules"), admin.GET("/api/v1/signals")]);
console.log("read", overview.data?.before, reports.data?.rules.map((r) => r.name), (signals.data?.signals.length ?? 0) > 0);
