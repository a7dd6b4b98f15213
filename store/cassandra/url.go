package cassandra

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/address"
)

// target holds the contents of a URL.
type target struct {
	hosts          []string
	user, password string
	passwordFile   string
	keyspace       string
	tls            *tls.Config
	localDC        string
	serial, quorum gocql.Consistency
	replicas       int // in each data centre, if the keyspace is to be made; 0: it must be there
}

// urlForm is the form that a message shows.
const urlForm = "write cassandra://USER:PASSWORD@HOST:9042,HOST2/KEYSPACE"

var urlParameters = slices.Concat(address.TLSParameters,
	[]string{"tls", "password_file", "consistency", "local_dc", "replicas"})

// form is how a URL of Cassandra looks.
var form = address.Form{
	Kind: "cassandra", Shown: urlForm,
	Port: func(string) string { return "9042" },
	Check: func(scheme string) error {
		if scheme != "cassandra" {
			return address.ErrScheme(scheme)
		}
		return nil
	},
}

// CheckURL reports whether text is a URL that Open takes. Its error holds no credentials.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

// names matches names of keyspaces; Cassandra takes no others.
var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_]{1,48}$`) })

func parseURL(text string) (*target, error) {
	u, err := address.Parse(text, form)
	if err != nil {
		return nil, err
	}
	t := &target{hosts: u.Hosts, user: u.User, password: u.Password, keyspace: u.Path, localDC: u.Query.Get("local_dc")}
	if err := u.CheckParameters(urlParameters); err != nil {
		return nil, err
	}
	if !names().MatchString(t.keyspace) {
		return nil, u.Errorf("%q is no name of a keyspace: 1 to 48 letters, digits and _; %s", t.keyspace, urlForm)
	}
	switch consistency := u.Query.Get("consistency"); consistency {
	case "", "SERIAL":
		t.serial, t.quorum = gocql.Serial, gocql.Quorum
	case "LOCAL_SERIAL":
		t.serial, t.quorum = gocql.LocalSerial, gocql.LocalQuorum
		if t.localDC == "" {
			return nil, u.Errorf("consistency=LOCAL_SERIAL needs local_dc, the name of the data centre")
		}
	default:
		return nil, u.Errorf("consistency: write SERIAL or LOCAL_SERIAL, not %q", consistency)
	}
	if text := u.Query.Get("replicas"); text != "" {
		if t.replicas, err = strconv.Atoi(text); err != nil || t.replicas < 1 || t.replicas > 99 {
			return nil, u.Errorf("replicas: write a number from 1 to 99, not %q", text)
		}
	}
	if t.passwordFile = u.Query.Get("password_file"); t.passwordFile != "" {
		if t.user == "" || t.password != "" {
			return nil, u.Errorf(
				"password_file goes with a user, and in place of a password: cassandra://USER@HOST/KEYSPACE?password_file=FILE")
		}
		if _, err := t.currentPassword(); err != nil {
			return nil, u.Errorf("password_file: %w", err)
		}
	}
	return t, t.readTLS(u)
}

func (t *target) readTLS(u *address.URL) (err error) {
	wanted := slices.ContainsFunc(address.TLSParameters, u.Query.Has)
	switch text := u.Query.Get("tls"); {
	case text == "true" || text == "" && wanted:
		t.tls, err = u.TLS()
		return err
	case text == "false" && wanted:
		return u.Errorf("tls=false, and there is a parameter for TLS")
	case text != "" && text != "false":
		return u.Errorf("tls: write true or false, not %q", text)
	}
	return nil
}

// currentPassword returns the password, as its file has it now if there is one.
func (t *target) currentPassword() (string, error) {
	if t.passwordFile == "" {
		return t.password, nil
	}
	text, err := os.ReadFile(t.passwordFile)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", errors.New(t.passwordFile + " is empty")
	}
	return password, nil
}

// createKeyspace is the statement that makes the keyspace.
func (t *target) createKeyspace() string {
	where := "replication_factor"
	if t.serial == gocql.LocalSerial {
		where = t.localDC
	}
	return fmt.Sprintf(
		"CREATE KEYSPACE IF NOT EXISTS %s WITH replication = {'class': 'NetworkTopologyStrategy', '%s': %d}",
		quoted(t.keyspace), strings.ReplaceAll(where, "'", "''"), t.replicas)
}

// checkReplication refuses a keyspace that would be written over from elsewhere: with LOCAL_SERIAL,
// data centres do not wait for each other, and the later of two values would win.
func (t *target) checkReplication(replication map[string]string) error {
	if t.serial != gocql.LocalSerial {
		return nil
	}
	simple := strings.HasSuffix(replication["class"], "SimpleStrategy")
	for dc := range replication {
		if dc != "class" && (dc != t.localDC || simple) {
			return &store.LastingError{
				Advice: fmt.Sprintf(
					"consistency=LOCAL_SERIAL needs a keyspace that lies in the data centre %s alone, since others would write over it: "+
						"change the replication of the keyspace %s in Cassandra, or name another one in the store's URL", t.localDC, t.keyspace),
				Err: fmt.Errorf("the replication of %q is %v", t.keyspace, replication),
			}
		}
	}
	return nil
}
