package settings

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// The configuration file is the one that a flag or a variable names, else the one of this name if
// it is there.
const (
	defaultFile    = "weir.yaml"
	configVariable = "WEIR_CONFIG"
)

// AddConfigFlag adds the flag that names the configuration file.
func AddConfigFlag(flags *pflag.FlagSet) {
	flags.String("config", "", "configuration file; ./"+defaultFile+" if it is there ("+configVariable+")")
}

// AddFlags gives a command a flag for each setting, and --config.
func (t Table[C]) AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	AddConfigFlag(flags)
	for i := range t {
		s := &t[i]
		if s.Value == "true" || s.Value == "false" {
			flags.Bool(s.Flag(), s.Value == "true", s.Help+" ("+s.Variable()+")")
			continue
		}
		flags.String(s.Flag(), s.Value, s.Help+" ("+s.Variable()+")")
	}
}

// SetDefaults gives each setting that has a default this value.
func (t Table[C]) SetDefaults(c *C) error {
	for i := range t {
		if s := &t[i]; s.Value != "" {
			if err := s.SetText(c, s.Value); err != nil {
				return fmt.Errorf("default of %s: %w", s.Path, err)
			}
		}
	}
	return nil
}

// Load sets in c what the file, the environment and the flags say, later ones before earlier ones.
// It returns the paths of the settings that somebody has named, and all that is wrong.
func (t Table[C]) Load(c *C, flags *pflag.FlagSet, variables map[string]string) (named map[string]bool,
	problems []error) {
	l := loader[C]{table: t, c: c}
	path := variables[configVariable]
	if f := flags.Lookup("config"); f.Changed {
		path = f.Value.String()
	}
	if path != "" {
		l.readFile(path)
	} else if _, err := os.Stat(defaultFile); err == nil {
		l.readFile(defaultFile)
	}
	for i := range t {
		s := &t[i]
		if value, ok := variables[s.Variable()]; ok {
			l.name(s)
			if err := s.SetText(c, value); err != nil {
				l.problems = append(l.problems, fmt.Errorf("%s: %w", s.Variable(), err))
			}
		}
	}
	for i := range t {
		s := &t[i]
		if f := flags.Lookup(s.Flag()); f != nil && f.Changed {
			l.name(s)
			if err := s.SetText(c, f.Value.String()); err != nil {
				l.problems = append(l.problems, fmt.Errorf("--%s: %w", s.Flag(), err))
			}
		}
	}
	return l.named, l.problems
}

// loader sets the settings of a table in c.
type loader[C any] struct {
	table    Table[C]
	c        *C
	file     string          // the one that is being read
	named    map[string]bool // settings that the file, the environment or a flag sets, by path
	problems []error
}

// name notes that somebody has set a setting.
func (l *loader[C]) name(s *Setting[C]) {
	if l.named == nil {
		l.named = map[string]bool{}
	}
	l.named[s.Path] = true
}
