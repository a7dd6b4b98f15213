package cassandra

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

func TestParseURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("of the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]target{
		"cassandra://h/weir": {hosts: []string{"h:9042"}, keyspace: "weir", serial: gocql.Serial, quorum: gocql.Quorum},
		"cassandra://ada:p%40ss@a:1,[::1]/Weir_2?replicas=3": {
			hosts: []string{"a:1", "[::1]:9042"}, user: "ada", password: "p@ss", keyspace: "Weir_2", replicas: 3, serial: gocql.Serial, quorum: gocql.Quorum,
		},
		"cassandra://h/weir?consistency=LOCAL_SERIAL&local_dc=eu%20west&tls=false": {
			hosts: []string{"h:9042"}, keyspace: "weir", localDC: "eu west", serial: gocql.LocalSerial, quorum: gocql.LocalQuorum,
		},
		"cassandra://ada@h/weir?consistency=SERIAL&password_file=" + file: {
			hosts: []string{"h:9042"}, user: "ada", passwordFile: file, keyspace: "weir", serial: gocql.Serial, quorum: gocql.Quorum,
		},
	} {
		got, err := parseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", url, *got, want)
		}
		if got.passwordFile != "" {
			if password, err := got.currentPassword(); password != "of the file" || err != nil {
				t.Errorf("the password is %q, %v", password, err)
			}
		}
	}
	got, err := parseURL("cassandra://h/weir?server_name=other")
	if err != nil || got.tls == nil || got.tls.ServerName != "other" {
		t.Errorf("a name of a server: %+v, %v", got, err)
	}
	if got, err := parseURL("cassandra://h/weir?tls=true"); err != nil || got.tls == nil {
		t.Errorf("tls=true: %+v, %v", got, err)
	}
	for url, part := range map[string]string{
		"":                                                    "no scheme",
		"redis://h/weir":                                      `"redis" is not known`,
		"cassandra://:secret@/weir":                           "a host is missing",
		"cassandra://:secret@h":                               `"" is no name of a keyspace`,
		"cassandra://:secret@h/a-b":                           `"a-b" is no name of a keyspace`,
		"cassandra://:se/cret@h/weir":                         "percent-encode",
		"cassandra://h/weir?dc=a":                             `the parameter "dc" is not known`,
		"cassandra://h/weir?consistency=ONE":                  `not "ONE"`,
		"cassandra://h/weir?replicas=0":                       "from 1 to 99",
		"cassandra://h/weir?replicas=x":                       "from 1 to 99",
		"cassandra://h/weir?tls=yes":                          "tls: write true or false",
		"cassandra://h/weir?tls=false&ca=x":                   "tls=false",
		"cassandra://h/weir?ca=/nonexistent.pem":              "ca:",
		"cassandra://h/weir?password_file=x":                  "goes with a user",
		"cassandra://u:secret@h/weir?password_file=x":         "in place of a password",
		"cassandra://u@h/weir?password_file=/nonexistent":     "password_file:",
		"cassandra://:secret@h/weir?consistency=LOCAL_SERIAL": "needs local_dc",
	} {
		err := CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want one with %q, and no password", url, err, part)
		}
	}
}

func TestReplication(t *testing.T) {
	local, err := parseURL("cassandra://h/weir?consistency=LOCAL_SERIAL&local_dc=dc1&replicas=3")
	if err != nil {
		t.Fatal(err)
	}
	if got := local.createKeyspace(); !strings.Contains(got,
		`"weir" WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}`) {
		t.Error(got)
	}
	for _, test := range []struct {
		replication map[string]string
		good        bool
	}{
		{map[string]string{"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3"}, true},
		{map[string]string{"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3", "dc2": "3"}, false},
		{map[string]string{"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc2": "3"}, false},
		{map[string]string{"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}, false},
	} {
		if err := local.checkReplication(test.replication); (err == nil) != test.good {
			t.Errorf("%v: %v", test.replication, err)
		}
	}
}
