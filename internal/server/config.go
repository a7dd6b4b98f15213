package server

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Config holds the settings of weir.yaml, the environment and the flags. Each section stands beside
// the part that it is for, and after the settings that fill it. A setting that only one package
// needs is in that package's Options, which are completed when the part is made.
type Config struct {
	ruleConfig
	storeConfig
	doorConfig
	quotaConfig
	regionConfig
	proxyConfig
	overloadConfig
	insightConfig
	deferConfig
	clientConfig
	trustConfig
	logConfig
	otelConfig
	decisionConfig
	boundConfig

	named     map[string]bool // settings that the file, the environment or a flag sets, by path
	strays    []string        // of variables that look like settings and are none
	inherited inherited
}

// AddConfigFlag adds the flag that names the configuration file.
func AddConfigFlag(flags *pflag.FlagSet) {
	flags.String("config", "", "configuration file; ./weir.yaml if it is there (WEIR_CONFIG)")
}

// AddFlags gives a command a flag for each setting, and --config.
func AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	AddConfigFlag(flags)
	for i := range settings {
		s := &settings[i]
		if s.value == "true" || s.value == "false" {
			flags.Bool(s.flag(), s.value == "true", s.help+" ("+s.variable()+")")
			continue
		}
		flags.String(s.flag(), s.value, s.help+" ("+s.variable()+")")
	}
}

// name notes that somebody has set a setting.
func (c *Config) name(s *setting) {
	if c.named == nil {
		c.named = map[string]bool{}
	}
	c.named[s.path] = true
}

// Load puts the defaults, variables of envoyproxy/ratelimit, the file, the environment and
// the flags together, later ones before earlier ones. It reports all that is wrong.
func Load(flags *pflag.FlagSet, env []string) (*Config, error) {
	c := new(Config)
	for i := range settings {
		if s := &settings[i]; s.value != "" {
			if err := s.set(c, s.items(s.value)); err != nil {
				return nil, fmt.Errorf("default of %s: %w", s.path, err)
			}
		}
	}
	c.rulesSet = false
	variables := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok {
			variables[name] = value
		}
	}
	var problems []error
	foreign := readRateLimitEnv(c, variables)
	path := variables["WEIR_CONFIG"]
	if f := flags.Lookup("config"); f.Changed {
		path = f.Value.String()
	}
	if path != "" {
		problems = append(problems, c.readFile(path)...)
	} else if _, err := os.Stat(defaultConfigFile); err == nil {
		problems = append(problems, c.readFile(defaultConfigFile)...)
	}
	for i := range settings {
		s := &settings[i]
		if value, ok := variables[s.variable()]; ok {
			c.name(s)
			if err := s.set(c, s.items(value)); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", s.variable(), err))
			}
		}
	}
	for i := range settings {
		s := &settings[i]
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			c.name(s)
			if err := s.set(c, s.items(f.Value.String())); err != nil {
				problems = append(problems, fmt.Errorf("--%s: %w", s.flag(), err))
			}
		}
	}
	c.strays = strayVariables(env)
	if err := c.readOTelEnv(variables); err != nil {
		problems = append(problems, err)
	}
	if foreign != nil {
		c.inherited = foreign.finish(c.named)
	}
	return c, errors.Join(problems...)
}

// defaultProxyAddress is where `weir proxy` listens if nothing else is said.
const defaultProxyAddress = "127.0.0.1:8000"

// OnlyProxy makes c the configuration of weir proxy: beside the proxy and the admin port, the doors
// are open whose flags are given.
func (c *Config) OnlyProxy(flags *pflag.FlagSet) {
	for name, address := range map[string]*string{"listen-http": &c.listen.http, "listen-grpc": &c.listen.grpc,
		"listen-resp": &c.listen.resp} {
		if !flags.Changed(name) {
			*address = ""
		}
	}
	if c.listen.proxy == "" {
		c.listen.proxy = defaultProxyAddress
	}
	c.rulesSet = true // the starter rules know nothing that a proxy sees
}
