package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// region is a Redis and the nodes that decide on it.
type region struct {
	name  string
	redis string           // its address
	links map[string]*link // to the other regions, by name
	nodes []*node
}

// node is a server that answers the attack.
type node struct {
	http, admin string // addresses
}

const nodesEach = 2

// process is a program that was started, and its last lines.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []string
}

// processes are all that were started.
type processes struct {
	list []*process
}

// start starts a program in a folder. It lives until stop is called.
func (p *processes) start(name, dir, program string, args ...string) (*process, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return nil, err
	}
	s := &process{name: name, cmd: cmd, done: make(chan struct{})}
	p.list = append(p.list, s)
	go func() {
		defer close(s.done)
		in := bufio.NewScanner(reader)
		for in.Scan() {
			s.mu.Lock()
			s.lines = append(s.lines[max(0, len(s.lines)-200):], in.Text())
			s.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	return s, nil
}

// stop ends what was started, the last one first: by its own process id, in peace, and by force if
// it is still there after five seconds.
func (p *processes) stop() {
	for _, s := range slices.Backward(p.list) {
		if s.cmd.Process.Signal(syscall.SIGTERM) != nil {
			_ = s.cmd.Process.Kill()
		}
	}
	force := time.After(5 * time.Second)
	for _, s := range p.list {
		select {
		case <-s.done:
		case <-force:
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
}

// said waits for a line of the program that matches a pattern, and returns its first group.
func (s *process) said(ctx context.Context, pattern string) (string, error) {
	want := regexp.MustCompile(pattern)
	for {
		s.mu.Lock()
		lines := slices.Clone(s.lines)
		s.mu.Unlock()
		for _, line := range lines {
			if found := want.FindStringSubmatch(line); found != nil {
				return found[1], nil
			}
		}
		select {
		case <-s.done:
			return "", fmt.Errorf("%s has ended:\n%s", s.name, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		case <-ctx.Done():
			return "", fmt.Errorf("%s has not started in time:\n%s", s.name, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freeAddress returns an address of the loopback at which nobody listens now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// startRedis starts a Redis. Its port was free a moment ago; if it is not any more, another one is
// tried.
func (p *processes) startRedis(ctx context.Context, region, dir string) (addr string, err error) {
	for range 5 {
		if addr, err = freeAddress(); err != nil {
			return "", err
		}
		_, port, _ := net.SplitHostPort(addr)
		s, err := p.start("redis-server of "+region, dir, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "")
		if err != nil {
			return "", err
		}
		if _, err = s.said(ctx, "(Ready to accept connections)"); err == nil {
			return addr, nil
		} else if ctx.Err() != nil {
			return "", err
		}
	}
	return "", err
}

// startWeir starts a node of a region with the configuration of its folder. What differs is where
// things are.
func (p *processes) startWeir(ctx context.Context, program, dir string, r *region) error {
	var stores []string
	for name, l := range r.links {
		stores = append(stores, name+"=redis://"+l.addr)
	}
	slices.Sort(stores)
	s, err := p.start(fmt.Sprintf("node %d of %s", len(r.nodes)+1, r.name), filepath.Join(dir, r.name), program, "serve",
		"--store=redis://"+r.redis, "--regions-stores="+strings.Join(stores, ","),
		"--listen-http=127.0.0.1:0", "--listen-admin=127.0.0.1:0")
	if err != nil {
		return err
	}
	n := &node{}
	if n.http, err = s.said(ctx, `door=http addr=(\S+)`); err != nil {
		return err
	}
	if n.admin, err = s.said(ctx, `door=admin addr=(\S+)`); err != nil {
		return err
	}
	r.nodes = append(r.nodes, n)
	return nil
}

// startRival starts another program in place of Weir, one node for each region; see
// docs/regions.md.
func (p *processes) startRival(ctx context.Context, program, gossip string, r *region, o *options) (err error) {
	n := &node{}
	if n.http, err = freeAddress(); err != nil {
		return err
	}
	var peers []string
	for _, l := range r.links {
		peers = append(peers, "http://"+l.addr)
	}
	_, err = p.start("the node of "+r.name, ".", program, r.name, n.http, gossip, strings.Join(peers, ","),
		strconv.FormatInt(o.limit, 10), strconv.Itoa(int(o.window.Seconds())))
	if err != nil {
		return err
	}
	r.nodes = append(r.nodes, n)
	for {
		if c, err := net.Dial("tcp", n.http); err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return errors.New("the program of -rival does not listen")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reading is what the nodes of a region say of themselves.
type reading struct {
	stale float64 // seconds since something was certainly heard of the region that was heard least; -1 if unknown
	over  float64 // units that were heard and found the limit full
}

var (
	staleLine = regexp.MustCompile(`(?m)^weir_region_staleness_seconds\{.*\} (\S+)$`)
	overLine  = regexp.MustCompile(`(?m)^weir_region_over_units_total\{.*\} (\S+)$`)
)

// read reads the metrics of the nodes of a region. heard is how many other regions they hear.
func (r *region) read(ctx context.Context) (got reading, heard int) {
	got.stale = -1
	for _, n := range r.nodes {
		if n.admin == "" {
			continue
		}
		text, err := fetch(ctx, "http://"+n.admin+"/metrics")
		if err != nil {
			continue
		}
		for _, found := range staleLine.FindAllSubmatch(text, -1) {
			v, _ := strconv.ParseFloat(string(found[1]), 64)
			got.stale = max(got.stale, v)
			heard++
		}
		for _, found := range overLine.FindAllSubmatch(text, -1) {
			v, _ := strconv.ParseFloat(string(found[1]), 64)
			got.over += v
		}
	}
	return got, heard
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return io.ReadAll(response.Body)
}

// hearEachOther waits until each region has heard of all others.
func hearEachOther(ctx context.Context, regions []*region) error {
	for _, r := range regions {
		for {
			if got, heard := r.read(ctx); heard == len(regions)-1 && got.stale < 2 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s has not heard of all other regions in time", r.name)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// ask asks a node for one request. allowed is its answer.
func (n *node) ask(ctx context.Context, client *http.Client) (allowed bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.http+"/api/v1/limit", bytes.NewReader(question))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	switch response.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusTooManyRequests:
		return false, nil
	}
	return false, errors.New(response.Status)
}

var question = []byte(`{"domain":"shop","attributes":{"path":"/search","tenant":"acme"}}`)
