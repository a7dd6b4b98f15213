package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/benchmarks"
	"github.com/weir-rl/weir/benchmarks/internal/processor"
	"github.com/weir-rl/weir/rule"
)

// slice is how long one measurement in process takes.
const slice = 200 * time.Millisecond

// cost is what f takes of processor time, in ns, if it is called again and again for some time.
func cost(d time.Duration, f func() error) (float64, error) {
	pid := os.Getpid()
	before, err := processor.Time(pid)
	if err != nil {
		return 0, err
	}
	n := 0
	for begin := time.Now(); time.Since(begin) < d; {
		for range 64 { // so that the clock costs little; a slow f is called often enough by that, too
			if err := f(); err != nil {
				return 0, err
			}
		}
		n += 64
	}
	after, err := processor.Time(pid)
	return float64(after-before) / float64(n), err
}

var errRefused = errors.New("a request was refused, which no limit should")

// inKeys are the contestants of part keys: the name of the contestant, and its name on the page.
var inKeys = [][2]string{
	{"weir", "Weir, with rule matching"}, {"weir-store", "Weir, the store alone"},
	{"floor-answer", "floor, a table of hashes"},
	{"sethvargo", "sethvargo/go-limiter"}, {"throttled", "throttled"}, {"x-time-rate-map", "x/time/rate in a map"},
	{"ulule", "ulule/limiter"},
}

// keys measures each contestant as a process of its own, so that the collector of one does not look
// through the memory of another.
func (b *bench) keys() error {
	for _, n := range []int{1e3, 1e4, 1e5, 1e6, 1e7} {
		if n > b.mostKeys {
			break
		}
		if err := b.withKeys(n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) withKeys(n int) error {
	var list []*decider
	defer func() {
		for _, d := range list {
			d.stop()
		}
	}()
	for i, c := range inKeys {
		d, err := b.startDecider(c[0], n)
		if err != nil {
			return err
		}
		list = append(list, d)
		if i%runtime.NumCPU() == runtime.NumCPU()-1 || i == len(inKeys)-1 { // as many fill as there are processors
			for _, d := range list {
				if err := d.filled(); err != nil {
					return fmt.Errorf("%s, %d keys: %w", d.name, n, err)
				}
			}
		}
	}
	for range 2*b.rounds - 1 {
		for i, d := range list {
			ns, err := d.measure(slice)
			if err != nil {
				return fmt.Errorf("%s, %d keys: %w", d.name, n, err)
			}
			b.samples.add("cpu_ns", inKeys[i][1], float64(n), ns)
		}
	}
	return nil
}

// decider is a process that runs decide.
type decider struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ready bool
}

func (b *bench) startDecider(name string, keys int) (*decider, error) {
	d := &decider{name: name, cmd: exec.CommandContext(b.ctx, b.self, "decide", name, strconv.Itoa(keys))}
	d.cmd.Stderr = b.progress
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.in, d.out = in, bufio.NewReader(out)
	return d, d.cmd.Start()
}

func (d *decider) stop() {
	_ = d.in.Close()
	_ = d.cmd.Wait()
}

// filled waits until it has all its keys.
func (d *decider) filled() error {
	if d.ready {
		return nil
	}
	_, err := d.out.ReadString('\n')
	d.ready = err == nil
	return err
}

func (d *decider) measure(t time.Duration) (ns float64, err error) {
	if _, err := fmt.Fprintln(d.in, t.Milliseconds()); err != nil {
		return 0, err
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

// keyLength is the length of a key, in bytes.
const keyLength = 16

// writeKey writes the key of a number, which looks as if drawn at random.
func writeKey(key []byte, number uint64) {
	for half := range uint64(2) { // splitmix64
		z := (2*number + half) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(key[8*half:], z^z>>31)
	}
}

// decide fills a contestant with keys, and then decides for as many milliseconds as each line of in
// says, each decision for a random key. It writes the cost of a decision. A state lasts longer than
// the measurement, so that no decision makes its key anew, and no limit is met.
func decide(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("decide takes a contestant and a number of keys")
	}
	keys, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	at := slices.IndexFunc(benchmarks.Contestants, func(c benchmarks.Contestant) bool { return c.Name == args[0] })
	if at < 0 {
		return fmt.Errorf("there is no contestant %q", args[0])
	}
	const window = 240 * time.Hour
	limit := benchmarks.Limit{N: max(1000, 500_000_000/int64(keys)), Window: window}
	deciders, closed, err := benchmarks.Contestants[at].Make(limit, keys)
	if err != nil {
		return err
	}
	ask, key := deciders(), make([]byte, keyLength)
	for i := range keys {
		writeKey(key, uint64(i))
		if !ask(bytes.Clone(key)) { // some keep it
			return errRefused
		}
	}
	debug.FreeOSMemory()
	r := uint64(1)
	random := func() error {
		r = r*6364136223846793005 + 1442695040888963407
		number, _ := bits.Mul64(r, uint64(keys))
		writeKey(key, number)
		if !ask(key) {
			return errRefused
		}
		return nil
	}
	if _, err := cost(slice, random); err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		ms, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		ns, err := cost(time.Duration(ms)*time.Millisecond, random)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, ns)
	}
	return closed()
}

// limits asks for keys that meet several limits, each of a rule of its own. Beside Weir, which
// charges all or none, go-limiter is asked once for each limit.
func (b *bench) limits() error {
	type contestant struct {
		name string
		at   int
		ask  func() error
	}
	var list []contestant
	var ends []func() error
	defer func() {
		for _, end := range ends {
			_ = end()
		}
	}()
	add := func(name string, at int, keys int, deciders []benchmarks.Decider) {
		all := make([]byte, keys*keyLength)
		for i := range keys {
			writeKey(all[i*keyLength:], uint64(i))
		}
		next := 0
		list = append(list, contestant{name, at, func() error {
			key := all[next*keyLength:][:keyLength]
			if next++; next == keys {
				next = 0
			}
			for _, ask := range deciders {
				if !ask(key) {
					return errRefused
				}
			}
			return nil
		}})
	}
	for _, n := range []int{1, 2, 3, 5, 8, 10, 20, 50} {
		rules := "limits:\n"
		for i := range n {
			rules += fmt.Sprintf("  - { name: limit-%d, when: { path: /api/** }, per: [user], allow: %d/240h }\n", i,
				100_000_000-i)
		}
		for _, keys := range []int{1, 10_000} {
			deciders, closed, err := benchmarks.MakeLimiter(keys, rules)
			if err != nil {
				return err
			}
			ends = append(ends, closed)
			add(map[int]string{1: "Weir, one key", 10_000: "Weir, 10,000 keys"}[keys], n, keys,
				[]benchmarks.Decider{deciders()})
		}
		var each []benchmarks.Decider
		rival := benchmarks.Contestants[slices.IndexFunc(benchmarks.Contestants,
			func(c benchmarks.Contestant) bool { return c.Name == "sethvargo" })]
		for i := range n {
			deciders, closed, err := rival.Make(benchmarks.Limit{N: 100_000_000 - int64(i), Window: 240 * time.Hour}, 1)
			if err != nil {
				return err
			}
			ends = append(ends, closed)
			each = append(each, deciders())
		}
		add("go-limiter, one key, one limit after the other", n, 1, each)
	}
	for round := range b.rounds + 1 {
		for _, c := range list {
			ns, err := cost(slice/2, c.ask)
			if err != nil {
				return fmt.Errorf("%s, %d limits: %w", c.name, c.at, err)
			}
			if round > 0 {
				b.samples.add("cpu_ns", c.name, float64(c.at), ns)
			}
		}
	}
	return nil
}

// ruleKind is a kind of rules; a request meets one of them. Each # is a rule's number.
type ruleKind struct {
	name             string
	when             string
	attribute, value string // of the request
	most             int    // rules: more of some kinds take long to ask
}

var ruleKinds = []ruleKind{
	{"path: /svc7/**", `when: { path: "/svc#/**" }`, "path", "/svc#/items", 1e5},
	{"user: u7", `when: { user: "u#" }`, "user", "u#", 1e5},
	{`host: "*.c7.example"`, `when: { host: "*.c#.example" }`, "host", "a.c#.example", 1e5},
	{"ip: 10.0.7.0/24", `when: { ip: "#.0/24" }`, "ip", "#.9", 1e5},
	{"path: /**/svc7/**", `when: { path: "/**/svc#/**" }`, "path", "/api/svc#/items", 1e5},
	{`path: "~^/svc7/[a-z]+$"`, `when: { path: "~^/svc#/[a-z]+$" }`, "path", "/svc#/items", 1e5},
	{`path: "~/svc7/[a-z]+"`, `when: { path: "~/svc#/[a-z]+" }`, "path", "/api/svc#/items", 1e5},
	{`if: path == "/svc7"`, `if: 'path == "/svc#"'`, "path", "/svc#", 1e5},
	{"if: int(attr.n) >= 70 && int(attr.n) <= 79", `if: 'int(attr.n) >= #0 && int(attr.n) <= #9'`, "n", "#5", 1e5},
	{`user: "~^[a-z]{7,}[0-9]$"`, `when: { user: "~^[a-z]{#,}[0-9]$" }`, "user", "-", 1e3},
	{"if: path.size() + host.size() == 107", `if: 'path.size() + host.size() == 1# + 100'`, "path", "/", 1e3},
}

// number puts the number of a rule into a text.
func (k *ruleKind) number(text string, i int) string {
	number := strconv.Itoa(i)
	switch {
	case k.attribute == "ip":
		number = fmt.Sprintf("%d.%d.%d", 10+i>>16, i>>8&255, i&255)
	case strings.Contains(text, "{#,}"):
		number = strconv.Itoa(i % 100)
	}
	return strings.ReplaceAll(text, "#", number)
}

// files are the rules, in files that are not too long to be loaded.
func (k *ruleKind) files(n int) (files []string) {
	const inOne = 20_000
	var text strings.Builder
	for i := range n {
		if i%inOne == 0 {
			text.WriteString("limits:\n")
		}
		fmt.Fprintf(&text, "  - { name: r%d, %s, per: [method], allow: 100000000/240h }\n", i, k.number(k.when, i))
		if i%inOne == inOne-1 || i == n-1 {
			files = append(files, text.String())
			text.Reset()
		}
	}
	return files
}

// rules measures one kind after the other; of each, sets of all sizes are there at a time.
func (b *bench) rules() error {
	for _, k := range ruleKinds {
		if err := b.rulesOf(&k); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		debug.FreeOSMemory()
	}
	return nil
}

func (b *bench) rulesOf(k *ruleKind) error {
	type set struct {
		n   int
		ask func() error
	}
	var sets []set
	for n := 1; n <= k.most; n *= 10 {
		limiter, closed, err := benchmarks.NewLimiter(1, k.files(n)...)
		if err != nil {
			return err
		}
		defer func() { _ = closed() }()
		pairs := rule.Pairs{{Name: k.attribute, Value: k.number(k.value, n/2)}}
		for _, p := range (rule.Pairs{{Name: "ip", Value: "203.0.113.77"}, {Name: "method", Value: "GET"},
			{Name: "host", Value: "shop.example.com"}}) {
			if p.Name != k.attribute {
				pairs = append(pairs, p)
			}
		}
		request := weir.Request{Domain: "default", Attributes: pairs, Hits: 1}
		var d weir.Decision
		meets := strings.Contains(k.value, "#")
		sets = append(sets, set{n, func() error {
			if err := limiter.Decide(context.Background(), &request, &d); err != nil {
				return err
			}
			if !d.Allowed || meets != (len(d.Limits) == 1) {
				return fmt.Errorf("allowed %v by %d limits", d.Allowed, len(d.Limits))
			}
			return nil
		}})
	}
	for round := range b.rounds + 1 {
		for _, s := range sets {
			ns, err := cost(slice/2, s.ask)
			if err != nil {
				return fmt.Errorf("%d rules: %w", s.n, err)
			}
			if round > 0 {
				b.samples.add("cpu_ns", k.name, float64(s.n), ns)
			}
		}
	}
	return nil
}
