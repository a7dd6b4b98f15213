// Program excerpt cuts the excerpts in internal/testkit/traffic/testdata out of the full logs and
// traces:
//
//	go run ./internal/testkit/traffic/excerpt FOLDER internal/testkit/traffic/testdata
//
// FOLDER holds the full data, as internal/testkit/traffic/testdata/README.md describes it. An
// excerpt keeps a run of lines as they are, except for data that could identify people: each client
// address and host name is replaced by a number of its own, and referrers are left out.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// excerpt says which lines of a file are kept, and how they are altered.
type excerpt struct {
	name     string
	from, to int // lines, from 0; to is not included
	client   int // column of the client in tab-separated files; -1: none
	combined bool
}

var excerpts = []excerpt{
	{name: "nasa_19950801/trace.tsv.gz", from: 0, to: 6000, client: 1},
	{name: "nasa_19950801/19950801.tsv.gz", from: 0, to: 1501, client: 0},
	{name: "secrepo_202110/access.log.gz", from: 0, to: 5854, combined: true},
	{name: "basjes_hackers/access.log.gz", from: 0, to: 3456, combined: true},
	{name: "elastic_apache_logs/access.log.gz", from: 8000, to: 10000, combined: true},
	{name: "azure_llm/code.csv.gz", from: 0, to: 1967, client: -1}, // until 18:30
	{name: "azure_llm/conv.csv.gz", from: 0, to: 4205, client: -1}, // likewise
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: excerpt FULL-DATA OUTPUT")
	}
	for _, e := range excerpts {
		in := filepath.Join(os.Args[1], filepath.FromSlash(e.name))
		out := filepath.Join(os.Args[2], filepath.FromSlash(e.name))
		lines, err := e.cut(in)
		if err == nil {
			err = write(out, lines)
		}
		if err != nil {
			log.Fatalf("%s: %v", e.name, err)
		}
	}
}

// cut reads the lines of an excerpt and alters them.
func (e *excerpt) cut(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var (
		out   bytes.Buffer
		names = numbers{}
		lines = bufio.NewScanner(z)
	)
	lines.Buffer(nil, 1<<20)
	for n := 0; n < e.to && lines.Scan(); n++ {
		if n < e.from {
			continue
		}
		line := lines.Text()
		switch {
		case e.combined:
			line = names.combined(line)
		case e.client >= 0:
			cells := strings.Split(line, "\t")
			if cells[e.client] != "host" { // the header
				cells[e.client] = names.client(cells[e.client])
			}
			line = strings.Join(cells, "\t")
		}
		out.WriteString(line)
		out.WriteByte('\n')
	}
	return out.Bytes(), lines.Err()
}

// referrer finds the referrer in a line of Apache's combined format.
var referrer = regexp.MustCompile(`(" \d{3} (?:\d+|-) )"(?:[^"\\]|\\.)*"`)

// numbers gives each name a number: the order in which names are first seen.
type numbers map[string]int

func (n numbers) of(kind, name string) int {
	key := kind + " " + name
	if _, ok := n[key]; !ok {
		n[kind]++
		n[key] = n[kind]
	}
	return n[key]
}

// combined alters a line of Apache's combined format.
func (n numbers) combined(line string) string {
	client, rest, _ := strings.Cut(line, " ")
	return n.client(client) + " " + referrer.ReplaceAllString(rest, `$1"-"`)
}

// client returns the stand-in for a client. Addresses come from ranges that are reserved for
// benchmarks and documentation. Addresses of one IPv6 network of 64 bits stay in one.
func (n numbers) client(name string) string {
	a, err := netip.ParseAddr(name)
	if err != nil {
		return fmt.Sprintf("h%d.example", n.of("host", name))
	}
	if a.Is4() {
		i := n.of("address", name)
		return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)}).String()
	}
	network := n.of("network", netip.PrefixFrom(a, 64).Masked().String())
	return fmt.Sprintf("2001:db8:0:%x::%x", network, n.of("interface", name))
}

// write packs an excerpt. The header of gzip holds no time, so the same data make the same file.
func write(path string, data []byte) error {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(data); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
