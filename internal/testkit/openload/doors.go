package openload

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Door is a way to ask a server.
type Door string

// The doors.
const (
	HTTP     Door = "http"     // Weir's decision API, POST /api/v1/limit
	RLS      Door = "rls"      // Envoy's rate limit service over gRPC, of any server
	RESP     Door = "resp"     // WEIR.LIMIT over the Redis protocol
	Throttle Door = "throttle" // CL.THROTTLE over the Redis protocol, of any server that has it
	Proxy    Door = "proxy"    // plain requests through a proxy, of any server: 429 is a refusal
)

// Doors are all of them.
var Doors = []Door{HTTP, RLS, RESP, Throttle, Proxy}

// Target is a server, and how to ask it.
type Target struct {
	URL         string // http, https, grpc, grpcs, redis, rediss; see Parse
	Door        Door   // "": the one of the URL's scheme; http, rls or resp
	Domain      string
	Key         string      // the attribute, or header, for the drawn keys: "key-17"
	Attributes  [][2]string // further ones of each request
	Header      http.Header // of HTTP and Proxy
	Connections int         // to the server; the callers share them. 0: one for each caller, at most 64
	Throttle    [3]int64    // max_burst, count and period of Throttle
	TLS         *tls.Config // for https, grpcs and rediss; nil: the system's default
}

// mostConnections bounds the connections if Target.Connections is 0.
const mostConnections = 64

// schemes are the schemes of URLs, with their door and whether they mean TLS.
var schemes = map[string]struct {
	door Door
	tls  bool
}{
	"http": {HTTP, false}, "https": {HTTP, true}, "grpc": {RLS, false}, "grpcs": {RLS, true},
	"redis": {RESP, false}, "rediss": {RESP, true},
}

// Open connects callers to a server. The returned function closes what was opened.
func (t *Target) Open(callers int) (askers []Asker, closed func(), err error) {
	u, err := url.Parse(t.URL)
	if err != nil || u.Host == "" {
		return nil, nil, fmt.Errorf(
			"%q is no URL such as http://127.0.0.1:8080, grpc://127.0.0.1:8081 or redis://127.0.0.1:6380", t.URL)
	}
	scheme, ok := schemes[u.Scheme]
	if !ok {
		return nil, nil, fmt.Errorf("%s: the scheme is http, https, grpc, grpcs, redis or rediss", t.URL)
	}
	door := t.Door
	if door == "" {
		door = scheme.door
	}
	fits := map[Door]Door{HTTP: HTTP, Proxy: HTTP, RLS: RLS, RESP: RESP, Throttle: RESP}
	switch of, is := fits[door]; {
	case !is:
		return nil, nil, fmt.Errorf("there is no door %q; there are %v", string(door), Doors)
	case of != scheme.door:
		return nil, nil, fmt.Errorf("%s: the door %s is not asked by %s://", t.URL, door, u.Scheme)
	case door != Proxy && (u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != ""):
		return nil, nil, fmt.Errorf("%s: a path is for the door proxy only", t.URL)
	case t.Key == "":
		return nil, nil, errors.New("the key needs a name")
	}
	connections := t.Connections
	if connections == 0 {
		connections = min(callers, mostConnections)
	}
	if connections < 1 || connections > callers {
		return nil, nil, fmt.Errorf("%d connections are not from 1 to the %d callers", connections, callers)
	}
	secure := t.TLS
	if scheme.tls && secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if !scheme.tls {
		secure = nil
	}
	switch door {
	case RLS:
		return t.openRLS(u.Host, secure, connections, callers)
	case RESP, Throttle:
		return t.openRESP(u, door, secure, connections, callers)
	}
	return t.openHTTP(u, door, secure, connections, callers)
}

// key returns the key of a number.
func key(number int) string { return "key-" + strconv.Itoa(number) }

// httpAsker asks the decision API, or through a proxy.
type httpAsker struct {
	t      *Target
	door   Door
	url    string
	client *http.Client
	body   bytes.Buffer
	front  []byte // of the body, up to the key
	back   []byte
}

func (t *Target) openHTTP(u *url.URL, door Door, secure *tls.Config, connections, callers int) ([]Asker,
	func(), error) {
	target := *u
	var front, back []byte
	if door == HTTP {
		target.Path = "/api/v1/limit"
		attributes := map[string]string{}
		for _, a := range t.Attributes {
			attributes[a[0]] = a[1]
		}
		const mark = "\x01" // is in no body
		attributes[t.Key] = mark
		body := map[string]any{"attributes": attributes}
		if t.Domain != "" {
			body["domain"] = t.Domain
		}
		text, err := json.Marshal(body)
		if err != nil {
			return nil, nil, err
		}
		var found bool
		if front, back, found = bytes.Cut(text, []byte(`\u0001`)); !found {
			return nil, nil, errors.New("an attribute has the name of the key")
		}
	}
	transport := &http.Transport{
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, TLSClientConfig: secure, DisableCompression: true,
	}
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var askers []Asker
	for range callers {
		askers = append(askers, &httpAsker{t: t, door: door, url: target.String(), client: client, front: front,
			back: back})
	}
	return askers, transport.CloseIdleConnections, nil
}

// Ask implements Asker.
func (a *httpAsker) Ask(ctx context.Context, number int) (bool, error) {
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if a.door == HTTP {
		method = http.MethodPost
		a.body.Reset()
		a.body.Write(a.front)
		a.body.WriteString(key(number))
		a.body.Write(a.back)
		body = bytes.NewReader(a.body.Bytes())
	}
	r, err := http.NewRequestWithContext(ctx, method, a.url, body)
	if err != nil {
		return false, err
	}
	for name, values := range a.t.Header {
		r.Header[name] = values
	}
	if a.door == HTTP {
		r.Header.Set("Content-Type", "application/json")
	} else {
		r.Header.Set(a.t.Key, key(number))
		for _, attribute := range a.t.Attributes {
			r.Header.Set(attribute[0], attribute[1])
		}
	}
	response, err := a.client.Do(r)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	switch status := response.StatusCode; {
	case err != nil:
		return false, err
	case status == http.StatusTooManyRequests:
		return false, nil
	case status < 300, a.door == Proxy && status < 500:
		return true, nil
	}
	return false, fmt.Errorf("the server answers %s: %.300s", response.Status, strings.TrimSpace(string(text)))
}

// rlsAsker asks Envoy's rate limit service.
type rlsAsker struct {
	client  rlspb.RateLimitServiceClient
	request *rlspb.RateLimitRequest
	entry   *ratelimitpb.RateLimitDescriptor_Entry // whose value is the key
}

func (t *Target) openRLS(host string, secure *tls.Config, connections, callers int) (askers []Asker,
	closed func(), err error) {
	way := insecure.NewCredentials()
	if secure != nil {
		way = credentials.NewTLS(secure)
	}
	var list []*grpc.ClientConn
	closed = func() {
		for _, c := range list {
			_ = c.Close()
		}
	}
	for range connections {
		c, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(way))
		if err != nil {
			closed()
			return nil, nil, err
		}
		list = append(list, c)
	}
	for i := range callers {
		a := &rlsAsker{client: rlspb.NewRateLimitServiceClient(list[i%len(list)]),
			entry: &ratelimitpb.RateLimitDescriptor_Entry{Key: t.Key}}
		descriptor := &ratelimitpb.RateLimitDescriptor{}
		for _, attribute := range t.Attributes {
			descriptor.Entries = append(descriptor.Entries,
				&ratelimitpb.RateLimitDescriptor_Entry{Key: attribute[0], Value: attribute[1]})
		}
		descriptor.Entries = append(descriptor.Entries, a.entry)
		a.request = &rlspb.RateLimitRequest{Domain: t.Domain,
			Descriptors: []*ratelimitpb.RateLimitDescriptor{descriptor}}
		askers = append(askers, a)
	}
	return askers, closed, nil
}

// Ask implements Asker.
func (a *rlsAsker) Ask(ctx context.Context, number int) (bool, error) {
	a.entry.Value = key(number)
	answer, err := a.client.ShouldRateLimit(ctx, a.request)
	if err != nil {
		return false, err
	}
	switch code := answer.GetOverallCode(); code {
	case rlspb.RateLimitResponse_OK:
		return true, nil
	case rlspb.RateLimitResponse_OVER_LIMIT:
		return false, nil
	default:
		return false, fmt.Errorf("the server answers %v", code)
	}
}

// respAsker asks over the Redis protocol.
type respAsker struct {
	client rueidis.Client
	args   []string
	key    int  // index in args
	first  bool // the first number of an answer says that it is allowed, not that it is refused
}

func (t *Target) openRESP(u *url.URL, door Door, secure *tls.Config, connections, callers int) (askers []Asker,
	closed func(), err error) {
	option := rueidis.ClientOption{
		InitAddress: []string{u.Host}, TLSConfig: secure, DisableCache: true, DisableRetry: true, ForceSingleClient: true,
		PipelineMultiplex: -1,
	}
	if u.User != nil {
		option.Username = u.User.Username()
		option.Password, _ = u.User.Password()
	}
	var list []rueidis.Client
	closed = func() {
		for _, c := range list {
			c.Close()
		}
	}
	for range connections {
		c, err := rueidis.NewClient(option)
		if err != nil {
			closed()
			return nil, nil, err
		}
		list = append(list, c)
	}
	args := []string{"WEIR.LIMIT", t.Domain, "1"}
	if door == Throttle {
		args = []string{"CL.THROTTLE", ""}
		for _, n := range t.Throttle {
			args = append(args, strconv.FormatInt(n, 10))
		}
	} else {
		for _, attribute := range t.Attributes {
			args = append(args, attribute[:]...)
		}
		args = append(args, t.Key, "")
	}
	for i := range callers {
		a := &respAsker{client: list[i%len(list)], args: slices.Clone(args), key: 1, first: door == RESP}
		if door == RESP {
			a.key = len(args) - 1
		}
		askers = append(askers, a)
	}
	return askers, closed, nil
}

// Ask implements Asker.
func (a *respAsker) Ask(ctx context.Context, number int) (bool, error) {
	a.args[a.key] = key(number)
	list, err := a.client.Do(ctx, a.client.B().Arbitrary(a.args...).Build()).ToArray()
	if err != nil {
		return false, err
	}
	if len(list) == 0 {
		return false, errors.New("the server answers with an empty list")
	}
	n, err := list[0].AsInt64()
	if err != nil {
		return false, err
	}
	return (n == 1) == a.first, nil
}
