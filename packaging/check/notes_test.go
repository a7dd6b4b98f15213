package check

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

const reached = `Weir is reached inside the cluster at limits-weir.edge:
  http: 8080
  grpc: 8081
  resp: 6380

`

const admin = `The admin port is open on the pods alone. To reach it:
  kubectl -n edge port-forward deploy/limits-weir 6070
  curl http://127.0.0.1:6070/readyz
To read the token that its API asks for:
  kubectl -n edge get secret limits-weir-tokens -o jsonpath='{.data.tokens}' | base64 -d
`

// TestNotes: what helm prints after an installation are whole sentences, whatever is installed.
func TestNotes(t *testing.T) {
	t.Parallel()
	const alone, served = "The admin port is open on the pods alone. To reach it:", "To reach the admin port from here:"
	const page = "The operator's page is at:\n  http://weir.example.com/\n\n"
	const unseen = "\nNobody may scrape the metrics: name Prometheus in networkPolicy.monitoring.\n"
	for values, want := range map[string]string{
		"":                                reached + admin + unseen,
		"networkPolicy: {enabled: false}": reached + admin,
		"networkPolicy: {monitoring: [{podSelector: {}}]}": reached + admin,
		"ports: {grpc: 0, resp: 0}":                        strings.Replace(reached, "  grpc: 8081\n  resp: 6380\n", "", 1) + admin + unseen,
		"admin: {ingress: {enabled: true, hosts: [weir.example.com]}}\nnetworkPolicy: {enabled: false}": reached + page +
			strings.Replace(admin, alone, served, 1),
		"admin: {service: {enabled: true}}": reached + strings.Replace(admin, alone, served, 1) + unseen,
		"tokensSecret: mine":                reached + strings.Replace(admin, "limits-weir-tokens", "mine", 1) + unseen,
	} {
		c, err := loadChart()
		if err != nil {
			t.Fatal(err)
		}
		given, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		caps := chartutil.DefaultCapabilities.Copy()
		caps.KubeVersion = *kubernetes
		all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "limits", Namespace: "edge", IsInstall: true}, caps)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(c, all)
		if err != nil {
			t.Fatal(err)
		}
		if got := files["weir/templates/NOTES.txt"]; strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("with %q:\n%s\nwant\n%s", values, got, want)
		}
	}
}
