package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/wire/listen/certtest"
)

// weir tail follows a server that demands a client's certificate, and filters by a key.
func TestTailByCertificate(t *testing.T) {
	inFolder(t, "domain: shop\nlimits: [{ name: api, per: [user], allow: 1/day }]\n")
	ca, clients := certtest.New(t, "ca"), certtest.New(t, "clients")
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, ca.PEM)
	own, ownKey := clients.Issue("operator", 0)
	certtest.Write(t, []string{"own.pem", "own.key", "clients.pem"}, own, ownKey, clients.PEM)
	p := start(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem", "--tls-client-ca=clients.pem", "--tls-doors=admin")
	server := []string{"--server=https://" + p.addr("admin"), "--ca=ca.pem"}
	tail := start(t, slices.Concat([]string{"tail"}, server, []string{"--cert=own.pem", "--cert-key=own.key", "--key=user=ada"})...)
	eventually(t, "tail shows what was refused of ada", func() bool {
		for _, user := range []string{"eve", "ada"} {
			get(t, "http://"+p.addr("http")+"/api/v1/limit?user="+user)
		}
		return strings.Contains(tail.stdout.String(), "user=ada")
	})
	if out := tail.stdout.String(); strings.Contains(out, "user=eve") {
		t.Errorf("it shows another key:\n%s", out)
	}
	tail.end()
	// Where tail's --key is taken for the file, the certificate lacks its key, and that is said.
	wrong := start(t, slices.Concat([]string{"tail"}, server, []string{"--cert=own.pem", "--key=own.key"})...)
	wrong.exits(exitUsage)
	if !strings.Contains(wrong.stderr.String(), "--cert and --cert-key: give both, or none") {
		t.Errorf("%s", wrong.stderr)
	}
	// Elsewhere --key is still the file.
	for _, flag := range []string{"--key=own.key", "--cert-key=own.key"} {
		start(t, slices.Concat([]string{"ban", "list"}, server, []string{"--cert=own.pem", flag})...).exits(0)
	}
	p.end()
}
