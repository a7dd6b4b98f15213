package door

import (
	"slices"
	"testing"
)

func TestAPIKeys(t *testing.T) {
	for _, c := range []struct {
		fields    map[string]string
		parameter string
		want      []string
	}{
		{nil, "", nil},
		{map[string]string{"x-api-key": " a\t"}, "", []string{"a"}},
		{map[string]string{"x-api-key": "a", "authorization": "Bearer a", "apikey": "b"}, "a", []string{"a", "b"}},
		{map[string]string{"authorization": "Bearer"}, "c", []string{"c"}},
		{map[string]string{"authorization": "AWS4-HMAC-SHA256 credential = k/1/2,Signature=s"}, "", []string{"k"}},
		{map[string]string{"authorization": "AWS4-HMAC-SHA256 Credential=k"}, "", nil},
		{map[string]string{"authorization": "AWS4-HMAC-SHA256 Credential=/1"}, "", nil},
		{map[string]string{"authorization": "AWS4- Credential=k/1"}, "", nil},
	} {
		got := APIKeys(nil, func(name string) string { return c.fields[name] }, c.parameter)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v, %q: %q, want %q", c.fields, c.parameter, got, c.want)
		}
	}
}
