package server

import (
	"strings"
)

// setting is one key of the configuration. Its path names it in weir.yaml; with dashes the flag, in
// capitals with underscores the environment variable.
type setting struct {
	path  string
	help  string
	value string // the default, as text
	kind  kind
	set   func(c *Config, items []string) error
}

// kind is the form in which a setting is written.
type kind uint8

const (
	scalar kind = iota // one value: items holds it
	list               // any number: a sequence in YAML, comma-separated elsewhere
	// name → value: a mapping in YAML, name=value comma-separated elsewhere; items hold
	// name=value
	mapping
)

func (s *setting) flag() string { return FlagOf(s.path) }

func (s *setting) variable() string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

// FlagOf returns the flag of a setting.
func FlagOf(path string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// settingGroup is a table of settings in docs/reference/configuration.md.
type settingGroup struct {
	title    string
	page     string // a page of docs with more about it; "" for none
	settings []setting
}

// settings are all keys, in the order in which --help lists them.
var settings = func() []setting {
	var all []setting
	for _, g := range settingGroups {
		all = append(all, g.settings...)
	}
	return all
}()

var settingGroups = []settingGroup{
	{title: "Rules", page: "rules.md", settings: rulesSettings},
	{title: "Store", page: "../operating/redis.md", settings: storeSettings},
	{title: "Doors", settings: doorSettings},
	{title: "Envoy's quotas", page: "../guides/rlqs.md", settings: quotaSettings},
	{title: "Regions", page: "../operating/regions.md", settings: regionSettings},
	{title: "Proxy", settings: proxySettings},
	{title: "Load", page: "../guides/overload.md", settings: loadSettings},
	{title: "Insight", settings: insightSettings},
	{title: "Deferred requests", page: "../guides/deferring.md", settings: deferSettings},
	{title: "Clients", page: "../start/keys.md", settings: clientSettings},
	{title: "Fields", page: "../operating/ambiguous-requests.md", settings: fieldSettings},
	{title: "Trust and transport", page: "../operating/security.md", settings: trustSettings},
	{title: "Answers", page: "headers.md", settings: answerSettings},
	{title: "Metrics and logs", settings: logSettings},
	{title: "OpenTelemetry", settings: otelSettings},
	{title: "Decision log", settings: decisionSettings},
	{title: "Bounds", page: "../operating/security.md", settings: boundSettings},
}

// findSetting finds a setting by its path; nil if there is none.
func findSetting(path string) *setting {
	for i := range settings {
		if settings[i].path == path {
			return &settings[i]
		}
	}
	return nil
}

// Variables are the names of the environment variables that a server reads.
func Variables() []string {
	names := []string{"WEIR_CONFIG"}
	for i := range settings {
		names = append(names, settings[i].variable())
	}
	return names
}

// items splits the text of a flag or variable.
func (s *setting) items(value string) []string {
	if s.kind == scalar {
		return []string{value}
	}
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
