package admin

import (
	"io"
	"log/slog"
	"testing"

	"github.com/weir-rl/weir/internal/audit"
)

// auditTo is an audit log without a file, whose records become lines of w.
func auditTo(t *testing.T, w io.Writer) *audit.Log {
	t.Helper()
	l, err := audit.Open(audit.Options{Logger: slog.New(slog.NewTextHandler(w, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
