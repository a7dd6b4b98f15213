package accept

import "testing"

func FuzzAccept(f *testing.F) {
	for _, s := range []string{"", "text/html;q=0.5,*/*", "application/problem+json", ";;,=q", "a/*;q=1.",
		"text/html;q=0.0001"} {
		f.Add(s)
	}
	types := []string{"application/json", "text/html", "text/plain"}
	f.Fuzz(func(t *testing.T, header string) {
		if i := Preferred(header, types...); i < 0 || i >= len(types) {
			t.Errorf("%q: %d", header, i)
		}
		for _, mediaType := range types {
			if q, detail := Quality(header, mediaType); q < 0 || q > 1000 || detail < 0 || detail > 3 {
				t.Errorf("%q: %d, %d", header, q, detail)
			}
		}
	})
}
