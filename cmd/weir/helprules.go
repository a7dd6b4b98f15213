package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server/settings"
)

// docsURL is where the documents of this version's line are read.
const docsURL = "https://github.com/weir-rl/weir/blob/HEAD/docs/"

// newRulesCommand is "weir help rules", which shows how rules look, to users who have only the
// program; the commands below it are for rules in a database.
func newRulesCommand(env []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rules",
		Short:   "How rules and their tests are written; rules in PostgreSQL",
		Example: "  weir rules status",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Long: `Rules are YAML files in a folder, one or more for each domain. A server takes up what changes there at once.

` + indented(helpRules) + `
when      attribute: value. A glob (/api/**), a list, "!not this", ~regexp; addresses as 10.0.0.0/8.
          The proxy, the middleware, nginx, Caddy, Traefik and HAProxy give method, path, host, ip and header.NAME;
          elsewhere the caller says what there is. Left out: every request. /Login and /login/ are /login, and HEAD
          is GET; paths: exact, in a file or a limit, is for a server that tells the spellings of a path apart.
per       one counter for each value of an attribute, or for each pair of them ([user, ip]). Left out: one for all.
allow     10/s, 5/min, 1000/hour, 20/10s, several of them, {rate: 4/min, burst: 20}, 5 concurrent (at most 5 at a time),
          or unlimited.
algorithm token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log or concurrency.
on_limit  reject (429, unless another is named), shadow (only count), {wait: 2s}, {defer: QUEUE}.
more      throttle (soft, elastic), schedule, override, replaces, enforce (a share of the keys), ban, response,
          cost, cost_after, on_store_error, consistency (leases, regions), priority; files of
          envoyproxy/ratelimit (descriptors) as they are.

Tests lie beside them, in files named *_test.yaml:

` + indented(helpTest) + `
weir lint rules                                          is it right, and does it do what it seems to?
weir test rules                                          do the tests pass?
weir explain --rules rules method=POST path=/login ip=192.0.2.1
                                                         which limits would this request meet, and why?
weir replay --rules rules access.log                     what would they have refused?
weir serve --rules rules                                 the server

Rules may also lie in PostgreSQL (rules: postgres://USER@HOST/DATABASE), with versions, a history and a way back: the
commands below are for these.

Each key, with its defaults:     ` + docsURL + `reference/rules.md
Which algorithm for what:        ` + docsURL + `start/choosing.md
`,
	}
	settings.AddConfigFlag(cmd.PersistentFlags())
	cmd.PersistentFlags().String("rules", "", "postgres://USER@HOST/DATABASE?space=NAME (default: as configured)")
	cmd.AddCommand(
		newRulesInitCommand(env), newRulesImportCommand(env), newRulesPushCommand(env), newRulesPullCommand(env),
		newRulesDiffCommand(env),
		newRulesHistoryCommand(env), newRulesRollbackCommand(env), newRulesStatusCommand(env),
		newRulesPruneCommand(env),
	)
	return cmd
}

// helpRules and helpTest are shown by weir help rules. They are without errors and warnings, and
// pass.
const helpRules = `# rules/shop.yaml
domain: shop
exempt: { ip: [10.0.0.0/8] }      # never limited
limits:
  - name: login                   # shown in answers, metrics and logs
    when: { method: POST, path: /login }
    per: [ip]                     # one counter for each address
    allow: 5/min
    algorithm: sliding_log
    ban: { after: 20, within: 10m, for: 15m }

  - name: api
    when: { path: /api/** }
    per: [user|ip]                # the signed-in user, else the address
    allow: [10/s, 1000/hour]      # both must hold
    throttle: { soft: 10% }       # a tenth more passes, and is marked
`

const helpTest = `# rules/shop_test.yaml
domain: shop
tests:
  - name: five logins a minute
    steps:
      - send: { method: POST, path: /login, ip: 192.0.2.1, times: 5 }
        expect: allowed
      - send: { method: POST, path: /Login/, ip: 192.0.2.1 }
        expect: { denied_by: login, retry_after: 1m }
      - wait: 1m                  # takes no time: the clock is virtual
      - send: { method: POST, path: /login, ip: 192.0.2.1 }
        expect: allowed
`

// indented indents a text.
func indented(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
