// Command weir is a rate limiter: a server, a reverse proxy, and the tools to write, check and
// backtest its rules.
//
// Run is the program as a value. Each command has a file of its own. The server is package
// internal/server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/server/settings"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // the command found something wrong, or failed
	// the command line, the configuration or the rules are wrong, so nothing was begun. Go ends a
	// program that panics with it, too, and so the servers have exitConfig instead.
	exitUsage = 2
	// a server's command line, configuration or rules are wrong, and stay so until somebody mends
	// them: EX_CONFIG of sysexits.h
	exitConfig = 78
)

// exitError ends the program with a status other than 1. With a nil err nothing is printed: the
// command has said it all.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is an error of the command line, the configuration or the rules: exit status 2.
func usageError(err error) error { return &exitError{code: exitUsage, err: err} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the second one ends the program at once.
	context.AfterFunc(ctx, stop)
	if filepath.Base(os.Args[0]) == rateLimitName {
		os.Exit(run(ctx, newRateLimitCommand(os.Environ()), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(Run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// Run runs the whole program: args without the program's name, env as "NAME=value". It returns the
// exit status. The end of ctx has the effect of SIGTERM.
func Run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return run(ctx, newRootCommand(env), args, stdin, stdout, stderr)
}

func run(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would take os.Args instead
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); !ok || e.err != nil {
		fmt.Fprintln(stderr, "weir:", settings.Redact(err.Error()))
	}
	return statusOf(cmd, err)
}

// statusOf is the exit status of a command that ends with an error.
func statusOf(cmd *cobra.Command, err error) int {
	code := exitFailure
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if name := cmd.Name(); name != "serve" && name != "proxy" && name != rateLimitName {
		return code
	}
	if setup, ok := errors.AsType[*server.SetupError](err); ok && !setup.MayPass() || code == exitUsage {
		return exitConfig
	}
	return code
}

func newRootCommand(env []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A rate limiter: server, reverse proxy and Go library",
		Long: `Weir decides for each request whether it may pass now.

Try it:   weir serve                                 # built-in starter rules, everything on loopback
Guard it: weir proxy --upstream URL --rules DIR      # a reverse proxy that limits in front of an API
Test it:  weir replay --rules DIR access.log         # what would these rules have refused?
See it:   weir top                                   # what a running server does now
Write it: weir help rules                            # how rules and their tests look`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return noSuchCommand(cmd, args[0])
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd, env) },
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelpCommand())
	root.Version = versionText()
	root.SetVersionTemplate(versionLine())
	root.AddCommand(
		newServeCommand(env),
		newProxyCommand(env),
		newLintCommand(env),
		newTestCommand(),
		newExplainCommand(),
		newCandidatesCommand(),
		newReplayCommand(),
		newDeferCommand(),
		newBanCommand(),
		newGrantCommand(),
		newKeysCommand(),
		newTopCommand(env),
		newTailCommand(),
		newVerdictsCommand(),
		newPreviewCommand(),
		newPreviewProcessCommand(),
		newAuditCommand(),
		newHealthCommand(env),
		newVersionCommand(),
		newRulesCommand(env),
	)
	checkArguments(root)
	return root
}
