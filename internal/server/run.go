package server

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/weir-rl/weir/internal/server/examples"
)

// actors are the goroutines that run alongside the doors until their context ends.
type actors struct {
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// start runs a goroutine.
func (a *actors) start(run func(ctx context.Context)) { a.all.Go(func() { run(a.ctx) }) }

// stop ends all goroutines and waits for them.
func (a *actors) stop() {
	a.cancel()
	a.all.Wait()
}

// run opens the doors and serves until ctx ends or a door breaks. It reads bans and grants before
// the doors open, and ends the actors before the doors close.
func (p *program) run(ctx context.Context, stdout io.Writer) error {
	// A reader of our output that went away must not end the server.
	signal.Ignore(syscall.SIGPIPE)
	// Notified before the doors open: an unhandled SIGHUP would end the program.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	a := new(actors)
	// They go on while the doors still take requests.
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer a.stop()
	starting := context.AfterFunc(ctx, a.cancel)

	p.follow(a)
	if ctx.Err() != nil { // stopped before it began
		return nil
	}
	if err := p.open(ctx); err != nil {
		return &SetupError{err}
	}
	starting()
	p.startActors(a, hangups)
	broken, ended := p.serveDoors()
	p.warnOfFiles()
	if p.c.decisions.Path != "stdout" { // which holds decisions then, and nothing else
		p.printExamples(stdout)
	}
	p.notify(stateReady)

	var err error
	select {
	case <-ctx.Done():
		p.log.Info("stopping", "announce", p.c.drain.announce.String(), "drain", p.c.drain.finish.String())
	case err = <-broken:
		p.log.Error("stopping, since a door broke", "error", err)
	}
	p.notify(stateStopping)
	p.draining.Store(true)
	if err == nil {
		p.announce()
	}
	a.cancel()
	p.drain(context.WithoutCancel(ctx))
	ended.Wait()
	return err
}

// announce lets those who ask for the readiness of this server, which is going away, send requests
// elsewhere before its doors close, for as long as is configured.
func (p *program) announce() { time.Sleep(p.c.drain.announce) }

// printExamples writes requests to paste; nothing without a decision door, or in the place of
// envoyproxy/ratelimit, which writes its log alone.
func (p *program) printExamples(w io.Writer) {
	if p.c.inPlace || p.c.listen.http == "" && p.c.listen.grpc == "" && p.c.listen.resp == "" {
		return
	}
	o := examples.Options{Rules: p.c.rules, Page: p.c.page}
	if p.c.Database != nil || p.c.xds != nil {
		o.Rules = "DIR" // a URL may hold a password
	}
	doors := make([]examples.Door, len(p.doors))
	for i, d := range p.doors {
		doors[i] = examples.Door{Name: d.name, Address: d.listener.Addr(), TLS: p.tlsOf(d) != nil,
			Certificate: p.demandsCertificate(d), Token: p.needsToken(d.name) || d.name == "admin" && p.tokens != nil}
	}
	set, _ := p.limiter.Rules()
	if set == nil { // they are awaited
		return
	}
	examples.Print(w, set, doors, o)
}

// startActors starts the goroutines that run alongside the doors.
func (p *program) startActors(a *actors, hangups <-chan os.Signal) {
	if set, _ := p.limiter.Rules(); set != nil {
		p.startDeferring(set)
	}
	for _, part := range p.parts {
		for _, run := range part.run {
			a.start(run)
		}
	}
	a.start(func(ctx context.Context) { p.reloadOn(ctx, hangups) })
}

// reloadOn has all parts read their files anew at each SIGHUP until ctx ends.
func (p *program) reloadOn(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		p.log.Info("reloading")
		p.notify(stateReloading())
		for _, part := range p.parts {
			if part.reload != nil {
				part.reload()
			}
		}
		p.notify(stateReady)
	}
}
