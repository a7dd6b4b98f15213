package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/store/internal/address"
)

// target holds the contents of a URL.
type target struct {
	addresses                      []string
	cluster                        bool
	master                         string // of Sentinel
	user, password                 string
	sentinelUser, sentinelPassword string
	database                       int
	tls                            *tls.Config
}

// String names the servers, without credentials.
func (t *target) String() string {
	s := strings.Join(t.addresses, ",")
	if t.master != "" {
		s += ", master " + t.master
	}
	return s
}

// urlForms are the forms that a message shows.
const urlForms = "write redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, or redis+cluster://HOST:PORT,HOST:PORT (rediss… for TLS)"

var urlParameters = slices.Concat(address.TLSParameters, []string{"sentinel_user", "sentinel_password"})

// CheckURL reports whether text is a URL that Open takes. Its error holds no credentials.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

// form is how a URL of Redis looks.
var form = address.Form{
	Kind: "redis", Shown: urlForms,
	Port: func(scheme string) string {
		if strings.HasSuffix(scheme, "+sentinel") {
			return "26379"
		}
		return "6379"
	},
	Check: func(scheme string) error {
		base, form, _ := strings.Cut(scheme, "+")
		if base != "redis" && base != "rediss" || form != "" && form != "cluster" && form != "sentinel" {
			return address.ErrScheme(scheme)
		}
		return nil
	},
}

func parseURL(text string) (*target, error) {
	u, err := address.Parse(text, form)
	if err != nil {
		return nil, err
	}
	base, form, _ := strings.Cut(u.Scheme, "+")
	t := &target{addresses: u.Hosts, cluster: form == "cluster", user: u.User, password: u.Password}
	if form == "" && len(t.addresses) > 1 {
		return nil, errors.New("redis URL: there are several hosts; write redis+cluster:// or redis+sentinel://")
	}
	if err := t.readPath(form, u.Path); err != nil {
		return nil, err
	}
	return t, t.readParameters(u, base == "rediss")
}

func (t *target) readPath(form, path string) error {
	database := path
	if form == "sentinel" {
		t.master, database, _ = strings.Cut(path, "/")
		if t.master == "" {
			return errors.New("redis URL: the name of the master is missing, as in redis+sentinel://HOST:PORT/mymaster")
		}
	}
	if database == "" {
		return nil
	}
	n, err := strconv.ParseUint(database, 10, 31)
	if err != nil {
		return fmt.Errorf("redis URL: the database %q is no number", database)
	}
	if t.cluster && n != 0 {
		return errors.New("redis URL: a Cluster has the database 0 only")
	}
	t.database = int(n)
	return nil
}

func (t *target) readParameters(u *address.URL, secure bool) (err error) {
	if err := u.CheckParameters(urlParameters); err != nil {
		return err
	}
	t.sentinelUser, t.sentinelPassword = u.Query.Get("sentinel_user"), u.Query.Get("sentinel_password")
	if !secure {
		for _, name := range address.TLSParameters {
			if u.Query.Has(name) {
				return fmt.Errorf("redis URL: %q is for TLS; write rediss:// in place of redis://", name)
			}
		}
		return nil
	}
	t.tls, err = u.TLS()
	return err
}
