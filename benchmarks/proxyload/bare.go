package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// bare is a proxy that is nothing but httputil.ReverseProxy: the least cost of a Go program. With
// -tuned it keeps idle connections for every client of the load, and its buffers; with -floor it is
// net/http's server alone.
func bare(args []string) error {
	flags := flag.NewFlagSet("bare", flag.ContinueOnError)
	listen := flags.String("listen", "", "address")
	upstream := flags.String("upstream", "", "HOST:PORT")
	tuned := flags.Bool("tuned", false, "512 idle connections and a buffer pool")
	floor := flags.Bool("floor", false, "no proxy: a constant answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target := &url.URL{Scheme: "http", Host: *upstream}
	p := &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(target); r.SetXForwarded(); r.Out.Host = r.In.Host },
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if *tuned {
		p.Transport = &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
		p.BufferPool = &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}}
	}
	s := &http.Server{Addr: *listen, Handler: p, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	if *floor {
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header()["Content-Type"] = []string{"text/plain"}
			_, _ = io.WriteString(w, "hello")
		})
	}
	return s.ListenAndServe()
}

type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte { return b.pool.Get().(*[32 << 10]byte)[:] }

// Put implements httputil.BufferPool.
func (b *buffers) Put(buf []byte) { b.pool.Put((*[32 << 10]byte)(buf)) }
