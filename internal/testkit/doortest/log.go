package doortest

import (
	"context"
	"log/slog"
)

// LogTo returns a logger that hands over each message, without time, level and attributes. say must
// be safe for concurrent use.
func LogTo(say func(message string)) *slog.Logger { return slog.New(messages(say)) }

// messages implements slog.Handler.
type messages func(string)

func (messages) Enabled(context.Context, slog.Level) bool { return true }

func (m messages) Handle(_ context.Context, r slog.Record) error {
	m(r.Message)
	return nil
}

func (m messages) WithAttrs([]slog.Attr) slog.Handler { return m }
func (m messages) WithGroup(string) slog.Handler      { return m }
