package pgurl

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func isOwn(name string) bool { return strings.HasPrefix(name, "own_") }

// FuzzParse: what is read has none of our own parameters left, and is read the same once more.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"postgres://ada:s3cret@db/weir", "postgresql:///weir?host=/run", "postgres://ada:s3cret@a,b:2/weir?own_a=1&sslmode=disable",
		"postgres://ada:1/s3cret@db/weir", "postgres://ada:s3cret@db:port/weir", "postgres://ada:s3 cret@db?own_a=1&own_a=2", "mysql://a", "postgres://db?a=%zz",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := Parse(text, isOwn)
		if err != nil {
			return
		}
		again, err := Parse(u.Text, isOwn)
		if err != nil || len(again.Own) > 0 || again.Text != u.Text {
			t.Fatalf("%q: %q, %v", text, u.Text, err)
		}
	})
}

// TestErrors: what pgx cannot read is told without the password.
func TestErrors(t *testing.T) {
	for _, text := range []string{
		"postgres://ada:s3cret@db:port/weir", "postgres://ada:s3cret@db/weir?sslmode=never", "postgres://ada:s3/cret@db/weir", "postgres://ada:1/s3cret@db/weir",
		"postgres://ada:s3cret%@db/weir", "postgres://ada:s3cret@db/weir?sslrootcert=/none&sslmode=verify-ca",
	} {
		u, err := Parse(text, isOwn)
		if err == nil {
			if _, err = pgx.ParseConfig(u.Text); err != nil {
				err = Plain(err)
			}
		}
		if err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
