package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata/script run the program as a user types it. A script may use $ROOT, the
// folder of the repository.

// withoutLine keeps servers from turning requests away: test servers share their machine with other
// tests, and may well be slow. Tests of that say so.
var withoutLine = []string{"WEIR_OVERLOAD_LINE=0s", "WEIR_OVERLOAD_PROXY_LINE=0s"}

func TestMain(m *testing.M) {
	// Its parallel tests wait for other programs, and for windows to pass, far more than they
	// compute. A -parallel of the command line goes before.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// Tests ask a server with up to 64 clients at once, each of which keeps its connection.
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 64
	testscript.Main(tests{m}, map[string]func(){"weir": main})
}

type tests struct{ *testing.M }

// Run runs the tests, and removes what they share.
func (t tests) Run() int {
	defer func() {
		if builtIn != "" {
			_ = os.RemoveAll(builtIn)
		}
	}()
	return t.M.Run()
}

func TestScripts(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:  filepath.Join("testdata", "script"),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": wantStatus, "torn": tornGzip},
		Setup: func(e *testscript.Env) error {
			e.Setenv("ROOT", root)
			return nil
		},
	})
}

// wantStatus runs a command that must end with an exit status: status N COMMAND ARGUMENT…
func wantStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND ARGUMENT…")
	}
	status := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		status = exit.ExitCode()
	}
	if want, err := strconv.Atoi(args[0]); err != nil || status != want {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
}

// tornGzip packs a file many times over, and tears off the end: torn FILE PACKED.
func tornGzip(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: torn FILE PACKED")
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 2_000 {
		_, err := fmt.Fprintf(z, "%d %s", i, ts.ReadFile(args[0]))
		ts.Check(err)
	}
	ts.Check(z.Close())
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), packed.Bytes()[:packed.Len()*9/10], 0o600))
}
