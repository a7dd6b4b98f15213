package admin

import "net/http"

// RuleFiles is the answer of GET /api/v1/rules/source: the files of the rules in force, from which
// the same rules can be made elsewhere.
type RuleFiles struct {
	Path    string `json:"path"`              // of the folder or the file on the server
	Version string `json:"version,omitempty"` // of the rules in the source; a folder has none
	Digest  string `json:"digest"`            // of all files, as in weir_rules_info: sha256:…
	// IPv6Prefix is how many bits of an IPv6 address make a key on the server.
	IPv6Prefix int               `json:"ipv6_prefix"`
	Files      map[string]string `json:"files"` // text by name
}

func (a *Handler) ruleFiles(w http.ResponseWriter, _ *http.Request) {
	f := a.o.Files()
	if f.Files == nil {
		f.Files = map[string]string{}
	}
	writeJSON(w, f)
}
