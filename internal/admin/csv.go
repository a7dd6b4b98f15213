package admin

import (
	"encoding/csv"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// writeKeys answers with keys as CSV (RFC 4180), for spreadsheets.
func writeKeys(w http.ResponseWriter, keys []insight.KeyCount) {
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8; header=present")
	h.Set("Content-Disposition", `attachment; filename="keys.csv"`)
	out := csv.NewWriter(w)
	out.UseCRLF = true
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	instant := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	_ = out.Write([]string{"domain", "rule", "limit", "key", "count", "over", "estimated", "refused_share", "fill",
		"known", "obey", "shadow", "banned_until", "granted_until"})
	for i := range keys {
		k := &keys[i]
		obey := ""
		if k.Obey >= 0 {
			obey = number(k.Obey)
		}
		_ = out.Write([]string{
			cell(k.Domain), cell(k.Rule), cell(k.Limit), cell(k.Key), strconv.FormatUint(k.Count, 10),
			strconv.FormatUint(k.Over, 10),
			strconv.FormatBool(k.Estimated), number(k.RefusedShare), number(k.Fill), strconv.FormatBool(k.Known), obey,
			strconv.FormatBool(k.Shadow),
			instant(k.BannedUntil), instant(k.GrantedUntil),
		})
	}
	out.Flush() // the client hung up, if that fails
}

// cell makes a text from a client harmless in a spreadsheet. Spreadsheets run a text that looks
// like a formula (OWASP, CSV Injection), unless an apostrophe precedes it.
func cell(text string) string {
	text = human.Visible(text)
	if text != "" && strings.ContainsRune("=+-@", rune(text[0])) {
		return "'" + text
	}
	return text
}
