package servertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Answered is what a door said to one request.
type Answered struct {
	Allowed, Marked, Deferred bool
	Delayed                   bool // told to wait
}

// door asks for a path once.
type Doorway struct {
	Name string
	Ask  func(t *testing.T, path string) Answered
	// holds: a request waits for its turn here. tells: the answer names the wait. frees: a slot is
	// given back when the request is over. defers: a request may be put off.
	Holds, Tells, Frees, Defers bool
	Unmarked                    bool // the door has no way to mark an answer
}

func HttpDoor(addr string) Doorway {
	return Doorway{Name: "http", Tells: true, Ask: func(t *testing.T, path string) Answered {
		t.Helper()
		answer, err := http.Post("http://"+addr+"/api/v1/limit", "application/json",
			strings.NewReader(fmt.Sprintf(`{"domain": "doors", "attributes": {"path": %q, "door": "http"}}`, path)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var d struct {
			Allowed bool
			Limits  []struct {
				SoftExceeded bool `json:"soft_exceeded"`
				Delay        float64
			}
		}
		if err := json.NewDecoder(answer.Body).Decode(&d); err != nil || d.Allowed != (answer.StatusCode == 200) {
			t.Fatal(answer.Status, err)
		}
		a := Answered{Allowed: d.Allowed}
		for _, l := range d.Limits {
			a.Marked = a.Marked || l.SoftExceeded
			a.Delayed = a.Delayed || l.Delay > 0
		}
		return a
	}}
}

func RlsDoor(t *testing.T, addr string) Doorway {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := rls.NewRateLimitServiceClient(conn)
	return Doorway{Name: "rls", Ask: func(t *testing.T, path string) Answered {
		t.Helper()
		answer, err := client.ShouldRateLimit(t.Context(),
			&rls.RateLimitRequest{Domain: "doors", Descriptors: []*rlspb.RateLimitDescriptor{{
				Entries: []*rlspb.RateLimitDescriptor_Entry{{Key: "path", Value: path}, {Key: "door", Value: "rls"}},
			}}})
		if err != nil {
			t.Fatal(err)
		}
		a := Answered{Allowed: answer.OverallCode == rls.RateLimitResponse_OK}
		for _, h := range answer.ResponseHeadersToAdd {
			a.Marked = a.Marked || strings.EqualFold(h.Key, "x-ratelimit-soft")
		}
		return a
	}}
}

func RespDoor(t *testing.T, addr string) Doorway {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true,
		DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return Doorway{Name: "resp", Unmarked: true, Ask: func(t *testing.T, path string) Answered {
		t.Helper()
		answer, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.LIMIT", "doors", "1", "path", path, "door",
			"resp").Build()).ToArray()
		if err != nil || len(answer) != 6 {
			t.Fatal(answer, err)
		}
		allowed, err := answer[0].AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return Answered{Allowed: allowed == 1}
	}}
}

// ForwardedDoor is asked as Caddy and Traefik ask.
func ForwardedDoor(addr string) Doorway {
	return OfHTTP("forwarded", func(path string) *http.Request {
		r, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/api/v1/forward-auth/forwarded", nil)
		for name, value := range map[string]string{"Method": "GET", "Uri": path, "Host": "example.com",
			"For": "192.0.2.1"} {
			r.Header.Set("X-Forwarded-"+name, value)
		}
		return r
	})
}

// HaproxyDoor is a real HAProxy in front.
func HaproxyDoor(t *testing.T, agent, upstream string) Doorway {
	return OfHTTP("haproxy", Below("http://"+StartHAProxy(t, agent, upstream)))
}

// OfHTTP is a door that HTTP requests come through.
func OfHTTP(name string, request func(path string) *http.Request) Doorway {
	return Doorway{Name: name, Ask: func(t *testing.T, path string) Answered {
		t.Helper()
		r := request(path)
		r.Header.Set("X-Door", name)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		switch answer.StatusCode {
		case 200, 202, 429:
		default:
			t.Fatalf("%s: %s", path, answer.Status)
		}
		return Answered{Allowed: answer.StatusCode == 200, Marked: answer.Header.Get("X-RateLimit-Soft") == "exceeded",
			Deferred: answer.StatusCode == 202}
	}}
}

// Below makes requests for paths below a URL.
func Below(base string) func(path string) *http.Request {
	return func(path string) *http.Request {
		r, _ := http.NewRequest(http.MethodGet, base+path, nil)
		return r
	}
}

func ProxyDoor(addr string) Doorway {
	d := OfHTTP("proxy", Below("http://"+addr))
	d.Holds, d.Frees, d.Defers = true, true, true
	return d
}
