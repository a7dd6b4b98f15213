package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// Answers are found however the network cuts them, in their order, with the outcome of each.
func TestAnswers(t *testing.T) {
	h2 := func(kind, flags byte, id byte, body string) string {
		return string([]byte{0, 0, byte(len(body)), kind, flags, 0, 0, 0, id}) + body
	}
	for door, text := range map[string]string{
		"resp": "*6\r\n:1\r\n:9\r\n:8\r\n:0\r\n:0\r\n*0\r\n-BUSY overloaded\r\n*6\r\n:1\r\n:9\r\n:8\r\n:0\r\n:0\r\n*0\r\n",
		"http": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 503 x\r\nA: b\r\nContent-Length: 1\r\nC: d\r\n\r\n!HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"rls": h2(4, 0, 0, "") + h2(1, 4, 1, "h") + h2(0, 0, 1, "\x00\x00\x00\x00\x02\x08\x01") + h2(1, 5, 1, "t") +
			h2(1, 5, 3, "unavailable") + h2(0, 0, 5, "\x00\x00\x00\x00\x02\x08\x01") + h2(1, 5, 5, "t"),
	} {
		for size := 1; size <= len(text); size++ {
			p := protocols[door]()
			var got []string
			var in []byte
			for part := range slices.Chunk([]byte(text), size) {
				in = append(in, part...)
				taken, _, err := p.answers(in,
					func(number int, decided bool) { got = append(got, fmt.Sprint(number, decided)) })
				if err != nil {
					t.Fatalf("%s in parts of %d: %v", door, size, err)
				}
				in = in[taken:]
			}
			if want := []string{"0 true", "1 false", "2 true"}; !slices.Equal(got, want) || len(in) > 0 {
				t.Fatalf("%s in parts of %d: %q, and %q is left", door, size, got, in)
			}
		}
	}
}

func TestParse(t *testing.T) {
	if p, err := parse(strings.Fields("-weir w -door resp -shares 0.5,2 -set --a=b"), io.Discard); err != nil ||
		len(p.shares) != 2 || len(p.settings) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "-weir w -door spoe", "-weir w -shares x", "-weir w -shares 0",
		"-weir w -connections 0"} {
		if _, err := parse(strings.Fields(bad), io.Discard); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
