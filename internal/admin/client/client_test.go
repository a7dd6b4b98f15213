package client

import (
	"net/http"
	"testing"
)

// Nothing but the context bounds the wait of a client that asks the server itself, and no proxy of
// the environment is in between.
func TestDirect(t *testing.T) {
	c, err := Open(Options{Address: Default})
	if err != nil {
		t.Fatal(err)
	}
	if c.http.Timeout == 0 {
		t.Error("without Direct nothing bounds the wait")
	}
	if c.Direct(); c.http.Timeout != 0 || c.http.Transport.(*http.Transport).Proxy != nil {
		t.Errorf("it ends after %s, through a proxy: %t", c.http.Timeout,
			c.http.Transport.(*http.Transport).Proxy != nil)
	}
}

// An address may be written as listen.admin is.
func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:6070": "http://127.0.0.1:6070", "weir.internal:6070": "http://weir.internal:6070", "[::1]:6070": "http://[::1]:6070",
		":6070": "http://127.0.0.1:6070", "https://weir.internal:6070": "https://weir.internal:6070", "http://[::1]:6070/": "http://[::1]:6070/",
		"unix:/run/weir:6070": "unix:/run/weir:6070", "unix:admin.sock": "unix:admin.sock", "localhost": "", "http://": "", "127.0.0.1:": "", "ftp://weir:21": "", "unix:": "", "": "",
	} {
		got := ""
		if c, err := Open(Options{Address: address}); err == nil {
			got = c.Name()
		}
		if got != want {
			t.Errorf("%q is asked as %q, want %q", address, got, want)
		}
	}
}
