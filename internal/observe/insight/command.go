package insight

import "github.com/weir-rl/weir/rule"

// Commands that bring their own limit belong to no rule. They are counted under a rule name of
// their own, in a domain of their own. No rule set holds either name, so commands are not judged,
// come from no file, and cannot be banned or granted anything.
const (
	CommandDomain = rule.CommandDomain
	CommandRule   = "_command"
)

// CommandKind is which command it was; the two count a key apart.
type CommandKind uint16

// The kinds of commands.
const (
	CLThrottle CommandKind = iota
	Throttle
	CommandKinds
)

// CommandNames stand for the limits of a rule.
var CommandNames = [CommandKinds]string{CLThrottle: "CL.THROTTLE", Throttle: "THROTTLE"}

// IsCommand reports whether the name of a limit stands for commands: all of them, or one kind.
func IsCommand(limit string) bool {
	for _, name := range CommandNames {
		if limit == name {
			return true
		}
	}
	return limit == CommandRule
}

// CommandKeyName is the name before the key of a command, as people read it: key=user:ada.
const CommandKeyName = "key"

// IsCommandRule reports whether a domain and a rule stand for commands.
func IsCommandRule(domain, name string) bool { return domain == CommandDomain && name == CommandRule }
