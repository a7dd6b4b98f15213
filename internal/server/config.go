package server

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server/ratelimitenv"
	"github.com/weir-rl/weir/internal/server/settings"
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

	named     map[string]bool        // settings that the file, the environment or a flag sets, by path
	strays    []string               // of variables that look like settings and are none
	inherited ratelimitenv.Inherited // of envoyproxy/ratelimit
	inPlace   bool                   // of envoyproxy/ratelimit: started under its name
	ignored   []string               // arguments that were given under that name
}

// setting is one key of the configuration.
type setting = settings.Setting[Config]

// allSettings are all keys, in the order in which --help lists them.
var allSettings = settings.TableOf(settingGroups)

var settingGroups = []settings.Group[Config]{
	{Title: "Rules", Page: "rules.md", Settings: rulesSettings},
	{Title: "Store", Page: "../operating/redis.md", Settings: storeSettings},
	{Title: "Doors", Settings: doorSettings},
	{Title: "Envoy's quotas", Page: "../guides/rlqs.md", Settings: quotaSettings},
	{Title: "Regions", Page: "../operating/regions.md", Settings: regionSettings},
	{Title: "Proxy", Settings: proxySettings},
	{Title: "Load", Page: "../guides/overload.md", Settings: loadSettings},
	{Title: "Insight", Settings: insightSettings},
	{Title: "Deferred requests", Page: "../guides/deferring.md", Settings: deferSettings},
	{Title: "Clients", Page: "../start/keys.md", Settings: clientSettings},
	{Title: "Fields", Page: "../operating/ambiguous-requests.md", Settings: fieldSettings},
	{Title: "Trust and transport", Page: "../operating/security.md", Settings: trustSettings},
	{Title: "Answers", Page: "headers.md", Settings: answerSettings},
	{Title: "Metrics and logs", Settings: slices.Concat(nodeSettings, logSettings)},
	{Title: "OpenTelemetry", Settings: otelSettings},
	{Title: "Decision log", Settings: decisionSettings},
	{Title: "Bounds", Page: "../operating/security.md", Settings: boundSettings},
}

// AddFlags gives a command a flag for each setting, and --config.
func AddFlags(flags *pflag.FlagSet) { allSettings.AddFlags(flags) }

// Variables are the names of the environment variables that a server reads.
func Variables() []string { return allSettings.Variables() }

// Load puts the defaults, variables of envoyproxy/ratelimit, the file, the environment and
// the flags together, later ones before earlier ones. It reports all that is wrong.
func Load(flags *pflag.FlagSet, env []string) (*Config, error) { return new(Config).fill(flags, env) }

// LoadInPlace is Load for a program that was started under the name of envoyproxy/ratelimit: its
// defaults and its variables hold, below the file and our own variables. As that it reads no
// arguments.
func LoadInPlace(args, env []string) (*Config, error) {
	flags := pflag.NewFlagSet("ratelimit", pflag.ContinueOnError)
	AddFlags(flags)
	return (&Config{inPlace: true, ignored: args}).fill(flags, env)
}

// containerVariable is set in the image. The doors are then open to the network of the container,
// unless a setting says otherwise: whoever runs a container chooses its ports there.
const containerVariable = "WEIR_CONTAINER"

// containerDoors are the addresses of doors in a container, by setting.
var containerDoors = map[string]string{"listen.http": ":8080", "listen.grpc": ":8081", "listen.resp": ":6380"}

// fill is Load into c.
func (c *Config) fill(flags *pflag.FlagSet, env []string) (*Config, error) {
	if err := allSettings.SetDefaults(c); err != nil {
		return nil, err
	}
	c.rulesSet = false
	variables := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok {
			variables[name] = value
		}
	}
	set := func(path, value string) error { return allSettings.Find(path).SetText(c, value) }
	if variables[containerVariable] != "" {
		for path, address := range containerDoors {
			if err := set(path, address); err != nil {
				return nil, err
			}
		}
	}
	foreign := ratelimitenv.Read(variables, c.inPlace, set)
	var problems []error
	c.named, problems = allSettings.Load(c, flags, variables)
	c.strays = allSettings.Strays(slices.DeleteFunc(slices.Clone(env),
		func(v string) bool { return strings.HasPrefix(v, containerVariable+"=") }))
	if err := c.readOTelEnv(variables); err != nil {
		problems = append(problems, err)
	}
	if foreign != nil {
		c.inherited = foreign.Finish(c.named)
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

// TellStrays warns of variables that look like settings and are none, where there is no log.
func (c *Config) TellStrays(w io.Writer) {
	for _, remark := range c.strays {
		fmt.Fprintln(w, "weir: warning: the environment:", remark)
	}
}

// tellInherited logs the settings made by variables of envoyproxy/ratelimit. It returns an error
// for those that a server must not start with.
func (p *program) tellInherited() error {
	if n := len(p.c.ignored); n > 0 {
		p.log.Warn("arguments are ignored under the name ratelimit; settings come from variables and weir.yaml",
			"arguments", n)
	}
	if in := p.c.inherited; len(in.Read) > 0 {
		p.log.Info("variables of envoyproxy/ratelimit are read", "settings", strings.Join(in.Read, ", "))
	}
	for _, w := range p.c.inherited.Warnings {
		p.log.Warn("a variable of envoyproxy/ratelimit: " + w)
	}
	return errors.Join(p.c.inherited.Problems...)
}
