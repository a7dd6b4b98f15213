package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Every command that asks an admin port says so when the door speaks TLS, and shows what a stranger
// has answered.
func TestHintsOfClients(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, ca.PEM)
	p := start(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem")
	address := p.Addr("admin")
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such bucket\x1b[31m", http.StatusNotFound)
	}))
	defer stranger.Close()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("<html>a page"))
	}))
	defer page.Close()
	for _, command := range [][]string{
		{"ban", "list"}, {"ban", "set", "api", "ada", "--for=1m"}, {"ban", "lift", "api", "ada"},
		{"grant", "list"}, {"grant", "revoke", "api", "ada"}, {"candidates"}, {"defer", "ls"}, {"defer", "drop", sampleJob},
		{"explain", "--id=4vq8r2mxw0c7e"}, {"explain", "--rules=rules.yaml", "key=ada"}, {"explain", "key=ada"},
	} {
		for server, want := range map[string]string{
			"http://" + address: "http://" + address + " speaks TLS: write https://",
			stranger.URL:        `404 Not Found: "no such bucket\x1b[31m"; is it the admin port of a weir server?`,
			page.URL:            "502 Bad Gateway; is it the admin port of a weir server?",
		} {
			if command[0] == "defer" && command[1] == "drop" && server == stranger.URL {
				continue // it names the job first
			}
			status, out := weirOutput(t, append(command, "--server="+server)...)
			if status == 0 || !strings.Contains(out, want) {
				t.Errorf("%v at %s: exit status %d, %s\nwant %s", command, server, status, out, want)
			}
		}
	}
	if status, out := weirOutput(t, "ban", "list", "--server=https://"+address, "--ca=ca.pem"); status != 0 {
		t.Errorf("over TLS: exit status %d, %s", status, out)
	}
	p.End()
}
