package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/util/suggest"
)

// flagError is the error for flags of cmd that cannot be read. It says which flag may have been
// meant.
func flagError(cmd *cobra.Command, err error) error {
	hint := ""
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		hint = suggest.DidYouMean(nearestFlag(cmd, unknown))
	}
	return usageError(fmt.Errorf("%w%s (see %s --help)", err, hint, cmd.CommandPath()))
}

// nearestFlag returns the flag of cmd that was meant, with its dashes; "" if none is near. Words
// behind a single dash are taken for the name of a flag.
func nearestFlag(cmd *cobra.Command, unknown *pflag.NotExistError) string {
	name := unknown.GetSpecifiedName()
	if group, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "="); group != "" {
		if name = group; len(name) == 1 {
			return ""
		}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if near := settings.NearestPath(settings.FlagOf(name), known); near != "" {
		return "--" + near
	}
	return ""
}

// noSuchCommand is the error for a word that is no command below cmd.
func noSuchCommand(cmd *cobra.Command, word string) error {
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	near := suggest.Nearest(word, known)
	if i := slices.IndexFunc(known, func(name string) bool { return strings.HasPrefix(name, word) }); near == "" &&
		i >= 0 {
		near = known[i]
	}
	return fmt.Errorf("unknown command %q%s (see %s --help)", word, suggest.DidYouMean(near), cmd.CommandPath())
}

// checkArguments makes cmd, and all commands below it, fail with usageError for arguments that they
// do not take, and those that have commands below them name the one that was meant.
func checkArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		checkArguments(sub)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil:
			return nil
		case cmd.HasSubCommands() && len(args) > 0:
			err = noSuchCommand(cmd, args[0])
		}
		return usageError(err)
	}
}

// newHelpCommand is weir help, which fails where a word is no command.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]…",
		Short: "Show how a command is called, or how rules are written",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (words []cobra.Completion,
			_ cobra.ShellCompDirective) {
			if of, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range of.Commands() {
					if sub.IsAvailableCommand() {
						words = append(words, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return usageError(err)
			case len(rest) > 0:
				return usageError(noSuchCommand(of, rest[0]))
			}
			of.InitDefaultHelpFlag() // so that it shows
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}
