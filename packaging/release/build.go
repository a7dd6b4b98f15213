package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// build asks git for the commit, and fills the folder in with the programs, the manual pages and
// the completions.
func (r *release) build() error {
	head, err := r.output("git", "show", "-s", "--format=%H %ct", "HEAD")
	if err != nil {
		return err
	}
	hash, text, _ := strings.Cut(strings.TrimSpace(string(head)), " ")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	r.commit, r.time = hash, time.Unix(seconds, 0).UTC()
	for _, t := range r.targets {
		if err := r.buildProgram(t, r.program(t)); err != nil {
			return err
		}
	}
	return r.describeCommands()
}

// output runs a command in the repository.
func (r *release) output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out, err
}

func (r *release) buildProgram(t target, file string) error {
	cmd := exec.Command("scripts/build", file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "VERSION=v"+r.version, "GOOS="+t.os, "GOARCH="+t.arch)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the program for %v: %w", t, err)
	}
	return nil
}

// describeCommands writes manual pages and completions: what a program for this machine says of its
// commands, which are the same on all systems.
func (r *release) describeCommands() error {
	here := target{runtime.GOOS, runtime.GOARCH}
	program := r.program(here)
	if _, err := os.Stat(program); err != nil {
		program = filepath.Join(r.in, "here")
		if err := r.buildProgram(here, program); err != nil {
			return err
		}
	}
	for _, folder := range []string{"man", "completions"} {
		if err := os.Mkdir(filepath.Join(r.in, folder), 0o755); err != nil {
			return err
		}
	}
	for shell, name := range completions {
		text, err := r.output(program, "completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.in, "completions", name), text, 0o644); err != nil {
			return err
		}
	}
	_, err := r.output("go", "test", "-count=1", "./cmd/weir", "-run", "TestManPages$", "-man", filepath.Join(r.in, "man"))
	return err
}

// completions are the files by which shells complete commands, named as the shells look for them.
var completions = map[string]string{"bash": "weir.bash", "zsh": "_weir", "fish": "weir.fish"}
