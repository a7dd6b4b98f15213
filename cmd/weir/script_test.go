package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// The scripts in testdata/script run the program as a user types it. A script may use $ROOT, the
// folder of the repository.

func TestMain(m *testing.M) { testscript.Main(servertest.Tests(m), map[string]func(){"weir": main}) }

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
