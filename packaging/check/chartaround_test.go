package check

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes/scheme"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

func init() {
	for _, add := range []func() error{
		func() error { return monitoringv1.AddToScheme(scheme.Scheme) },
		func() error { return gatewayv1.Install(scheme.Scheme) },
	} {
		if err := add(); err != nil {
			panic(err)
		}
	}
}

// around are values with all that leads to the pods and watches them.
const around = `
ports: { proxy: 8000, admin: 9191 }
config: { proxy: { upstream: 'http://app:3000' }, default_domain: default, admin: { hosts: 'weir.internal' } }
networkPolicy: { monitoring: [{ namespaceSelector: {} }] }
httpRoute:
  { enabled: true, parentRefs: [{ name: gate, namespace: gates }], hostnames: [api.example], annotations: { a: b } }
admin:
  service: { annotations: { a: b } }
  ingress:
    { enabled: true, className: nginx, hosts: [weir.example], tls: [{ hosts: [weir.example], secretName: e }] }
monitoring:
  serviceMonitor: { enabled: true, interval: 30s, labels: { release: prometheus } }
  prometheusRule: { enabled: true, labels: { release: prometheus } }
  dashboard: { enabled: true, annotations: { grafana_folder: Weir } }
`

// TestChartAround: what leads to the admin port and to the proxy finds them, and Prometheus and
// Grafana get the alerts and the dashboard that lie beside the chart.
func TestChartAround(t *testing.T) {
	o, err := render(t, around)
	if err != nil {
		t.Fatal(err)
	}
	checkWiring(t, o)
	checkConfiguration(t, o)
	p, container := pod(t, o)
	service := find[*corev1.Service](t, o, "Service edge-weir-admin")
	if len(service.Spec.Ports) != 1 || service.Spec.Ports[0].Name != "admin" || service.Spec.Ports[0].Port != 9191 ||
		service.Spec.Ports[0].TargetPort.StrVal != "admin" || service.Spec.Type != corev1.ServiceTypeClusterIP ||
		service.Annotations["a"] != "b" {
		t.Errorf("the Service: %+v", service.Spec)
	}
	for k, v := range service.Spec.Selector {
		if p.Labels[k] != v {
			t.Errorf("the Service selects %s=%s, the pods have %v", k, v, p.Labels)
		}
	}
	ingress := find[*networkingv1.Ingress](t, o, "Ingress edge-weir-admin")
	to := ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service
	if len(ingress.Spec.Rules) != 1 || ingress.Spec.Rules[0].Host != "weir.example" || to.Name != service.Name ||
		to.Port.Name != "admin" || ingress.Spec.TLS[0].SecretName != "e" || *ingress.Spec.IngressClassName != "nginx" {
		t.Errorf("the Ingress: %+v", ingress.Spec)
	}
	var config struct{ Admin struct{ Hosts []string } }
	text := find[*corev1.ConfigMap](t, o, "ConfigMap edge-weir-config").Data["weir.yaml"]
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if want := []string{"weir.internal", "edge-weir-admin", "edge-weir-admin.gate", "edge-weir-admin.gate.svc",
		"weir.example"}; !slices.Equal(config.Admin.Hosts, want) {
		t.Errorf("admin.hosts: %q, want %q", config.Admin.Hosts, want)
	}

	route := find[*gatewayv1.HTTPRoute](t, o, "HTTPRoute edge-weir")
	backend := route.Spec.Rules[0].BackendRefs[0]
	proxy := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "proxy" })
	if string(backend.Name) != "edge-weir" || *backend.Port != container.Ports[proxy].ContainerPort ||
		route.Spec.ParentRefs[0].Name != "gate" || *route.Spec.ParentRefs[0].Namespace != "gates" ||
		!slices.Equal(route.Spec.Hostnames, []gatewayv1.Hostname{"api.example"}) {
		t.Errorf("the HTTPRoute: %+v", route.Spec)
	}

	monitor := find[*monitoringv1.ServiceMonitor](t, o, "ServiceMonitor edge-weir")
	for k, v := range monitor.Spec.Selector.MatchLabels {
		if service.Labels[k] != v {
			t.Errorf("the ServiceMonitor selects %s=%s, the Service has %v", k, v, service.Labels)
		}
		if k == "app.kubernetes.io/component" && find[*corev1.Service](t, o, "Service edge-weir").Labels[k] == v {
			t.Error("the ServiceMonitor selects the Service of the doors, too")
		}
	}
	end := monitor.Spec.Endpoints[0]
	if monitor.Labels["release"] != "prometheus" || end.Port != "admin" || end.Path != "/metrics" ||
		end.Interval != "30s" || end.RelabelConfigs[0].TargetLabel != "job" || *end.RelabelConfigs[0].Replacement != "weir" ||
		!slices.Equal(monitor.Spec.TargetLabels, []string{"app.kubernetes.io/instance"}) {
		t.Errorf("the ServiceMonitor: %+v", monitor.Spec)
	}
	if scrape := p.Annotations["prometheus.io/scrape"]; scrape != "" {
		t.Errorf("pods are scraped twice: %s", scrape)
	}
	checkAlerts(t, find[*monitoringv1.PrometheusRule](t, o, "PrometheusRule edge-weir"))
	dashboard := find[*corev1.ConfigMap](t, o, "ConfigMap edge-weir-dashboard")
	beside, err := os.ReadFile(filepath.Join(root, "packaging", "grafana", "weir.json"))
	if err != nil || dashboard.Data["weir.json"] != string(beside) || dashboard.Labels["grafana_dashboard"] != "1" ||
		dashboard.Annotations["grafana_folder"] != "Weir" {
		t.Errorf("the dashboard is another one (%v), labels %v", err, dashboard.Labels)
	}
}

// checkAlerts: Prometheus takes the groups of a PrometheusRule, which are those of the file.
func checkAlerts(t *testing.T, rule *monitoringv1.PrometheusRule) {
	t.Helper()
	beside, err := os.ReadFile(filepath.Join(root, "packaging", "prometheus", "weir.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	names := func(text []byte) map[string]string {
		t.Helper()
		groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		found := map[string]string{}
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				found[g.Name+"/"+r.Alert+r.Record] = r.Expr + " for " + r.For.String() + " " + r.Annotations["summary"]
			}
		}
		return found
	}
	have, want := names(spec), names(beside)
	if len(want) < 20 || !maps.Equal(have, want) {
		t.Errorf("it has %d alerts, and the file %d", len(have), len(want))
	}
}
