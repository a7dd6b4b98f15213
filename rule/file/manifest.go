package file

import (
	"strings"

	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// kubernetes describes a mapping that is a manifest of Kubernetes, as "a ConfigMap", and says what
// to do with it; "" if it is none.
func kubernetes(root *yaml.Node) (what, hint string) {
	version, kind := root.Get("apiVersion"), root.Get("kind")
	if version == nil || kind == nil || kind.Kind != yaml.Scalar || kind.Text == "" {
		return "", ""
	}
	what = "a " + message.Clip(kind.Text)
	if strings.ContainsRune("AEIOU", rune(kind.Text[0])) {
		what = "an " + message.Clip(kind.Text)
	}
	if kind.Text != "ConfigMap" && kind.Text != "Secret" {
		return what, "keep it outside the folder of the rules"
	}
	name := "rules.yaml"
	if data := root.Get("data"); data != nil && len(data.Pairs) > 0 && data.Pairs[0].Key.Kind == yaml.Scalar {
		name = message.Clip(data.Pairs[0].Key.Text)
	}
	return what, "mounted as a volume it is a folder with a file for each key below data, and that folder is rules; " +
		"to check it before, write the text below " + name + " into a file"
}
