package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
)

// nodeVariable in the environment makes the test binary a node on the Redis of that URL.
const nodeVariable = "WEIR_TEST_ASK_NODE"

func TestMain(m *testing.M) {
	if url := os.Getenv(nodeVariable); url != "" {
		if err := serve(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve is a node, until standard input ends.
func serve(url string) error {
	s, err := redis.Open(redis.Options{URL: url, Heartbeat: heartbeat})
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := nodes.New(nodes.Options{Client: s.Client, Prefix: redis.DefaultPrefix, Name: s.Name(), Alive: s.Nodes})
	if err != nil {
		return err
	}
	answerAll(n)
	go n.Listen(context.Background())
	fmt.Println(n.Name())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

const heartbeat = 200 * time.Millisecond

// answerAll gives a node the kinds of the tests.
func answerAll(n *nodes.Nodes) {
	n.Handle("who",
		func(_ context.Context, args []byte) ([]byte, error) { return []byte(n.Name() + string(args)), nil })
	n.HandlePolled("polled",
		func(context.Context, []byte) ([]byte, error) { return []byte(n.Name()), nil })
	n.Handle("fails", func(context.Context, []byte) ([]byte, error) { return nil, errors.New("not today") })
	n.Handle("panics", func(context.Context, []byte) ([]byte, error) { panic("hostile") })
	n.Handle("long", func(context.Context, []byte) ([]byte, error) { return make([]byte, nodes.MaxPlain), nil })
	n.Handle("too long", func(context.Context, []byte) ([]byte, error) {
		b := make([]byte, 2*nodes.MaxAnswer)
		r := rand.NewChaCha8([32]byte{})
		_, _ = r.Read(b)
		return b, nil
	})
}

// node is one in this process.
type node struct {
	*nodes.Nodes
	store *redis.Store
}

// start makes a node that waits for answers as long as the package's tests may, unless o says
// otherwise.
func start(t *testing.T, url string, o nodes.Options, handle func(*nodes.Nodes)) node {
	t.Helper()
	s, err := redis.Open(redis.Options{URL: url, Heartbeat: heartbeat})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	o.Client, o.Prefix, o.Name = s.Client, redis.DefaultPrefix, s.Name()
	if o.Alive == nil {
		o.Alive = s.Nodes
	}
	if o.Wait == 0 {
		o.Wait = patience.Left(t)
		o.Turn = o.Wait
	}
	n, err := nodes.New(o)
	if err != nil {
		t.Fatal(err)
	}
	handle(n)
	listening := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { defer close(listening); n.Listen(ctx) }()
	t.Cleanup(func() { cancel(); <-listening })
	return node{n, s}
}

// several starts nodes in this process that know of each other and hear each other.
func several(t *testing.T, url string, number int) []node {
	t.Helper()
	var all []node
	for range number {
		all = append(all, start(t, url, nodes.Options{}, answerAll))
	}
	acquainted(t, all)
	return all
}

// acquainted waits until each of them hears all of them.
func acquainted(t *testing.T, all []node) {
	t.Helper()
	for _, n := range all {
		patience.Until(t, "all nodes are known", func() bool { return n.store.Nodes() == len(all) })
	}
	listeners(t, all[0], len(all))
}

// listeners waits until so many nodes hear questions.
func listeners(t *testing.T, n node, number int) {
	t.Helper()
	channel := redis.DefaultPrefix + "1ask"
	patience.Until(t, "all nodes hear questions", func() bool {
		c, err := n.store.Client()
		if err != nil {
			return false
		}
		hearing := int64(0)
		for _, server := range c.Nodes() { // of a Cluster each knows its own
			if m, err := server.Do(t.Context(), server.B().PubsubNumsub().Channel(channel).Build()).AsIntMap(); err == nil {
				hearing += m[channel]
			}
		}
		return hearing == int64(number)
	})
}

// ask returns what the nodes said, sorted.
func ask(t *testing.T, n node, kind, args string) ([]string, nodes.Tally, error) {
	t.Helper()
	var said []string
	tally, err := n.Ask(t.Context(), kind, []byte(args), func(a nodes.Answer) {
		if kind == "who" && string(a.Data) != a.Node+args {
			t.Errorf("%s said %q", a.Node, a.Data)
		}
		said = append(said, a.Node)
	})
	slices.Sort(said)
	return said, tally, err
}

func namesOf(all []node) (names []string) {
	for _, n := range all {
		names = append(names, n.Name())
	}
	slices.Sort(names)
	return names
}

// Each node hears all of them, once, whatever kind of Redis they share.
func TestAskAll(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"server": func(t *testing.T) string { return redistest.Start(t).URL() },
		"TLS": func(t *testing.T) string {
			server, files := redistest.StartTLS(t)
			return server.URL() + "?ca=" + files.CA
		},
		"Sentinel": func(t *testing.T) string { return redistest.StartSentinel(t).URL() },
		"Cluster":  func(t *testing.T) string { return redistest.StartCluster(t, 3, 0).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "server" {
				effort.Long(t, "starts several servers")
			}
			all := several(t, url(t), 4)
			for _, n := range all {
				said, tally, err := ask(t, n, "who", `{"a":[1,"é"]}`)
				if err != nil || tally != (nodes.Tally{Asked: 4, Answered: 4}) || !slices.Equal(said, namesOf(all)) {
					t.Errorf("%v, %+v, %v", said, tally, err)
				}
				if said, tally, err := ask(t, n, "long", ""); err != nil || len(said) != 4 {
					t.Errorf("long: %v, %+v, %v", said, tally, err)
				}
			}
			if names, err := all[0].store.NodeNames(t.Context()); err != nil ||
				!slices.Equal(slices.Sorted(slices.Values(names)), namesOf(all)) {
				t.Errorf("alive are %v, %v", names, err)
			}
		})
	}
}

// What is asked leaves nothing behind, and the list of answers expires.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := several(t, server.URL(), 3)
	for range 3 {
		if _, tally, err := ask(t, all[0], "who", ""); err != nil || tally.Answered != 3 {
			t.Fatalf("%+v, %v", tally, err)
		}
	}
	for _, key := range server.Do("KEYS", "weir:1ask*").([]any) {
		if ttl := server.Do("PTTL", fmt.Sprint(key)).(int64); ttl < 0 && ttl != -2 || ttl > 10_000 {
			t.Errorf("%v expires after %d ms", key, ttl)
		}
	}
}

// Without Redis a node answers alone and says why; when Redis is back, all are heard again.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := several(t, server.URL(), 3)
	server.Kill()
	said, tally, err := ask(t, all[1], "who", "")
	if err != nil || tally.Answered != 1 || tally.Asked != 3 || tally.Remark == "" ||
		!slices.Equal(said, []string{all[1].Name()}) {
		t.Errorf("%v, %+v, %v", said, tally, err)
	}
	if s := all[1].Stats(); s.Missing[nodes.Redis] != 2 || s.Answers != 0 {
		t.Errorf("%+v", s)
	}
	server.Restart()
	for _, n := range all {
		listeners(t, n, 3)
		patience.Until(t, "all are heard", func() bool {
			said, tally, err := ask(t, n, "who", "")
			return err == nil && tally == nodes.Tally{Asked: 3, Answered: 3} && slices.Equal(said, namesOf(all))
		})
	}
	// A Redis that hangs costs no more than the wait for answers.
	hasty := start(t, server.URL(), nodes.Options{Wait: 100 * time.Millisecond}, answerAll)
	patience.Until(t, "it knows the others", func() bool { return hasty.store.Nodes() == 4 })
	server.Pause()
	defer server.Resume()
	if said, tally, err := ask(t, hasty, "who", ""); err != nil || !slices.Equal(said, []string{hasty.Name()}) ||
		tally.Remark == "" {
		t.Errorf("%v, %+v, %v", said, tally, err)
	}
}

// After a failover the nodes find each other at the new master.
func TestFailover(t *testing.T) {
	t.Parallel()
	effort.Long(t, "waits for a real failover")
	s := redistest.StartSentinel(t)
	all := several(t, s.URL(), 3)
	s.AwaitMaster(s.KillMaster())
	begun := time.Now()
	for _, n := range all {
		patience.Until(t, "all are heard", func() bool {
			// Each try may take longer than the one before, in case that this machine is slow.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Since(begun)/8)
			defer cancel()
			heard := 0
			tally, err := n.Ask(ctx, "who", nil, func(nodes.Answer) { heard++ })
			return err == nil && heard == 3 && tally.Remark == ""
		})
	}
}

// A node that does not know a kind, one whose handler fails, and one whose answer is too long do
// not answer; that does not keep others from it.
func TestOldAndNew(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := several(t, server.URL(), 2)
	const wait = 2 * time.Second
	newer := start(t, server.URL(), nodes.Options{Wait: wait}, func(n *nodes.Nodes) {
		answerAll(n)
		n.Handle("new", func(context.Context, []byte) ([]byte, error) { return nil, nil })
	})
	acquainted(t, append(all, newer))
	if said, tally, err := ask(t, newer, "new", ""); err != nil || tally != (nodes.Tally{Asked: 3, Answered: 1}) ||
		!slices.Equal(said, []string{newer.Name()}) {
		t.Errorf("new: %v, %v %q, %v", said, tally, tally.Remark, err)
	}
	if _, tally, err := ask(t, newer, "too long", ""); err != nil || tally != (nodes.Tally{Asked: 3, Answered: 1}) {
		t.Errorf("too long: %+v, %v", tally, err)
	}
	if said, tally, err := ask(t, newer, "fails", ""); err == nil || !strings.Contains(err.Error(), "not today") ||
		len(said) != 0 || tally.Answered != 0 {
		t.Errorf("fails: %v, %+v, %v", said, tally, err)
	}
	for _, n := range all {
		if _, _, err := ask(t, n, "new", ""); err == nil {
			t.Error("an old node asks what it does not know")
		}
		patience.Until(t, "what was not answered is counted",
			func() bool { s := n.Stats(); return s.Unknown == 1 && s.Failed == 2 && s.Heard == 3 })
	}
	s := newer.Stats()
	for _, kind := range s.Kinds {
		want := nodes.KindStats{Kind: kind.Kind}
		if kind.Kind == "new" || kind.Kind == "too long" || kind.Kind == "fails" {
			want.Incomplete = 1
		}
		if kind != want {
			t.Errorf("%+v, want %+v", kind, want)
		}
	}
	if want := ([nodes.Causes]uint64{nodes.Silent: 6}); s.Asked != 3 || s.Answers != 0 || s.Missing != want ||
		s.Times.Sum < 3*wait {
		t.Errorf("%+v", s)
	}
	if _, _, err := ask(t, newer, "who", `"`+strings.Repeat("x", 500)+`"`); err == nil {
		t.Error("a question of more than 512 bytes is asked")
	}
	if n := newer.Stats().Missing[nodes.TooLong]; n != 2 {
		t.Errorf("%d answers are missing since the question is too long", n)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newer.Ask(cancelled, "who", nil, func(nodes.Answer) {}); err != nil {
		t.Error(err)
	}
	if n := newer.Stats().Missing[nodes.Cancelled]; n != 2 {
		t.Errorf("%d answers are missing since nobody waited for them", n)
	}
	patience.Until(t, "all answer in time", func() bool {
		_, tally, err := ask(t, newer, "who", "")
		if err != nil {
			t.Fatal(err)
		}
		return tally.Answered == 3
	})
	s = newer.Stats()
	times := uint64(0)
	for _, n := range s.Times.Counts {
		times += n
	}
	who := s.Kinds[len(s.Kinds)-1]
	late := who.Incomplete // on a busy machine
	if who.Incomplete = 0; s.Answers < 2 || s.Answers > 2+late ||
		who != (nodes.KindStats{Kind: "who", Complete: 1, Alone: 2}) || times != 4+late {
		t.Errorf("%+v", s)
	}
}

// All nodes together ask no more than 20 questions a second; a question beyond waits, and else this
// node answers alone.
func TestRate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var all []node
	for range 3 {
		all = append(all, start(t, server.URL(), nodes.Options{}, answerAll))
	}
	hasty := start(t, server.URL(), nodes.Options{Wait: 2 * time.Second, Turn: time.Second}, answerAll)
	acquainted(t, append(all, hasty))
	const rate = "weir:1ask:rate"
	if _, _, err := ask(t, all[0], "who", ""); err != nil {
		t.Fatal(err)
	}
	// The key may be gone already, on a machine that is slow.
	if ttl := server.Do("PTTL", rate).(int64); ttl > 1000 || ttl == -1 {
		t.Errorf("questions are counted for %d ms", ttl)
	}
	// A second that is full; it is over when the test says so.
	second := func(asked int) { server.Do("SET", rate, fmt.Sprint(asked), "EX", "3600") }
	second(nodes.PerSecond)
	if said, tally, err := ask(t, hasty, "who", ""); err != nil || len(said) != 1 || tally.Answered != 1 ||
		tally.Remark == "" {
		t.Errorf("%v, %+v, %v", said, tally, err)
	}
	if s := hasty.Stats(); s.Missing[nodes.Busy] != 3 || s.Busy == 0 {
		t.Errorf("%+v", s)
	}
	var asking sync.WaitGroup
	var done atomic.Int64
	for i := range 3 * nodes.PerSecond {
		asking.Go(func() {
			heard := 0
			if _, err := all[i%3].Ask(t.Context(), "who", nil, func(nodes.Answer) { heard++ }); err != nil ||
				heard != 4 {
				t.Errorf("%d are heard, %v", heard, err)
			}
			done.Add(1)
		})
	}
	// Each second lets as many through, and turns the others away.
	for n := range 3 {
		second(0)
		patience.Until(t, "a second is full", func() bool { return done.Load() >= int64(n+1)*nodes.PerSecond })
		waiting := 3*nodes.PerSecond - (n+1)*nodes.PerSecond
		patience.Until(t, "the others have been turned away", func() bool {
			asked, err := strconv.Atoi(fmt.Sprint(server.Do("GET", rate)))
			return err == nil && asked >= nodes.PerSecond+waiting
		})
		if got := done.Load(); got != int64(n+1)*nodes.PerSecond {
			t.Errorf("in %d seconds %d questions were asked", n+1, got)
		}
	}
	asking.Wait()
}

// TestPolledRate: what pages poll takes nothing of the questions of others, and is bounded itself.
func TestPolledRate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := []node{start(t, server.URL(), nodes.Options{}, answerAll), start(t, server.URL(), nodes.Options{Wait: 2 * time.Second, Turn: time.Second}, answerAll)}
	acquainted(t, all)
	full := func(key string) { server.Do("SET", key, fmt.Sprint(nodes.PerSecond), "EX", "3600") }
	for _, c := range []struct{ full, ask, refused string }{
		{"weir:1ask:rate:polled", "who", "polled"}, {"weir:1ask:rate", "polled", "who"},
	} {
		server.Do("DEL", "weir:1ask:rate", "weir:1ask:rate:polled")
		full(c.full)
		if _, tally, err := ask(t, all[0], c.ask, ""); err != nil || tally.Answered != 2 {
			t.Errorf("with %s full, %s: %+v, %v", c.full, c.ask, tally, err)
		}
		if _, tally, err := ask(t, all[1], c.refused, ""); err != nil || tally.Answered != 1 || tally.Remark == "" {
			t.Errorf("with %s full, %s: %+v, %v", c.full, c.refused, tally, err)
		}
	}
}

// What is no question, and what is no answer, does no harm.
func TestHostile(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := several(t, server.URL(), 2)
	for _, text := range []string{"", "{", "null", `{"id":"x"}`, `{"id":"x","node":"y","kind":"who","until":1}`,
		strings.Repeat("[", 10_000), "\x00\xff", `{"id":"p","node":"y","kind":"panics","until":9000000000000000}`} {
		server.Do("PUBLISH", "weir:1ask", text)
	}
	if _, tally, err := ask(t, all[0], "who", ""); err != nil || tally.Answered != 2 {
		t.Fatalf("%+v, %v", tally, err)
	}
	if failed := all[1].Stats().Failed; failed != 1 {
		t.Errorf("%d questions failed, one of which panics", failed)
	}
	if got := server.Do("EXISTS", "weir:1ask:x").(int64); got != 0 {
		t.Error("a question whose time is over was answered")
	}
	// A node that answers with rubbish, and twice in the name of another.
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hearing, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		_ = c.Receive(hearing, c.B().Subscribe().Channel("weir:1ask").Build(), func(m rueidis.PubSubMessage) {
			_, rest, _ := strings.Cut(m.Message, `"id":"`)
			id, _, _ := strings.Cut(rest, `"`)
			go func() {
				for _, text := range []string{"", "1", "1\x00", "1\xffabc", "1\x01a", "1\x01a",
					"1\x01a\x28\xb5\x2f\xfd", "2\x01a", strings.Repeat("x", 300<<10)} {
					c.Do(hearing, c.B().Rpush().Key("weir:1ask:"+id).Element(text).Build())
				}
				c.Do(hearing, c.B().Pexpire().Key("weir:1ask:"+id).Milliseconds(10_000).Build())
			}()
		})
	}()
	listeners(t, all[0], 3)
	patient, err := nodes.New(nodes.Options{Client: all[0].store.Client, Prefix: redis.DefaultPrefix, Name: "other",
		Alive: func() int { return 3 }, Wait: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	patient.Handle("who", func(context.Context, []byte) ([]byte, error) { return []byte("other"), nil })
	heard := map[string]int{}
	if _, err := patient.Ask(t.Context(), "who", nil, func(a nodes.Answer) { heard[a.Node]++ }); err != nil {
		t.Fatal(err)
	}
	owed := patient.Stats().Answers
	for _, n := range patient.Stats().Missing {
		owed += n
	}
	if owed != 2 {
		t.Errorf("two nodes owed an answer: %+v", patient.Stats())
	}
	for name, n := range heard {
		// An empty answer is one, so "a" may be heard: once, if it comes before the answers of both
		// others.
		if n != 1 || name != "other" && name != "a" && !slices.Contains(namesOf(all), name) {
			t.Errorf("%q is heard %d times", name, n)
		}
	}
}

// If a user may not subscribe, the log says so once, and other users go on.
func TestForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "old", "on", ">secret", "~*", "resetchannels", "&weir:1opened", "+@all")
	lines := make(chan string, 100)
	s, err := redis.Open(redis.Options{URL: "redis://old:secret@" + server.Addr(), Heartbeat: heartbeat})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n, err := nodes.New(nodes.Options{Client: s.Client, Prefix: redis.DefaultPrefix, Name: s.Name(),
		Alive: func() int { return 2 }, Logger: slog.New(
			slog.NewTextHandler(writer(func(b []byte) { lines <- string(b) }), nil))})
	if err != nil {
		t.Fatal(err)
	}
	answerAll(n)
	patience.Until(t, "there is a connection", func() bool { _, err := s.Client(); return err == nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.Listen(ctx)
	if line := patience.Receive(t, "a warning", lines); !strings.Contains(line, "NOPERM") {
		t.Error(line)
	}
	heard := 0
	tally, err := n.Ask(ctx, "who", nil, func(nodes.Answer) { heard++ })
	if err != nil || heard != 1 || !strings.Contains(tally.Remark, "NOPERM") {
		t.Errorf("%d, %+v, %v", heard, tally, err)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestOptions(t *testing.T) {
	client := func() (rueidis.Client, error) { return nil, errors.New("away") }
	alive := func() int { return 0 }
	for _, o := range []nodes.Options{
		{}, {Client: client, Alive: alive}, {Client: client, Name: "x"}, {Alive: alive, Name: "x"},
		{Client: client, Alive: alive, Name: strings.Repeat("x", 161)}, {Client: client, Alive: alive, Name: "x", Wait: -1},
	} {
		if _, err := nodes.New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	n, err := nodes.New(nodes.Options{Client: client, Alive: alive, Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	answerAll(n)
	heard := 0
	tally, err := n.Ask(t.Context(), "who", nil, func(nodes.Answer) { heard++ })
	if err != nil || heard != 1 || tally.String() != "1 node" || tally.Remark == "" {
		t.Errorf("%d, %+v, %v", heard, tally, err)
	}
	if kinds := n.Kinds(); !slices.Equal(kinds, []string{"fails", "long", "panics", "polled", "too long", "who"}) {
		t.Errorf("%v", kinds)
	}
}
