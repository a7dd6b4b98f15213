package postgres_test

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/store/postgres"
)

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://ada:secret@db/weir", "postgresql:///weir?host=/var/run/postgresql", "postgres://a,b:5433/weir?target_session_attrs=primary",
		"postgres://db/weir?weir_schema=limits&weir_tables=synced", "postgres://db/weir?pool_max_conns=20&sslmode=require",
	} {
		if err := postgres.CheckURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for url, want := range map[string]string{
		"mysql://ada:secret@db":                                               "the scheme is not postgres",
		"postgres://ada:sec ret@db/weir":                                      "percent-encode",
		"postgres://ada:secret@db:port/weir":                                  "cannot be read",
		"postgres://ada:secret@db/weir?sslmode=perhaps":                       "sslmode",
		"postgres://ada:secret@db/weir?weir_schema=A B":                       `weir_schema "A B" is no name`,
		"postgres://db/weir?weir_schema=" + strings.Repeat("a", 59):           "up to 58",
		"postgres://ada:12/secret@db/weir":                                    "an @ behind the hosts",
		"postgres://ada:secret@db/weir?weir_table=x":                          `"weir_table" is not known`,
		"postgres://ada:secret@db/weir?weir_tables=x":                         "it may be unlogged, logged or synced",
		"postgres://ada:secret@db/weir?weir_tables=logged&weir_tables=logged": "given twice",
		"postgres://ada:secret@db/weir?a=%zz":                                 "percent-encode",
		"postgres://ada:secret@db/weir?sslmode=verify-full&sslrootcert=/none": "/none",
	} {
		err := postgres.CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
		if err != nil && strings.Contains(strings.ReplaceAll(err.Error(), " ", ""), "secret") {
			t.Errorf("%s: the error holds the password: %v", url, err)
		}
	}
}
