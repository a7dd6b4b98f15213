package words

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/util/human"
)

// Keys prints a table of keys.
func Keys(out io.Writer, keys []admin.KeyInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMIT\tKEY\tUSED\tLEFT\tRESET IN\tSTATE")
	for i := range keys {
		k := &keys[i]
		used, left, reset := usedText(k), strconv.FormatInt(k.Remaining, 10), "-"
		if k.Unlimited {
			used, left = "-", "-"
		}
		if k.ResetAfter > 0 {
			reset = span(k.ResetAfter)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", LimitName(k.Domain, k.Limit), Key(k.Parts), used, left, reset,
			keyVerdict(k)+leasedText(k, ", ")+regionsText(k, ", "))
	}
	return w.Flush()
}

// Hottest prints the hottest keys, how many keys were examined, and how many are banned.
func Hottest(out io.Writer, domain, limit string, found *admin.KeyList) error {
	if len(found.Keys) == 0 {
		fmt.Fprintf(out, "Nothing is counted of %s.\n", limit)
	} else if err := Keys(out, found.Keys); err != nil {
		return err
	}
	if !found.Complete {
		fmt.Fprintf(out, "Looked at about %s", human.Plural(found.Looked, "key"))
		if found.Of > 0 {
			fmt.Fprintf(out, " of %d", found.Of)
		}
		fmt.Fprintln(out, "; the next call goes on from here, and --look all looks at all.")
	}
	if found.Banned > 0 {
		if len(found.Rules) == 1 { // else the name that means them all
			domain, limit = "", found.Rules[0]
		}
		named := shellWord(limit)
		if domain != "" {
			named += " --domain " + shellWord(domain)
		}
		fmt.Fprintf(out, "%s banned; weir ban list --limit %s lists them.\n",
			human.PluralIs(found.Banned, "key"), named)
	}
	return nil
}

// usedText says how much of a limit is used, and how much there is with a soft margin.
func usedText(k *admin.KeyInfo) string {
	if k.SoftLimit > 0 {
		return fmt.Sprintf("%d of %d (soft %d)", k.Used, k.Capacity, k.SoftLimit)
	}
	return fmt.Sprintf("%d of %d", k.Used, k.Capacity)
}

// keyVerdict says in words how a request with a key would be decided.
func keyVerdict(k *admin.KeyInfo) string {
	var parts []string
	switch {
	case k.Ban != nil:
		parts = append(parts, Ban(k.Ban))
	case k.Refused && k.RetryAfter < 0:
		parts = append(parts, "refused")
	case k.Refused:
		parts = append(parts, "refused for "+span(k.RetryAfter))
	case k.Unlimited:
		parts = append(parts, "not limited")
	default:
		parts = append(parts, "passes")
	}
	if k.Shadow {
		parts = append(parts, "in shadow")
	}
	if k.Grant != nil {
		parts = append(parts, fmt.Sprintf("granted %s until %s", k.Grant.Allow, Instant(k.Grant.Until)))
	}
	return strings.Join(parts, ", ")
}

// leasedText says how many units of a key servers have been lent, behind a separator; "" if none.
func leasedText(k *admin.KeyInfo, separator string) string {
	l := k.Leased
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%sleased: %d (%s), until %s", separator, l.Units, human.Plural(l.Generations, "generation"),
		Instant(l.Until))
}

// regionsText says how a key stands in this region and in all, behind a separator; "" for a limit
// of one region.
func regionsText(k *admin.KeyInfo, separator string) string {
	r := k.Regions
	if r == nil {
		return ""
	}
	var parts []string
	if own := r.Own; own != nil {
		parts = append(parts, fmt.Sprintf("%s: %d of %d (ceiling)", r.Region, own.Used, own.Limit))
	}
	if all := r.All; all != nil {
		parts = append(parts, fmt.Sprintf("all regions: %d of %d as heard", all.Used, all.Limit))
	}
	return separator + strings.Join(parts, ", ")
}

// Ban says by whom and until when a key is banned, and why.
func Ban(b *admin.ListedBan) string {
	text := fmt.Sprintf("banned until %s by %s", Instant(b.Until), b.Rule)
	if b.Reason != "" {
		text += " (" + human.Printable(b.Reason) + ")"
	}
	return text
}

// KeyState says in words what is counted of a key, and how a request with it would be decided.
func KeyState(k *admin.KeyInfo) string {
	state := fmt.Sprintf("used %s, %d remaining", usedText(k), k.Remaining)
	switch {
	case k.Unlimited:
		state = "not limited"
	case k.ResetAfter > 0:
		state += ", as fresh in " + span(k.ResetAfter)
	}
	if verdict := keyVerdict(k); verdict != "passes" && verdict != state {
		state += "; " + verdict
	}
	return state + leasedText(k, "; ") + regionsText(k, "; ")
}
