package admin

import (
	"encoding/csv"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// TestKeysAsCSV: what a client or a rule file chose is text in a cell, no formula, and in its
// place.
func TestKeysAsCSV(t *testing.T) {
	until := time.Unix(1_800_000_000, 0)
	w := httptest.NewRecorder()
	writeKeys(w, []insight.KeyCount{
		{Domain: "=1+1", Rule: "@SUM(A1)", Limit: "-2", Key: "+cmd|' /C calc'!A0", Count: 7, Obey: -1},
		{Domain: "shop", Rule: "a", Limit: "a", Key: "user=\"a\",b\r\n\x00\x1b[31m\u202e\xff", Count: 9, Over: 2, RefusedShare: 0.25, Fill: 1.5, Obey: 0.5, Known: true, BannedUntil: &until},
	})
	rows, err := csv.NewReader(strings.NewReader(w.Body.String())).ReadAll()
	if err != nil || len(rows) != 3 || len(rows[1]) != len(rows[0]) {
		t.Fatalf("%v: %q", err, w.Body)
	}
	for i, want := range []string{
		"'=1+1|'@SUM(A1)|'-2|'+cmd|' /C calc'!A0|7|0|false|0|0|false||false||",
		`shop|a|a|user="a",b\x0d\x0a\x00\x1b[31m\u202e\xff|9|2|false|0.25|1.5|true|0.5|false|2027-01-15T08:00:00Z|`,
	} {
		if got := strings.Join(rows[i+1], "|"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestKeysFormats: the list of keys comes as CSV where that is asked for, masked as the other is.
func TestKeysFormats(t *testing.T) {
	w := newWhole(t, nil)
	for target, want := range map[string]string{"?format=csv": "text/csv; charset=utf-8; header=present",
		"?format=json": jsonText, "": jsonText} {
		if a := w.as("viewer", "GET", "/api/v1/insight/keys"+target, ""); a.Status != 200 ||
			a.Header.Get("Content-Type") != want {
			t.Errorf("%q: %d %v", target, a.Status, a.Header)
		}
	}
	if a := w.as("viewer", "GET", "/api/v1/insight/keys?format=xml", ""); a.Status != 400 ||
		!strings.Contains(a.Body, "must be json or csv") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
