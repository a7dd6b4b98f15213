package ratelimitenv_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/server/ratelimitenv"
)

// TestFinish: what somebody has named goes before a variable, and its errors no longer matter; no
// password is shown. What each variable means, package server tests, which has the settings.
func TestFinish(t *testing.T) {
	variables := map[string]string{"RUNTIME_ROOT": "/data", "GRPC_PORT": "81", "REDIS_URL": "db:6379",
		"REDIS_AUTH": "secret", "LOG_LEVEL": "loud"}
	values := map[string]string{}
	env := ratelimitenv.Read(variables, false, func(path, value string) error {
		if path == "log.level" {
			return errors.New("no level")
		}
		values[path] = value
		return nil
	})
	if got, want := fmt.Sprint(values),
		"map[listen.grpc:0.0.0.0:81 rules:/data/config store:redis://:secret@db:6379]"; got != want {
		t.Errorf("settings %s, want %s", got, want)
	}
	in := env.Finish(nil)
	if got, want := strings.Join(in.Read, " "),
		"rules=/data/config (RUNTIME_ROOT) listen.grpc=0.0.0.0:81 (GRPC_PORT) store=redis://db:6379 (REDIS_URL)"; got !=
		want {
		t.Errorf("read %s, want %s", got, want)
	}
	if err := errors.Join(in.Problems...); err == nil || err.Error() != "LOG_LEVEL: no level" {
		t.Errorf("problems: %v", err)
	}
	in = env.Finish(map[string]bool{"log.level": true, "rules": true})
	if got := fmt.Sprint(in.Warnings); got != "[RUNTIME_ROOT has no effect, since rules is set otherwise]" ||
		len(in.Problems) != 0 || len(in.Read) != 2 {
		t.Errorf("with settings of our own: %+v", in)
	}
	delete(variables, "RUNTIME_ROOT")
	if ratelimitenv.Read(variables, false, func(string, string) error { panic("a setting is set") }) != nil {
		t.Error("variables are read that any program may have")
	}
}
