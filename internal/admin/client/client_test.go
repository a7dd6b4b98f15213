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
		t.Errorf("it ends after %s, through a proxy: %t", c.http.Timeout, c.http.Transport.(*http.Transport).Proxy != nil)
	}
}
