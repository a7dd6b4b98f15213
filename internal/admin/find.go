package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight"
)

const findPath = "/api/v1/find"

// shownHits is the default of ?n=.
const shownHits = 20

// FoundList is the answer of GET /api/v1/find.
type FoundList struct {
	Nodes     insight.Nodes   `json:"nodes"`
	Since     time.Time       `json:"since"` // from when on refusals are counted
	Found     []find.Hit      `json:"found"`
	Decisions []find.Decision `json:"decisions"`          // whose id begins with the text
	LeftOut   int             `json:"left_out,omitempty"` // hits that are not in Found
}

// search answers GET /api/v1/find.
func (a *Handler) search(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	n, ok := number(w, v, "n", find.MostHits)
	if !ok {
		return
	}
	if n == 0 {
		n = shownHits
	}
	text := strings.TrimSpace(v.Get("text"))
	if len(text) > find.MostText {
		answer.Problem(w, http.StatusBadRequest,
			fmt.Sprintf("text: must be a part of a value, such as ada or user=ad, of at most %d bytes", find.MostText), "text")
		return
	}
	domain := v.Get("domain")
	if !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	// A role that does not see keys finds only what it names. It must not guess a value letter by
	// letter.
	role := sender(r).Role
	q := find.Query{Text: []byte(text), Domain: domain, Since: a.o.StoreNow().Add(-find.Lately).UnixMicro(),
		Whole: !seesKeys(role)}
	found, nodes, err := a.o.Nodes.Find(ctx, q)
	if err != nil {
		insightProblem(w, err)
		return
	}
	if q.Whole {
		found.LeftOut = 0 // how many others there are is not said
		found.Hits = onlyNamed(found.Hits, text, a.keyNames())
	}
	list := FoundList{Nodes: nodes, Since: time.UnixMicro(found.Since).UTC(), Found: []find.Hit{},
		Decisions: append([]find.Decision{}, found.Decisions...)}
	list.LeftOut = found.LeftOut
	if over := len(found.Hits) - n; over > 0 {
		found.Hits, list.LeftOut = found.Hits[:n], found.LeftOut+over
	}
	list.Found = append(list.Found, found.Hits...)
	writeJSON(w, list)
}

// onlyNamed returns the hits of which a text names each part that identifies a client.
func onlyNamed(list []find.Hit, text string, names *keyNames) []find.Hit {
	texts := append(partsOf(text, names.names), text)
	return slices.DeleteFunc(list, func(h find.Hit) bool {
		n := naming{keys: names}
		for _, part := range partsOf(h.Key, names.names) {
			if slices.ContainsFunc(texts, func(text string) bool { return find.Names(text, part) }) {
				n.parts = append(n.parts, part)
			}
		}
		return !n.key(h.Key)
	})
}
