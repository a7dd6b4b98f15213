// Package testproc is the common part of packages that start real servers for tests (redistest,
// pgtest, cassandratest, envoytest): how a server is started, awaited, paused and ended, and what
// it logged (Server, Handle); ports that stay reserved while a server is down, processes that end
// with the test, certificates, and the folder of the parts that scripts/test installs.
package testproc

import (
	"os/exec"
	"runtime"
	"sync"
)

// Process is one run of a server.
type Process struct {
	Cmd   *exec.Cmd
	Ended chan struct{} // closed when it has
	Err   error         // of Cmd.Wait, when it has ended
}

// Launch starts a command in a process group of its own. It ends with this process, however that
// ends. Of cmd.SysProcAttr only Credential is kept.
func Launch(cmd *exec.Cmd) (*Process, error) {
	a := attributes()
	if cmd.SysProcAttr != nil {
		keepCredential(a, cmd.SysProcAttr)
	}
	cmd.SysProcAttr = a
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &Process{Cmd: cmd, Ended: make(chan struct{})}
	go func() {
		p.Err = cmd.Wait()
		close(p.Ended)
	}()
	return p, nil
}

// starter runs functions on one thread that lives as long as this process. Linux ends a child "with
// its parent" when the thread that started it ends, and the threads of other goroutines may end at
// any time.
var starter = sync.OnceValue(func() chan<- func() {
	todo := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range todo {
			do()
		}
	}()
	return todo
})
