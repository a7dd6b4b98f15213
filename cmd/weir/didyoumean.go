package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/util/suggest"
)

// didYouMean suggests word at the end of an error about an unknown word; "" if word is empty.
func didYouMean(word string) string {
	if word == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", word)
}

// nearestPath returns the setting that a name means, both written with dashes or underscores
// between their words: one that is near, one that ends with it, or one with the same words in
// another order. It returns "" if there is none.
func nearestPath(name string, known []string) string {
	if slices.Contains(known, name) {
		return name
	}
	if near := suggest.Nearest(name, known); near != "" {
		return near
	}
	words := func(s string) []string {
		list := strings.FieldsFunc(s, func(r rune) bool { return r == '-' || r == '_' })
		slices.Sort(list)
		return list
	}
	for _, k := range known {
		if slices.Equal(words(k), words(name)) || strings.HasSuffix(k, "-"+name) || strings.HasSuffix(k, "_"+name) {
			return k
		}
	}
	return ""
}

// flagError is the error for flags of cmd that cannot be read. It says which flag may have been
// meant.
func flagError(cmd *cobra.Command, err error) error {
	hint := ""
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		hint = didYouMean(nearestFlag(cmd, unknown))
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
	if near := nearestPath(flagOf(name), known); near != "" {
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
	if i := slices.IndexFunc(known, func(name string) bool { return strings.HasPrefix(name, word) }); near == "" && i >= 0 {
		near = known[i]
	}
	return fmt.Errorf("unknown command %q%s (see %s --help)", word, didYouMean(near), cmd.CommandPath())
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
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
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

// serviceLink finds the names of variables that Kubernetes sets in each container for a service
// called weir, or weir-something (service links). The value must decide about names that end in
// _PORT.
var serviceLink = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^WEIR_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
})

// linkedPort finds the value of such a variable whose name ends in _PORT.
var linkedPort = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(tcp|udp|sctp)://`)
})

// strayVariables returns a remark on each variable of the environment that begins as Weir's do, and
// is none. Values may be secrets, so no remark shows one.
func strayVariables(env []string) (remarks []string) {
	known := []string{"WEIR_CONFIG"}
	for i := range settings {
		known = append(known, settings[i].variable())
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, "WEIR_")
		switch {
		case !ours || rest == "" || slices.Contains(known, name), serviceLink().MatchString(name),
			strings.HasSuffix(name, "_PORT") && linkedPort().MatchString(value):
			continue
		}
		near := nearestPath(name, known)
		if near == "" {
			near = nearestPath(rest, known)
		}
		if of := strings.TrimSuffix(name, "_"+strings.ToUpper(ownKey)); near == "" && slices.Contains(known, of) {
			near = of // store: {url: …} is WEIR_STORE
		}
		remarks = append(remarks, name+" is no setting, and has no effect"+didYouMean(near))
	}
	slices.Sort(remarks)
	return remarks
}

// tellStrays warns of variables that look like settings and are none, where there is no log.
func (c *config) tellStrays(w io.Writer) {
	for _, remark := range c.strays {
		fmt.Fprintln(w, "weir: warning: the environment:", remark)
	}
}
