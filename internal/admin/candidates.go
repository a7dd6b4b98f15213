package admin

import (
	"net/http"

	"github.com/weir-rl/weir/internal/observe/candidate"
)

// candidates lists the candidates in force: ?domain=DOMAIN.
func (a *Handler) candidates(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Candidates []candidate.Reading `json:"candidates"`
	}{Candidates: []candidate.Reading{}}
	domain := r.URL.Query().Get("domain")
	if !a.known(w, domain, "") {
		return
	}
	m := a.maskFor(sender(r).Role)
	for _, c := range a.o.Candidates(domain) {
		m.reading(&c)
		if c.Top == nil {
			c.Top = []candidate.Key{} // not null
		}
		answer.Candidates = append(answer.Candidates, c)
	}
	writeJSON(w, answer)
}
