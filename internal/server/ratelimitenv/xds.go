package ratelimitenv

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
)

// plainMessage is how many MiB an answer of a control plane may have unless somebody says more.
const plainMessage = 64

// xds takes the address of a control plane as the one of the rules.
func (r *Env) xds() {
	query := url.Values{"node": {cmp.Or(r.v["CONFIG_GRPC_XDS_NODE_ID"], "default")}}
	scheme := "xds"
	if r.on("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		scheme = "xdss"
		for name, from := range map[string]string{"ca": "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
			"cert": "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "key": "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
			"server_name": "CONFIG_GRPC_XDS_SERVER_TLS_SAN"} {
			if r.has(from) {
				query.Set(name, r.v[from])
			}
		}
	}
	if r.on("FORCE_START_WITHOUT_INITIAL_CONFIG") {
		query.Set("require", "nothing")
		if r.on("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED") {
			query.Set("require", "ready")
		}
	}
	if n, err := strconv.Atoi(r.v["XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"]); err == nil && n > plainMessage<<20 {
		query.Set("max_message", strconv.Itoa((n-1)>>20+1))
	}
	for pair := range strings.SplitSeq(r.v["CONFIG_GRPC_XDS_NODE_METADATA"], ",") {
		if i := strings.IndexAny(pair, ":="); i > 0 {
			query.Set("metadata."+strings.TrimSpace(pair[:i]), strings.TrimSpace(pair[i+1:]))
		}
	}
	r.take("rules", scheme+"://"+cmp.Or(r.v["CONFIG_GRPC_XDS_SERVER_URL"], "localhost:18000")+"?"+query.Encode(),
		"CONFIG_GRPC_XDS_SERVER_URL")
}

// warnOfXDS warns of variables about a control plane that have no effect.
func (r *Env) warnOfXDS(warn func(seen bool, text string)) {
	if r.v["CONFIG_TYPE"] != "GRPC_XDS_SOTW" {
		return
	}
	warn(r.has("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS is not read: the server knows this client by its certificate and node")
	warn(r.on("MERGE_DOMAIN_CONFIG"),
		"MERGE_DOMAIN_CONFIG is not read for rules over xDS: two resources of one domain are refused")
}
