package openload

import (
	"strings"
	"testing"
	"time"
)

func TestTargetErrors(t *testing.T) {
	const http = "http://127.0.0.1:8080"
	for want, target := range map[string]Target{
		"no URL such as http://127.0.0.1:8080":              {URL: "127.0.0.1:8080"},
		"the scheme is http, https, grpc":                   {URL: "ftp://127.0.0.1:8080"},
		"a path is for the door proxy only":                 {URL: http + "/search"},
		`there is no door "dns"; there are [http rls resp`:  {URL: http, Door: "dns"},
		"the door rls is not asked by http://":              {URL: http, Door: RLS},
		"9999 connections are not from 1 to the 64 callers": {URL: http, Key: "user", Connections: 9999},
		"the key needs a name":                              {URL: http},
	} {
		if _, _, err := target.Open(64); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", target, err, want)
		}
	}
}

// Nobody listens: a load does not go on for the hour that is asked for.
func TestNobodyListens(t *testing.T) {
	target := Target{URL: "http://127.0.0.1:1", Key: "user"}
	askers, closed, err := target.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	o := Options{For: time.Hour, Callers: 1, Keys: 1, Draw: Uniform}
	if _, err := Run(t.Context(), &o, askers, nil); err == nil ||
		!strings.Contains(err.Error(), "fails again and again: ") {
		t.Error(err)
	}
}
