package file

import (
	"strings"

	"github.com/weir-rl/weir/rule/file/internal/message"
)

// kubernetes describes a mapping that is a manifest of Kubernetes, as "a ConfigMap", and says what
// to do with it; "" if it is none.
func kubernetes(root *element) (what, hint string) {
	version, kind := root.get("apiVersion"), root.get("kind")
	if version == nil || kind == nil || kind.kind != scalarKind || kind.text == "" {
		return "", ""
	}
	what = "a " + message.Clip(kind.text)
	if strings.ContainsRune("AEIOU", rune(kind.text[0])) {
		what = "an " + message.Clip(kind.text)
	}
	if kind.text != "ConfigMap" && kind.text != "Secret" {
		return what, "keep it outside the folder of the rules"
	}
	name := "rules.yaml"
	if data := root.get("data"); data != nil && len(data.pairs) > 0 && data.pairs[0].key.kind == scalarKind {
		name = message.Clip(data.pairs[0].key.text)
	}
	return what, "mounted as a volume it is a folder with a file for each key below data, and that folder is rules; " +
		"to check it before, write the text below " + name + " into a file"
}
