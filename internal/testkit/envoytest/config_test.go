package envoytest_test

import (
	"fmt"
	"strings"
)

// settings are what the tests ask of a bucket, by the value of the header X-Settings.
var settings = [][2]string{
	{"allow", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }`},
	{"deny", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: DENY_ALL } }`},
	{"every second", `
      reporting_interval: 1s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }`},
	{"every minute", `
      reporting_interval: 60s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }`},
	{"three when expired", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }
      expired_assignment_behavior:
        expired_assignment_behavior_timeout: 3600s
        fallback_rate_limit: { token_bucket: { max_tokens: 3, tokens_per_fill: 1, fill_interval: 31536000s } }`},
	{"denied when expired, without a time-out", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }
      expired_assignment_behavior:
        fallback_rate_limit: { blanket_rule: DENY_ALL }`},
	{"reused when expired", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }
      expired_assignment_behavior:
        expired_assignment_behavior_timeout: 3600s
        reuse_last_assignment: {}`},
	{"tokens without an assignment", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { token_bucket: { max_tokens: 3, tokens_per_fill: 1, fill_interval: 1s } } }`},
	{"an answer of its own", `
      reporting_interval: 5s
      no_assignment_behavior: { fallback_rate_limit: { blanket_rule: DENY_ALL } }
      deny_response_settings:
        http_status: { code: 429 }
        response_headers_to_add: [ { header: { key: x-why, value: quota } } ]`},
}

// listener is one of the configuration: its name, the domain of its filter, and the cluster that
// it asks.
type listener struct{ name, domain, cluster string }

// config returns a configuration of Envoy. Of a bucket all settings are decided by the header
// X-Settings, and its id by X-Case. Clusters are given with the ports of their servers.
func config(listeners []listener, clusters map[string]int) string {
	var b strings.Builder
	b.WriteString("static_resources:\n  listeners:\n")
	for _, l := range listeners {
		fmt.Fprintf(&b, `
  - name: %[1]s
    stat_prefix: %[1]s
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %[1]s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ { match: { prefix: / }, direct_response: { status: 200 } } ]
          http_filters:
          - name: envoy.filters.http.rate_limit_quota
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
              domain: %[2]s
              rlqs_server: { envoy_grpc: { cluster_name: %[3]s } }
              bucket_matchers:
                matcher_list:
                  matchers:
`, l.name, l.domain, l.cluster)
		for _, s := range settings {
			fmt.Fprintf(&b, `
                  - predicate:
                      single_predicate:
                        input:
                          name: settings
                          typed_config:
                            "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                            header_name: x-settings
                        value_match: { exact: %q }
                    on_match:
                      action:
                        name: settings
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                          bucket_id_builder:
                            bucket_id_builder:
                              case:
                                custom_value:
                                  name: case
                                  typed_config:
                                    "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                                    header_name: x-case
%s
`, s[0], strings.ReplaceAll(s[1], "\n      ", "\n                          "))
		}
		b.WriteString(`
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
`)
	}
	b.WriteString("  clusters:\n")
	for name, port := range clusters {
		fmt.Fprintf(&b, `
  - name: %[1]s
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment:
      cluster_name: %[1]s
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %[2]d } } } } ] } ]
`, name, port)
	}
	return b.String()
}
