package server

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// adminPort is the door of operators. It opens before what a start may have to wait for, so that
// whoever watches the server sees that it starts. What it has to say later comes with show.
type adminPort struct {
	*door
	handler atomic.Value // of http.HandlerFunc
	started http.Handler // what answers once all doors are open
	ended   chan error   // of serving
}

// show makes h answer from now on.
func (a *adminPort) show(h http.Handler) { a.handler.Store(http.HandlerFunc(h.ServeHTTP)) }

// openAdminPort opens the port of operators, if there is one.
func (p *program) openAdminPort(ctx context.Context) error {
	address := p.c.listen.admin
	if address == "" {
		return nil
	}
	a := &adminPort{ended: make(chan error, 1)}
	a.show(admin.Starting())
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.handler.Load().(http.HandlerFunc)(w, r) })
	// A profile lasts as long as its client asks for, so writing has no time bound.
	s := listen.NewHTTPServer(proxy.Bound(h, 0, p.c.limits.stall), listen.HTTPOptions{Logger: p.log, WriteTimeout: -1})
	a.door = p.newHTTPDoor("admin", address, s)
	p.admin = a
	if p.check {
		return nil
	}
	if err := p.openDoor(ctx, a.door); err != nil {
		return err
	}
	serve := a.serve
	go func() { a.ended <- serve(a.listener) }()
	a.serve = func(net.Listener) error { return <-a.ended }
	return nil
}

// closeAdminPort closes the port where the server ends before it runs. Else it is closed by now.
func (p *program) closeAdminPort() error {
	if p.admin == nil {
		return nil
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.admin.shutdown(ended) // cuts off what is under way
	return nil
}
