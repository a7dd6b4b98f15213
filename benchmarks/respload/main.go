// Command respload compares what decisions cost over the Redis protocol: Weir's door on the
// embedded store, redcon (a library for such servers) with an answer that needs no thought and with
// the same store behind it, throttlecrab if it is installed, and Redis itself that runs a GCRA
// script, or only counts.
//
//	go build -o /tmp/weir ./cmd/weir
//	go run ./respload -weir /tmp/weir        # in benchmarks/
//
// redis-benchmark sends the load, and shares the machine with the server. The servers are measured
// in turn, A B C D A B C D, for each length of pipeline; a Markdown table of the medians is
// printed, with the processor time of the server for each decision. With -json each measurement is
// a line instead.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

func main() {
	var err error
	if len(os.Args) > 2 && os.Args[1] == "redcon" {
		err = serveRedcon(os.Args[2], len(os.Args) > 3)
	} else {
		err = run(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "respload:", err)
		os.Exit(1)
	}
}

// script is GCRA as it is usually written for Redis: the same bucket as CL.THROTTLE's.
const script = `local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local each = tonumber(ARGV[3]) * 1000000 / tonumber(ARGV[2])
local limit = tonumber(ARGV[1]) + 1
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new = tat + each
local room = now - (new - each * limit)
if room < 0 then
  return {1, limit, 0, math.ceil(-room / 1000000), math.ceil((tat - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%d', new), 'PX', math.ceil((new - now) / 1000))
return {0, limit, math.floor(room / each), -1, math.ceil((new - now) / 1000000)}`

// contestant is a server and the command that is sent to it.
type contestant struct {
	name    string
	start   func(port string) *exec.Cmd
	command []string
	process *exec.Cmd
	port    string
	rates   map[int][]float64 // decisions a second, by pipeline
	costs   map[int][]float64 // µs of the server
}

// result is one measurement, as -json writes it.
type result struct {
	Name      string  `json:"name"`
	Pipeline  int     `json:"pipeline"`
	Clients   int     `json:"clients"`
	PerSecond float64 `json:"decisions_per_second"`
	CPU       float64 `json:"cpu_us"` // of the server, for one decision
}

func run(w io.Writer) error {
	weir := flag.String("weir", "", "the built program")
	seconds := flag.Float64("seconds", 2, "length of a measurement, about")
	rounds := flag.Int("rounds", 3, "measurements of each")
	clients := flag.Int("clients", 50, "connections")
	keys := flag.Int("keys", 10_000, "keys")
	lengths := flag.String("pipelines", "1,16", "commands that a connection sends at a time; several, with commas")
	throttle := flag.String("throttle", "999,100000,60",
		"max_burst, count and period of CL.THROTTLE and what is like it")
	throttlecrab := flag.String("throttlecrab", "throttlecrab-server",
		"path of throttlecrab's server; left out if it is not there")
	only := flag.String("only", "", "servers to measure, by their names, with commas; all if empty")
	asJSON := flag.Bool("json", false, "print each measurement as a line of JSON, instead of the table")
	flag.Parse()
	if *weir == "" {
		return errors.New("-weir: is missing; name the program, as go build -o made it")
	}
	var pipelines []int
	for text := range strings.SplitSeq(*lengths, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-pipelines: %q is no number of commands", text)
		}
		pipelines = append(pipelines, n)
	}
	numbers := append([]string{"key:__rand_int__"}, strings.Split(*throttle, ",")...)
	if len(numbers) != 4 {
		return fmt.Errorf("-throttle: %s is not max_burst,count,period", *throttle)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	list := []*contestant{
		{name: "Weir, CL.THROTTLE", command: append([]string{"CL.THROTTLE"}, numbers...),
			start: func(port string) *exec.Cmd { return startWeir(*weir, port) }},
		{name: "Weir, WEIR.LIMIT", command: []string{"WEIR.LIMIT", "default", "1", "key", "key:__rand_int__"},
			start: func(port string) *exec.Cmd { return startWeir(*weir, port) }},
		{name: "redcon, a constant answer", command: append([]string{"CL.THROTTLE"}, numbers...),
			start: func(port string) *exec.Cmd { return exec.Command(self, "redcon", "127.0.0.1:"+port) }},
		{name: "redcon on Weir's store", command: append([]string{"CL.THROTTLE"}, numbers...),
			start: func(port string) *exec.Cmd { return exec.Command(self, "redcon", "127.0.0.1:"+port, "store") }},
		{name: "Redis, EVALSHA of GCRA", start: startRedis},
		{name: "Redis, INCR", command: []string{"INCR", "key:__rand_int__"}, start: startRedis},
	}
	if _, err := exec.LookPath(*throttlecrab); err == nil {
		list = append(list, &contestant{name: "throttlecrab, THROTTLE",
			command: append([]string{"THROTTLE"}, numbers...), start: func(port string) *exec.Cmd {
				return exec.Command(*throttlecrab, "--redis", "--redis-host", "127.0.0.1", "--redis-port", port,
					"--log-level", "error")
			}})
	}
	if *only != "" {
		// The names have commas themselves.
		list = slices.DeleteFunc(list,
			func(c *contestant) bool { return !strings.Contains(","+*only+",", ","+c.name+",") })
	}
	for _, c := range list {
		c.rates, c.costs = map[int][]float64{}, map[int][]float64{}
		if err := c.launch(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer c.process.Wait()
		defer c.process.Process.Kill()
		if c.command == nil {
			sha, err := exec.Command("redis-cli", "-p", c.port, "SCRIPT", "LOAD", script).Output()
			if err != nil {
				return err
			}
			c.command = append([]string{"EVALSHA", strings.TrimSpace(string(sha)), "1"}, numbers...)
		}
	}
	for round := range *rounds + 1 {
		for _, pipeline := range pipelines {
			for _, c := range list {
				n := 20_000 * pipeline // to warm up, and to find how many fill the time
				if round > 0 {
					n = max(n, int(*seconds*c.rates[pipeline][0]))
				}
				rate, cost, err := c.measure(pipeline, *clients, *keys, n)
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				if round == 1 {
					c.rates[pipeline] = c.rates[pipeline][:0]
				}
				c.rates[pipeline] = append(c.rates[pipeline], rate)
				if round > 0 {
					c.costs[pipeline] = append(c.costs[pipeline], cost)
				}
				if round > 0 && *asJSON {
					if err := json.NewEncoder(w).Encode(result{c.name, pipeline, *clients, rate, cost}); err != nil {
						return err
					}
				}
			}
		}
	}
	if *asJSON {
		return nil
	}
	heading, rule := "| server |", "| --- |"
	for _, pipeline := range pipelines {
		heading += fmt.Sprintf(" pipeline %d: decisions/s | CPU µs |", pipeline)
		rule += " --- | --- |"
	}
	fmt.Fprintf(w, "%s\n%s\n", heading, rule)
	for _, c := range list {
		fmt.Fprintf(w, "| %s |", c.name)
		for _, pipeline := range pipelines {
			fmt.Fprintf(w, " %.0fk | %.2f |", median(c.rates[pipeline])/1000, median(c.costs[pipeline]))
		}
		fmt.Fprintln(w)
	}
	return nil
}

func startRedis(port string) *exec.Cmd {
	return exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
}

func startWeir(path, port string) *exec.Cmd {
	cmd := exec.Command(path, "serve", "--listen-http=off", "--listen-grpc=off", "--listen-admin=off",
		"--listen-resp=127.0.0.1:"+port,
		"--overload-line=0s") // a closed loop of many connections always stands in line
	cmd.Dir = os.TempDir()
	return cmd
}

// launch starts the server on a free port.
func (c *contestant) launch() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, c.port, _ = net.SplitHostPort(l.Addr().String())
	l.Close()
	c.process = c.start(c.port)
	if err := c.process.Start(); err != nil {
		return err
	}
	for range 500 {
		if nc, err := net.Dial("tcp", "127.0.0.1:"+c.port); err == nil {
			return nc.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("it does not open its port")
}

var perSecond = regexp.MustCompile(`([\d.]+) requests per second`)

func (c *contestant) measure(pipeline, clients, keys, n int) (rate, cost float64, err error) {
	before, err := processor.Time(c.process.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	args := []string{"-p", c.port, "-P", strconv.Itoa(pipeline), "-c", strconv.Itoa(clients), "-n", strconv.Itoa(n),
		"-r", strconv.Itoa(keys), "-q"}
	out, err := exec.Command("redis-benchmark", append(args, c.command...)...).CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("redis-benchmark: %w\n%s", err, out)
	}
	after, err := processor.Time(c.process.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	found := perSecond.FindAllStringSubmatch(string(out), -1)
	if len(found) == 0 {
		return 0, 0, fmt.Errorf("redis-benchmark says %q", out)
	}
	if rate, err = strconv.ParseFloat(found[len(found)-1][1], 64); err != nil {
		return 0, 0, err
	}
	return rate, float64(after-before) / 1e3 / float64(n), nil
}

func median[T cmp.Ordered](list []T) T {
	slices.Sort(list)
	return list[len(list)/2]
}
