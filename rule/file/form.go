package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// form is how a rule file is written.
type form struct {
	native      bool       // it has keys of the native form
	descriptors *yaml.Node // of the Lyft form; nil if there are none
}

// formOf returns the form of a file of these documents, or says why they are no rules.
func formOf(documents []*yaml.Node) (form, *yaml.Error) {
	if len(documents) == 0 {
		return form{}, &yaml.Error{Line: 1, Message: "the file is empty: config file cannot have empty domain",
			Hint: "a native file needs limits, a file of the Lyft form domain and descriptors"}
	}
	root := documents[0]
	fault := func(hint, format string, what any) (form, *yaml.Error) {
		return form{}, &yaml.Error{Line: root.Line, Column: root.Column, Message: fmt.Sprintf(format, what), Hint: hint}
	}
	switch root.Kind {
	case yaml.Bad:
		return form{}, nil
	case yaml.Mapping:
	default:
		return fault("as in: limits: [{name: api, per: [ip], allow: 10/min}]",
			"error loading config file: expected a mapping with domain and limits or descriptors, got %s", root)
	}
	if keys := configurationKeys(root); keys != "" {
		return fault(
			"keep it outside the folder of the rules; weir serve --config names it, and ./weir.yaml is read without being named",
			"this is the configuration of a server, not a file of rules: it holds %s", keys)
	}
	if manifest, hint := kubernetes(root); manifest != "" {
		return fault(hint, "this is %s of Kubernetes, not a file of rules", manifest)
	}
	f := form{descriptors: root.Get("descriptors")}
	for _, key := range []string{"limits", "exempt", "groups", "paths"} {
		f.native = f.native || root.Get(key) != nil
	}
	return f, nil
}

// configurationKeys are the first keys of a mapping that is a server's configuration, for a
// message; "" if it is none.
func configurationKeys(root *yaml.Node) string {
	var found []string
	for i := range root.Pairs {
		key, value := root.Pairs[i].Key, root.Pairs[i].Value
		switch {
		case key.Kind != yaml.Scalar || slices.Contains(rootKeys, key.Text) && key.Text != "limits":
			return ""
		case key.Text == "limits" && value.Kind != yaml.Mapping, key.Text == "rules" && value.Kind == yaml.List:
			return "" // limits, or what somebody thinks is their name
		case key.Text != "limits" && slices.Contains(configKeys, key.Text):
			found = append(found, key.Text)
		}
	}
	if len(found) > 3 {
		found = append(found[:3], "…")
	}
	return strings.Join(found, ", ")
}

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
