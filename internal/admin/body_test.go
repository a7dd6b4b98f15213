package admin

import (
	"strings"
	"testing"
)

// What is wrong with a body is said by the names of its members, and never by types of Go.
func TestBodies(t *testing.T) {
	type body struct {
		For    string            `json:"for"`
		N      int64             `json:"n"`
		Share  float64           `json:"share"`
		On     bool              `json:"on"`
		Files  map[string]string `json:"files"`
		Names  []string          `json:"names"`
		Nested struct {
			Deep string `json:"deep"`
		} `json:"nested"`
	}
	const like = `; the body is such as {"for": "1m"}`
	for text, want := range map[string]string{
		`{"for": 60}`:                `for: must be a string, not a number` + like,
		`{"for": {}}`:                `for: must be a string, not an object` + like,
		`{"for": []}`:                `for: must be a string, not a list` + like,
		`{"for": true}`:              `for: must be a string, not true or false` + like,
		`{"n": "1"}`:                 `n: must be an integer, not a string` + like,
		`{"n": 1.5}`:                 `n: must be an integer, not 1.5` + like,
		`{"n": 9223372036854775808}`: `n: must be an integer, not 9223372036854775808` + like,
		`{"share": "1"}`:             `share: must be a number, not a string` + like,
		`{"on": 1}`:                  `on: must be true or false, not a number` + like,
		`{"files": []}`:              `files: must be an object, not a list` + like,
		`{"names": "x"}`:             `names: must be a list, not a string` + like,
		`{"nested": {"deep": 1}}`:    `nested.deep: must be a string, not a number` + like,
		`{"colour": 1}`:              `colour: is not known here` + like,
		`[]`:                         `body: must be a JSON object such as {"for": "1m"}: it is a list`,
		`7`:                          `body: must be a JSON object such as {"for": "1m"}: it is a number`,
		``:                           `body: must be a JSON object such as {"for": "1m"}: it is empty`,
		`{"for": `:                   `body: must be a JSON object such as {"for": "1m"}: it ends too early`,
		`{} {}`:                      `body: must be a JSON object such as {"for": "1m"}: it goes on after the object`,
		`{"for": "1m", "on": true} `: ``,
		`{"n": 9223372036854775807}`: ``,
	} {
		got := ""
		if err := decodeBody(strings.NewReader(text), new(body), `{"for": "1m"}`); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}
