package doors

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestUnknownDomain: a request for a domain that no rule file declares passes, or is refused by
// unknown_domain: deny, and its answer says so at each door that has room for it. The log names the
// domain that was meant, of the request and of the configuration.
func TestUnknownDomain(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }))
	defer upstream.Close()
	rules := servertest.RulesFile(t, "domain: shop\nlimits: [{ name: all, per: [user], allow: 1/day }]\n")
	for _, setting := range []string{"allow", "deny"} {
		p := servertest.Start(t, "serve", "--rules="+rules, "--unknown-domain="+setting, "--listen-proxy=127.0.0.1:0",
			"--proxy-upstream="+upstream.URL,
			"--default-domain=shopp", "--rls-response-headers=true", "--client-ip-trusted-proxies=127.0.0.1")
		allowed := setting == "allow"
		status := map[bool]int{true: 200, false: 429}[allowed]
		verdict := map[bool]string{true: "allowed", false: "refused"}[allowed]
		door := "http://" + p.Addr("http")
		for _, c := range []struct {
			name    string
			request func() (*http.Response, error)
			status  int
			body    []string
		}{
			{"decision", func() (*http.Response, error) { return http.Get(door + "/api/v1/limit?domain=shopp&user=ada") }, status, []string{`"unknown_domain":true`}},
			{"peek", func() (*http.Response, error) { return http.Get(door + "/api/v1/limit?domain=shopp&user=ada&hits=0") }, status, []string{`"unknown_domain":true`}},
			{"reserve", func() (*http.Response, error) {
				return http.Post(door+"/api/v1/reserve", "application/json",
					strings.NewReader(`{"domain":"shopp","attributes":{"user":"ada"}}`))
			}, status, []string{`"unknown_domain":true`, `"reservation":null`}},
			{"forward auth", func() (*http.Response, error) {
				r, err := http.NewRequest("GET", door+"/api/v1/forward-auth/forwarded/shopp", nil)
				if err != nil {
					return nil, err
				}
				for name, value := range map[string]string{"Method": "GET", "Uri": "/", "Host": "example.com",
					"For": "192.0.2.1"} {
					r.Header.Set("X-Forwarded-"+name, value)
				}
				return http.DefaultClient.Do(r)
			}, status, nil},
			{"proxy", func() (*http.Response, error) { return http.Get("http://" + p.Addr("proxy") + "/") }, status, nil},
		} {
			answer, err := c.request()
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != c.status || !slices.Equal(answer.Header["X-Ratelimit-Warning"],
				[]string{"unknown_domain"}) ||
				slices.ContainsFunc(c.body, func(s string) bool { return !strings.Contains(string(body), s) }) {
				t.Errorf("%s: %s: %s %v\n%s", setting, c.name, answer.Status, answer.Header, body)
			}
			if named := strings.Contains(string(body), "unknown_domain"); !allowed && !named {
				t.Errorf("%s: %s: the refusal does not say why: %s", setting, c.name, body)
			}
		}
		if _, _, body := servertest.Get(t, door+"/api/v1/limit?domain=shop&user=grace"); strings.Contains(body,
			"unknown") || !strings.Contains(body, `"allowed":true`) {
			t.Errorf("%s: a known domain: %s", setting, body)
		}

		conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ruled, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(),
			&rlspb.RateLimitRequest{Domain: "shopp",
				Descriptors: []*ratelimitpb.RateLimitDescriptor{{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}}}}})
		if err != nil {
			t.Fatal(err)
		}
		warned := false
		for _, h := range ruled.ResponseHeadersToAdd {
			warned = warned || h.Key == "X-RateLimit-Warning" && h.Value == "unknown_domain"
		}
		if (ruled.OverallCode == rlspb.RateLimitResponse_OK) != allowed || !warned {
			t.Errorf("%s: rls: %v", setting, ruled)
		}

		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{p.Addr("resp")},
			ForceSingleClient: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		parts, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.LIMIT", "shopp", "1", "user", "ada",
			"FULL").Build()).ToArray()
		if err != nil || len(parts) != 11 {
			t.Fatal(parts, err)
		}
		passes, _ := parts[0].AsInt64()
		unknown, _ := parts[10].AsInt64()
		if (passes == 1) != allowed || unknown != 1 {
			t.Errorf("%s: resp: %v", setting, parts)
		}
		for _, line := range []string{
			`default_domain names a domain that no rule file declares; did you mean \\"shop\\"\?; its requests are ` + verdict,
			`requests come in for a domain that no rule file declares; did you mean \\"shop\\"\?; they are ` + verdict + `" domain=shopp`,
		} {
			p.Stderr.Await(t, line)
		}
		if _, _, metrics := servertest.Get(t, "http://"+p.Addr("admin")+"/metrics"); !strings.Contains(metrics,
			`weir_requests_total{domain="_unknown",door="http",outcome="`+
				map[bool]string{true: "allowed", false: "denied"}[allowed]+`"}`) {
			t.Errorf("%s: the metrics do not count it", setting)
		}
		// All of the above but the peek and the request for a known domain.
		servertest.Eventually(t, "the overview tells of it", func() bool {
			_, _, body := servertest.Get(t, "http://"+p.Addr("admin")+"/api/v1/insight")
			var o insight.Overview
			if err := json.Unmarshal([]byte(body), &o); err != nil {
				t.Fatal(err)
			}
			return o.UnknownDomain != nil && *o.UnknownDomain == (insight.UnknownDomain{Requests: 6, Name: "shopp"}) &&
				o.Sentences[0] == "6 requests came for a domain that no rule file declares, such as shopp: no limit was asked."
		})
		p.Stop()
	}
}
