package settings

import (
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// RedactURL hides the password of a URL in a message.
func RedactURL(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	scheme, _, _ := strings.Cut(s, ":")
	return scheme + ":…"
}

// Redact hides the secrets of URLs in a message.
func Redact(message string) string { return secrets().ReplaceAllString(message, "$1$3…$2") }

// secrets finds the secrets of URLs in a message, which may quote the configuration: user and
// password, and parameters that hold a password.
var secrets = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(://).*(@)|(password=)[^\s&"']*`) })

// WithoutCredentials removes the credentials and the parameters from the URL of a store.
func WithoutCredentials(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	rest, _, _ = strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	hosts = hosts[strings.LastIndexByte(hosts, '@')+1:]
	return strings.TrimSuffix(scheme+"://"+hosts+"/"+path, "/")
}
