package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
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
// the doors open, and ends the actors after the doors have closed.
func (p *program) run(ctx context.Context, stdout io.Writer) error {
	// A reader of our output that went away must not end the server.
	signal.Ignore(syscall.SIGPIPE)
	// Notified before the doors open: an unhandled SIGHUP would end the program.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	a := new(actors)
	a.ctx, a.cancel = context.WithCancel(ctx)
	defer a.stop()

	p.follow(a)
	if ctx.Err() != nil { // stopped before it began
		return nil
	}
	if err := p.open(ctx); err != nil {
		return usageError(err)
	}
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
		p.log.Info("stopping", "drain", p.c.drain.String())
	case err = <-broken:
		p.log.Error("stopping, since a door broke", "error", err)
	}
	p.notify(stateStopping)
	p.drain(context.WithoutCancel(ctx))
	a.cancel()
	ended.Wait()
	return err
}

// startActors starts the goroutines that run alongside the doors.
func (p *program) startActors(a *actors, hangups <-chan os.Signal) {
	a.start(p.rules.Run)
	a.start(func(ctx context.Context) { p.reloadOn(ctx, hangups) })
	a.start(p.signals.Run)
	a.start(p.measureLine)
	a.start(p.watchSignals)
	a.start(func(ctx context.Context) { p.firewall.run(ctx, p.limiter) })
	a.start(p.sweep)
	if p.decisions != nil {
		a.start(p.decisions.Run)
	}
	if p.insight != nil {
		a.start(p.insight.Run)
	}
	if p.recorder != nil {
		a.start(p.recorder.Run)
	}
	if p.nodes != nil {
		a.start(p.nodes.Listen)
	}
	a.start(p.fleet.Run)
	if p.certificates != nil {
		a.start(p.certificates.Run)
	}
	if p.proxy != nil {
		set, _ := p.limiter.Rules()
		p.startDeferring(set)
		a.start(p.workOff)
	}
}

// reloadOn reloads rules, tokens and certificates, and opens the audit log anew, at each SIGHUP
// until ctx ends.
func (p *program) reloadOn(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		p.log.Info("reloading")
		p.notify(stateReloading())
		p.rules.Reload()
		if p.tokens != nil {
			if err := p.tokens.Load(p.c.tokensFile); err != nil {
				p.log.Error("auth.tokens_file not loaded, the tokens from before stay good", "error", err)
			}
		}
		if p.certificates != nil {
			_ = p.certificates.Reload() // logs errors itself
		}
		if p.decisions != nil {
			p.decisions.Reopen()
		}
		_ = p.audit.Reopen() // logs errors itself
		p.notify(stateReady)
	}
}

// sweep gives back the reservations of nodes that died.
func (p *program) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A failure is retried, and reported to StoreError.
			_, _ = p.limiter.Reservations().Sweep(ctx)
		}
	}
}
