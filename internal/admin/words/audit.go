package words

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/util/human"
)

// Audit prints a table of records.
func Audit(out io.Writer, records []audit.Entry) error {
	if len(records) == 0 {
		_, err := fmt.Fprintln(out, "Nothing was changed, as far as this server remembers.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NUMBER\tTIME\tWHO\tROLE\tADDRESS\tWHAT\tLIMIT\tKEY\tBEFORE\tAFTER\tNOTE\tNODE")
	for i := range records {
		e := &records[i]
		limit := e.Domain
		if e.Limit != "" {
			limit += "/" + e.Limit
		}
		fmt.Fprintf(w, "%d\t%s", e.Seq, Instant(e.Time))
		before, after := jsonText(e.Before), jsonText(e.After)
		if changes := changesOf(e.After); changes != "" { // in place of two digests
			before, after = versionOf(e.Before), strings.TrimSpace(versionOf(e.After)+" "+changes)
		}
		for _, text := range []string{e.Who, e.Role, e.Address, e.What, limit, e.Key, before, after, e.Note,
			e.Node} {
			if text == "" {
				text = "-"
			}
			fmt.Fprintf(w, "\t%s", human.Visible(text))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// changesOf says what other rules changed, as it was recorded; "" if it was not.
func changesOf(v any) string {
	m, _ := v.(map[string]any)
	list, _ := m["changes"].([]any)
	var lines []string
	for _, x := range list {
		if line, ok := x.(string); ok {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

func versionOf(v any) string {
	m, _ := v.(map[string]any)
	if version, _ := m["version"].(string); version != "" {
		return "version " + version
	}
	return ""
}

// jsonText is a value of a record: a text as it is, anything else as JSON.
func jsonText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(raw)
}
