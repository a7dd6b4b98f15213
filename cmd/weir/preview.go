package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

func newPreviewCommand() *cobra.Command {
	var port adminClient
	var over string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "preview DIR",
		Short: "Tell what other rules would have done to the last requests of a running server",
		Long: `Tries the rules of a folder (or those in force in a database, by its URL) on the requests that a running server, and the others on its Redis, have recorded (insight.record), and tells what they would have
refused, beside what the rules in force refused. The tests of rules in the folder are run, too. Nothing is changed.

Exit status: 0 with a result, 1 if the files are no rules or a test of them failed, 2 if it could not be found out.`,
		Example: "  weir preview rules/\n  weir preview rules/ --over 2h --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(errors.New("expected a folder of rules, as in: weir preview rules/"))
			}
			text := ""
			if over != "" {
				d, err := rule.ParseDuration(over)
				if err != nil || d < time.Second {
					return usageError(fmt.Errorf("--over %q: expected a time, such as 2h", over))
				}
				text = client.Over(d)
			}
			files, err := filesOf(cmd.Context(), args[0])
			if err != nil {
				return usageError(err)
			}
			if err := port.open(); err != nil {
				return err
			}
			raw, err := tryRules(cmd.Context(), &port, files, text, cmd.ErrOrStderr())
			if err != nil {
				return blind(err)
			}
			var result insight.PreviewResult
			if err := json.Unmarshal(raw, &result); err != nil {
				return blind(fmt.Errorf("%s answered with something else than a preview: %w", port.Name(), err))
			}
			if asJSON {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), string(raw))
			} else {
				err = words.Preview(cmd.OutOrStdout(), &result)
			}
			switch {
			case err != nil:
				return blind(err)
			case len(result.Problems) > 0 || result.Tests.Failed > 0:
				return &exitError{code: exitFound}
			}
			return nil
		},
	}
	port.flags(cmd, defaultAdmin)
	cmd.Flags().StringVar(&over, "over", "",
		"count the requests of the last so long, such as 2h (default: all that were recorded, once windows have warmed up)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's answer as it is")
	return cmd
}

// tryRules has a server try files, and returns its result. Progress is shown if errs is a terminal.
func tryRules(ctx context.Context, c *adminClient, files map[string]string, over string,
	errs io.Writer) (json.RawMessage, error) {
	question := map[string]any{"files": files}
	if over != "" {
		question["over"] = over
	}
	var begun struct{ Preview string }
	if err := c.Do(ctx, http.MethodPost, "/api/v1/preview", question, &begun); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(begun.Preview, "/api/v1/preview/") {
		return nil, fmt.Errorf("%s did not say where the preview is: is it the admin port of a weir server?", c.Name())
	}
	progress := newProgress(errs)
	defer progress.clear()
	var result json.RawMessage
	err := c.Follow(ctx, begun.Preview, "", func() {}, func(e client.Event) error {
		switch e.Name {
		case "progress":
			var p insight.PreviewProgress
			if err := json.Unmarshal(e.Data, &p); err != nil {
				return err
			}
			progress.show(&p)
		case "problem":
			var problem struct{ Detail string }
			if err := json.Unmarshal(e.Data, &problem); err != nil {
				return err
			}
			return errors.New(human.PrintableLines(problem.Detail))
		case "result":
			result = e.Data
			return errDone
		}
		return nil
	})
	switch {
	case errors.Is(err, errDone):
		return result, nil
	case ctx.Err() != nil: // Ctrl+C ends the preview, too
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Do(ctx, http.MethodDelete, begun.Preview, nil, nil) // it ends by itself in a minute
		return nil, errors.New("interrupted")
	}
	return nil, errors.New(strings.TrimPrefix(err.Error(), client.ErrStopped.Error()+": "))
}

// errDone ends a stream when the awaited event has come.
var errDone = errors.New("done")

// progress shows on a terminal how far a preview is.
type progress struct {
	out   io.Writer // nil is nobody
	width int       // of the text on the terminal
}

func newProgress(out io.Writer) *progress {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{out: f}
	}
	return new(progress)
}

func (p *progress) show(at *insight.PreviewProgress) {
	text := human.Visible(at.Phase)
	if at.Of > 0 {
		text += fmt.Sprintf(" %d %% of %d requests", 100*at.Done/at.Of, at.Of)
	}
	p.write(text)
}

func (p *progress) clear() { p.write("") }

func (p *progress) write(text string) {
	if p.out == nil {
		return
	}
	fmt.Fprintf(p.out, "\r%s%s", text, strings.Repeat(" ", max(p.width-len(text), 0)))
	if p.width = len(text); text == "" {
		fmt.Fprint(p.out, "\r")
	}
}

// filesOf reads the rules at a path, or in a database, and the tests beside them, by their names.
func filesOf(ctx context.Context, path string) (map[string]string, error) {
	p, err := openPlace(ctx, path)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, s := range slices.Concat(p.files, p.tests) {
		files[s.Name] = string(s.Data)
	}
	if isRulesURL(path) {
		return files, nil
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return files, err
	}
	// No tests are an error there, and unreadable ones were reported above.
	tests, _ := testFiles([]string{path})
	for _, name := range tests {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		relative, err := filepath.Rel(path, name)
		if err != nil {
			return nil, err
		}
		files[filepath.ToSlash(relative)] = string(data)
	}
	return files, nil
}
