package doortest

import (
	"net/http"
	"strings"
	"testing"
)

const aDescription = `
openapi: 3.1.0
info: { title: x, version: "1" }
paths:
  /a:
    get:
      operationId: a
      responses:
        "200":
          description: Fine.
          headers: { X-Left: { schema: { type: integer, format: int64 } } }
          content: { application/json: { schema: { $ref: "#/components/schemas/A" } } }
        "204": { description: Nothing. }
  /a/{name}:
    get:
      operationId: named
      responses:
        "200":
          description: One of two.
          content:
            application/json:
              schema: { oneOf: [{ $ref: "#/components/schemas/A" }, { $ref: "#/components/schemas/B" }] }
components:
  schemas:
    A:
      type: object
      required: [n, when]
      properties:
        n: { type: integer, format: int64 }
        when: { type: [string, "null"], format: date-time }
        kind: { type: string, enum: [x, y] }
        list: { type: array, items: { type: number } }
        by: { type: object, additionalProperties: { type: boolean } }
    B:
      type: object
      required: [b]
      properties:
        b: { type: string, pattern: "^[a-z]+$" }
`

// A description that generators would refuse, or make nothing good of, is not read.
func TestReadDescription(t *testing.T) {
	if _, err := ReadDescription([]byte(aDescription)); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`{ description: Nothing. }`:            `{ description: Nothing, or so. }`, // which is two keys
		`"204": { description: Nothing. }`:     `"204": {}`,
		`operationId: named`:                   `operationId: a`,
		`[{ $ref: "#/components/schemas/A" }`:  `[{ $ref: "#/components/schemas/C" }`,
		`n: { type: integer, format: int64 }`:  `n: { type: integer }`,
		`kind: { type: string, enum: [x, y] }`: `kind: { enum: [x, y] }`,
		`required: [n, when]`:                  `required: [n, then]`,
		`items: { type: number }`:              `itms: { type: number }`,
		"components:\n":                        "components:\n  parameters: { A: { name: a, in: query, schema: { type: string } } }\n",
	} {
		if text := strings.Replace(aDescription, from, to, 1); text == aDescription {
			t.Errorf("%q is not there", from)
		} else if _, err := ReadDescription([]byte(text)); err == nil {
			t.Errorf("%q is read", to)
		}
	}
}

// An answer is held against what is described: status, media type, fields, and each member.
func TestHold(t *testing.T) {
	d, err := ReadDescription([]byte(aDescription))
	if err != nil {
		t.Fatal(err)
	}
	const json = "application/json; charset=utf-8"
	for _, c := range []struct {
		target string
		status int
		kind   string
		body   string
		fits   bool
	}{
		{"/a", 200, json, `{"n": 1, "when": null}`, true},
		{"/a?x=1", 200, json, `{"n": 9223372036854775807, "when": "2026-01-02T03:04:05Z", "kind": "x", "list": [1.5], "by": {"q": true}}`, true},
		{"/a", 204, "", "", true},
		{"/a", 204, json, "{}", false},
		{"/a", 200, "", "", false},
		{"/a", 200, "text/plain", "x", false},
		{"/a", 404, json, "{}", false},
		{"/a", 200, json, `{"n": 1}`, false},
		{"/a", 200, json, `{"n": 1, "when": "tomorrow"}`, false},
		{"/a", 200, json, `{"n": 1.5, "when": null}`, false},
		{"/a", 200, json, `{"n": null, "when": null}`, false},
		{"/a", 200, json, `{"n": 1, "when": null, "more": 1}`, false},
		{"/a", 200, json, `{"n": 1, "when": null, "kind": "z"}`, false},
		{"/a", 200, json, `{"n": 1, "when": null, "list": ["1"]}`, false},
		{"/a", 200, json, `{"n": 1, "when": null, "list": null}`, false},
		{"/a", 200, json, `{"n": 1, "when": null, "by": {"q": 1}}`, false},
		{"/a/q%2Fr", 200, json, `{"n": 1, "when": null}`, true},
		{"/a/q", 200, json, `{"b": "x"}`, true},
		{"/a/q", 200, json, `{"b": "X"}`, false},
		{"/a/q", 200, json, `{}`, false},
		{"/b", 418, "", "", true}, // which is described nowhere
	} {
		a := Answer{Status: c.status, Header: http.Header{}, Body: c.body}
		if c.kind != "" {
			a.Header.Set("Content-Type", c.kind)
		}
		if err := d.Hold("GET", c.target, a); (err == nil) != c.fits {
			t.Errorf("%s %d %s: %v", c.target, c.status, c.body, err)
		}
	}
	a := Answer{Status: 204, Header: http.Header{}}
	if err := d.Hold("POST", "/a", a); err == nil {
		t.Error("a method that is not described is answered")
	}
	a = Answer{Status: 200, Header: http.Header{"Content-Type": {json}, "X-Left": {"many"}},
		Body: `{"n": 1, "when": null}`}
	if err := d.Hold("GET", "/a", a); err == nil {
		t.Error("a header is of another type")
	}
}
