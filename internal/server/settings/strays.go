package settings

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/weir-rl/weir/internal/util/suggest"
)

// NearestPath returns the setting that a name means, both written with dashes or underscores
// between their words: one that is near, one that ends with it, one with the same words in another
// order, or else one that ends with all but its first word, as of another group: the only one, or
// the default for all groups. It returns "" if there is none.
func NearestPath(name string, known []string) string {
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
	at := strings.IndexAny(name, "-_")
	if at < 0 {
		return ""
	}
	end := name[at:]
	if near := only(known, func(k string) bool { return strings.HasSuffix(k, end) }); near != "" {
		return near
	}
	end = "default" + strings.ToLower(end)
	return only(known, func(k string) bool { return strings.HasSuffix(strings.ToLower(k), end) })
}

// only returns the one that fits; "" if there is none, or several.
func only(list []string, fits func(string) bool) (found string) {
	for _, s := range list {
		if fits(s) {
			if found != "" {
				return ""
			}
			found = s
		}
	}
	return found
}

// serviceLink finds the names of variables that Kubernetes sets in each container for a service
// called weir, or weir-something (service links). The value must decide about names that end in
// _PORT.
var serviceLink = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`^WEIR_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
})

// linkedPort finds the value of such a variable whose name ends in _PORT.
var linkedPort = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(tcp|udp|sctp)://`)
})

// ClientVariables are read by the commands that ask a running server: its address, and the file of
// the token.
var ClientVariables = []string{"WEIR_SERVER", "WEIR_TOKEN_FILE"}

// Strays returns a remark on each variable of the environment that begins as Weir's do, and
// is none. Values may be secrets, so no remark shows one.
func (t Table[C]) Strays(env []string) (remarks []string) {
	known := append(t.Variables(), ClientVariables...)
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, "WEIR_")
		switch {
		case !ours || rest == "" || slices.Contains(known, name), serviceLink().MatchString(name),
			strings.HasSuffix(name, "_PORT") && linkedPort().MatchString(value):
			continue
		}
		near := strings.TrimSuffix(name, "_"+strings.ToUpper(ownKey)) // store: {url: …} is WEIR_STORE
		if !slices.Contains(known, near) {
			near = cmp.Or(NearestPath(name, known), NearestPath(rest, known))
		}
		remarks = append(remarks, name+" is no setting, and has no effect"+suggest.DidYouMean(near))
	}
	slices.Sort(remarks)
	return remarks
}
