package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/examples/internal/programs"
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

// processes are all that were started.
type processes struct{ programs.List }

// startRedis starts a Redis. Its port was free a moment ago; if it is not any more, another one is
// tried.
func (p *processes) startRedis(ctx context.Context, region, dir string) (addr string, err error) {
	for range 5 {
		if addr, err = programs.FreeAddress(); err != nil {
			return "", err
		}
		_, port, _ := net.SplitHostPort(addr)
		s, err := p.Start("redis-server of "+region, dir, "redis-server", "--bind", "127.0.0.1", "--port", port,
			"--save", "")
		if err != nil {
			return "", err
		}
		if _, err = s.Said(ctx, "(Ready to accept connections)"); err == nil {
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
	s, err := p.Start(fmt.Sprintf("node %d of %s", len(r.nodes)+1, r.name), filepath.Join(dir, r.name), program,
		"serve",
		"--store=redis://"+r.redis, "--regions-stores="+strings.Join(stores, ","),
		"--listen-http=127.0.0.1:0", "--listen-admin=127.0.0.1:0")
	if err != nil {
		return err
	}
	n := &node{}
	if n.http, err = s.Said(ctx, `door=http addr=(\S+)`); err != nil {
		return err
	}
	if n.admin, err = s.Said(ctx, `door=admin addr=(\S+)`); err != nil {
		return err
	}
	r.nodes = append(r.nodes, n)
	return nil
}

// startRival starts another program in place of Weir, one node for each region; see
// docs/operating/regions.md.
func (p *processes) startRival(ctx context.Context, program, gossip string, r *region, o *options) (err error) {
	n := &node{}
	if n.http, err = programs.FreeAddress(); err != nil {
		return err
	}
	var peers []string
	for _, l := range r.links {
		peers = append(peers, "http://"+l.addr)
	}
	_, err = p.Start("the node of "+r.name, ".", program, r.name, n.http, gossip, strings.Join(peers, ","),
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

// reading holds metrics of the nodes of a region.
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
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.http+"/api/v1/limit",
		bytes.NewReader(question))
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
