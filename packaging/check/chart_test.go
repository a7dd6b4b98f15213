// Package check tests the files for deployment next to it (the Helm chart and its certificates, the
// rules for Prometheus) with the tools that read them. It is a module of its own, so that Weir does
// not depend on those tools. It holds tests only; begin with any of the files.
package check

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	root        = "../.."
	chartFolder = "../helm/weir"
)

// kubernetes is the version that charts are checked for.
var kubernetes = &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}

// builtIn is the folder of the built program; TestMain removes it.
var builtIn string

// buildWeir builds the program once.
var buildWeir = sync.OnceValues(func() (string, error) {
	var err error
	if builtIn, err = os.MkdirTemp("", "weir"); err != nil {
		return "", err
	}
	file := filepath.Join(builtIn, "weir")
	cmd := exec.Command(filepath.Join(root, "scripts", "build"), file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	_ = os.RemoveAll(builtIn)
	os.Exit(status)
}

// loadChart reads the chart once. Helm logs each symbolic link, by which alerts and dashboard are
// in it.
var loadChart = sync.OnceValues(func() (*chart.Chart, error) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	return loader.LoadDir(chartFolder)
})

// objects are the objects of a rendered chart by kind and name, read as strictly as Kubernetes can.
type objects map[string]runtime.Object

func render(t *testing.T, values string) (objects, error) {
	t.Helper()
	return renderIn(t, values, nil)
}

// renderIn renders the chart where a cluster can be asked; nil is none, as for helm template.
func renderIn(t *testing.T, values string, cluster engine.ClientProvider) (objects, error) {
	t.Helper()
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
	all, err := chartutil.ToRenderValues(c, given,
		chartutil.ReleaseOptions{Name: "edge", Namespace: "gate", IsInstall: true}, caps)
	if err != nil {
		return nil, err
	}
	rendered := func() (map[string]string, error) { return engine.Render(c, all) }
	if cluster != nil {
		rendered = func() (map[string]string, error) { return engine.RenderWithClientProvider(c, all, cluster) }
	}
	files, err := rendered()
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	out := objects{}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq(text, "\n---\n") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			object, kind, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			named, ok := object.(interface{ GetName() string })
			if !ok {
				t.Fatalf("%s: %T has no name", name, object)
			}
			out[kind.Kind+" "+named.GetName()] = object
		}
	}
	return out, nil
}

func find[T runtime.Object](t *testing.T, o objects, name string) T {
	t.Helper()
	object, ok := o[name].(T)
	if !ok {
		t.Fatalf("no %s among %v", name, slices.Sorted(maps.Keys(o)))
	}
	return object
}

// Helm's own linter finds nothing to complain of.
func TestLint(t *testing.T) {
	for _, m := range lint.AllWithKubeVersion(chartFolder, nil, "gate", kubernetes).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// several are values for more than one pod.
const several = `
replicas: 3
storeSecret: { name: redis }
`

// secrets are what a cluster has beside the chart, by name and key.
var secrets = map[string]string{
	"redis url":     "redis://ada:secret@redis:6379/1",
	"pg url":        "postgres://ada:secret@db:5432/weir?weir_tables=synced",
	"cassandra uri": "cassandra://ada:secret@one:9042,two/weir?local_dc=eu&consistency=LOCAL_SERIAL",
	"rules url":     nobodysRules,
	"files pgpass":  "127.0.0.1:1:weir:ada:secret\n",
}

// nobodysRules is a database of rules at which nobody listens.
const nobodysRules = "postgres://ada:secret@127.0.0.1:1/weir?sslmode=disable&space=edge"

func TestChart(t *testing.T) {
	base := []string{"ConfigMap edge-weir-config", "ConfigMap edge-weir-rules", "Deployment edge-weir",
		"NetworkPolicy edge-weir", "Secret edge-weir-tokens", "Service edge-weir", "ServiceAccount edge-weir"}
	for _, c := range []struct {
		name, values  string
		with, without []string
	}{
		{"defaults", "", nil, nil},
		{"several", several, []string{"PodDisruptionBudget edge-weir"}, nil},
		{"autoscaling", "autoscaling: { enabled: true }\nconfig: { store: redis://redis }", []string{"PodDisruptionBudget edge-weir", "HorizontalPodAutoscaler edge-weir"}, nil},
		{"own secrets and rules", "tokensSecret: t\ntlsSecret: s\nrulesConfigMap: r\nserviceAccount: { create: false }\nnetworkPolicy: { enabled: false }", nil,
			[]string{"ConfigMap edge-weir-rules", "NetworkPolicy edge-weir", "Secret edge-weir-tokens",
				"ServiceAccount edge-weir"}},
		{"proxy", "ports: { http: 0, grpc: 0, resp: 0, proxy: 8000 }\nconfig: { proxy: { upstream: 'http://app:3000' }, default_domain: default }\nstateClaim: state", nil, nil},
		{"ingress", "ports: { http: 0, grpc: 0, resp: 0, proxy: 8000 }\nconfig: { proxy: { upstream: 'http://app:3000' } }\ningress: { enabled: true, className: nginx, hosts: [api.example], annotations: { a: b }, tls: [{ hosts: [api.example], secretName: c }] }", []string{"Ingress edge-weir"}, nil},
		{"all", `
image: { repository: registry.example/weir, tag: v1.2.3, pullSecrets: [pull] }
ports: { spoe: 9000, admin: 9191 }
service: { type: LoadBalancer, annotations: { a: b }, spec: { externalTrafficPolicy: Local } }
serviceAccount: { annotations: { a: b } }
networkPolicy: { clients: [{ namespaceSelector: {} }], monitoring: [{ podSelector: { matchLabels: { app: prometheus } } }] }
podLabels: { team: edge }
nodeSelector: { disk: fast }
tolerations: [{ key: k, operator: Exists }]
affinity: { nodeAffinity: {} }
priorityClassName: high
env: [{ name: WEIR_LOG_LEVEL, value: debug }]
`, nil, nil},
		{"PostgreSQL", "replicas: 2\nstoreSecret: { name: pg }\nconfig: { store: { deadline: 30ms } }", []string{"PodDisruptionBudget edge-weir"}, nil},
		{"PostgreSQL without a Secret", "replicas: 2\nfilesSecret: files\nconfig: { store: { url: 'postgres://ada@db/weir?passfile=/etc/weir-files/pgpass' } }", []string{"PodDisruptionBudget edge-weir"}, nil},
		{"Cassandra", "replicas: 2\nstoreSecret: { name: cassandra, key: uri }", []string{"PodDisruptionBudget edge-weir"}, nil},
		{"rules in a database", "rulesSecret: { name: rules }\nstateClaim: state", nil, []string{"ConfigMap edge-weir-rules"}},
		{"rules in a database without a Secret", "filesSecret: files\nconfig: { rules: 'postgres://ada@127.0.0.1:1/weir?sslmode=disable&passfile=/etc/weir-files/pgpass', rules_db: { every: 1s } }", nil, []string{"ConfigMap edge-weir-rules"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := render(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(slices.Concat(base, c.with),
				func(s string) bool { return slices.Contains(c.without, s) })
			slices.Sort(want)
			if got := slices.Sorted(maps.Keys(o)); !slices.Equal(got, want) {
				t.Fatalf("it has\n%q, want\n%q", got, want)
			}
			checkWiring(t, o)
			checkConfiguration(t, o)
		})
	}
}

// checkWiring: what refers to something by its name finds it, and the container may do nothing that
// it need not.
func checkWiring(t *testing.T, o objects) {
	t.Helper()
	deployment := find[*appsv1.Deployment](t, o, "Deployment edge-weir")
	pod := deployment.Spec.Template
	holds := func(what string, selector map[string]string) {
		t.Helper()
		for k, v := range selector {
			if pod.Labels[k] != v {
				t.Errorf("%s selects %s=%s, the pods have %v", what, k, v, pod.Labels)
			}
		}
		if len(selector) < 2 {
			t.Errorf("%s selects by %v", what, selector)
		}
	}
	holds("the Deployment", deployment.Spec.Selector.MatchLabels)
	for _, s := range pod.Spec.TopologySpreadConstraints {
		holds("the spread", s.LabelSelector.MatchLabels)
	}
	container := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range container.Ports {
		ports[p.Name] = p.ContainerPort
	}
	named := func(what string, port intstr.IntOrString) {
		t.Helper()
		if ports[port.StrVal] == 0 {
			t.Errorf("%s is of port %v; the container has %v", what, port, ports)
		}
	}
	for what, probe := range map[string]*corev1.Probe{"startup": container.StartupProbe,
		"liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
		named(what, probe.HTTPGet.Port)
		if path := map[bool]string{true: "/readyz", false: "/healthz"}[what == "readiness"]; probe.HTTPGet.Path != path {
			t.Errorf("%s asks for %s", what, probe.HTTPGet.Path)
		}
	}
	service := find[*corev1.Service](t, o, "Service edge-weir")
	holds("the Service", service.Spec.Selector)
	for _, p := range service.Spec.Ports {
		named("the Service", p.TargetPort)
		if p.Name == "admin" {
			t.Error("the Service has the admin port")
		}
	}
	if len(service.Spec.Ports) == 0 {
		t.Error("the Service has no port")
	}
	if policy, ok := o["NetworkPolicy edge-weir"].(*networkingv1.NetworkPolicy); ok {
		holds("the NetworkPolicy", policy.Spec.PodSelector.MatchLabels)
		for _, rule := range policy.Spec.Ingress {
			for _, p := range rule.Ports {
				named("the NetworkPolicy", *p.Port)
			}
		}
	}
	if budget, ok := o["PodDisruptionBudget edge-weir"].(*policyv1.PodDisruptionBudget); ok {
		holds("the PodDisruptionBudget", budget.Spec.Selector.MatchLabels)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if m := v.ConfigMap; m != nil && o["ConfigMap "+m.Name] == nil && m.Name != "r" {
			t.Errorf("there is no ConfigMap %s", m.Name)
		}
		if s := v.Secret; s != nil && o["Secret "+s.SecretName] == nil && s.SecretName != "t" && s.SecretName != "s" &&
			s.SecretName != "files" {
			t.Errorf("there is no Secret %s", s.SecretName)
		}
	}
	for _, m := range container.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
	if ingress, ok := o["Ingress edge-weir"].(*networkingv1.Ingress); ok {
		for _, rule := range ingress.Spec.Rules {
			to := rule.HTTP.Paths[0].Backend.Service
			if to.Name != service.Name || to.Port.Name != "proxy" || ports["proxy"] == 0 {
				t.Errorf("the Ingress leads to %v", to)
			}
		}
	}
	own, all := container.SecurityContext, pod.Spec.SecurityContext
	if !*all.RunAsNonRoot || *all.RunAsUser == 0 ||
		all.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *own.AllowPrivilegeEscalation ||
		!*own.ReadOnlyRootFilesystem || !slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		own.Privileged != nil || *pod.Spec.AutomountServiceAccountToken {
		t.Error("the pod is not restricted")
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil ||
		*pod.Spec.TerminationGracePeriodSeconds < container.Lifecycle.PreStop.Sleep.Seconds+10 {
		t.Error("there is no time to finish what is under way: drain is 10s")
	}
}

// checkConfiguration: the server takes the configuration and the rules, with the variables that the
// container has.
func checkConfiguration(t *testing.T, o objects) {
	t.Helper()
	weir, err := buildWeir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	deployment := find[*appsv1.Deployment](t, o, "Deployment edge-weir")
	container := deployment.Spec.Template.Spec.Containers[0]
	mounted := map[string]string{} // path by volume
	for _, m := range container.VolumeMounts {
		mounted[m.Name] = m.MountPath
	}
	config := find[*corev1.ConfigMap](t, o, "ConfigMap edge-weir-config").Data["weir.yaml"]
	for _, place := range mounted {
		for _, before := range []string{": ", "passfile="} {
			config = strings.ReplaceAll(config, before+place, before+dir+place)
		}
	}
	write(path.Join(mounted["config"], "weir.yaml"), config)
	if place, ok := mounted["rules"]; ok {
		write(path.Join(place, "fallback.yaml"), "domain: default\nlimits: [{ name: a, allow: 1/s }]\n")
	}
	if place, ok := mounted["files"]; ok {
		write(path.Join(place, "pgpass"), secrets["files pgpass"])
	}
	if rules, ok := o["ConfigMap edge-weir-rules"].(*corev1.ConfigMap); ok {
		for name, text := range rules.Data {
			write(path.Join(mounted["rules"], name), text)
		}
	}
	write(path.Join(mounted["tokens"], "tokens"), strings.Repeat("t", 48)+"\n")
	if secret, ok := o["Secret edge-weir-tokens"].(*corev1.Secret); ok {
		write(path.Join(mounted["tokens"], "tokens"), string(secret.Data["tokens"]))
	}
	if place, ok := mounted["tls"]; ok {
		cert, key := selfSigned(t)
		write(path.Join(place, "tls.crt"), cert)
		write(path.Join(place, "tls.key"), key)
	}
	args := slices.Clone(container.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "="+mounted["config"], "="+dir+mounted["config"])
	}
	cmd := exec.Command(weir, append(args, "--check")...)
	cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir} // and nothing of this process
	for _, v := range container.Env {
		switch from := v.ValueFrom; {
		case from == nil:
			cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
		case from.SecretKeyRef != nil:
			value, ok := secrets[from.SecretKeyRef.Name+" "+from.SecretKeyRef.Key]
			if !ok {
				t.Errorf("%s is of a Secret that is not there: %v", v.Name, from.SecretKeyRef)
			}
			cmd.Env = append(cmd.Env, v.Name+"="+value)
		}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if _, files := mounted["rules"]; files {
		if err != nil {
			t.Errorf("weir %s: %v\n%s\n%s", strings.Join(args, " "), err, out.String(), config)
		}
	} else {
		// The rules are the last thing that is looked for, and nobody has these.
		away := "weir: rules: the database of rules cannot be reached"
		cache := "there is no cache of them yet at " + dir + mounted["state"] + "/rules.cache"
		if text := out.String(); err == nil || !strings.Contains(text, away) || !strings.Contains(text, cache) ||
			strings.Contains(text, "secret") {
			t.Errorf("weir %s: %v\n%s\n%s", strings.Join(args, " "), err, text, config)
		}
	}
	// Each port of the container is one that the configuration opens.
	var told struct{ Listen map[string]string }
	if err := yaml.Unmarshal([]byte(config), &told); err != nil {
		t.Fatal(err)
	}
	for _, p := range container.Ports {
		if told.Listen[p.Name] != fmt.Sprintf(":%d", p.ContainerPort) {
			t.Errorf("port %s is %d, and listens at %q", p.Name, p.ContainerPort, told.Listen[p.Name])
		}
		delete(told.Listen, p.Name)
	}
	for door, address := range told.Listen {
		if address != "off" {
			t.Errorf("door %s is open at %s, and is no port of the container", door, address)
		}
	}
}

// storeAnd is the beginning of values for several pods.
const storeAnd = "storeSecret: { name: redis }\n"

// What could not run, or not as it says, is refused, with the reason, and without a password.
func TestChartRefuses(t *testing.T) {
	for values, want := range map[string]string{
		"replicas: 2":                                      "several pods need a store that they share",
		"autoscaling: { enabled: true }":                   "several pods need a store that they share",
		"replicas: 2\nconfig: { store: { deadline: 1s } }": "several pods need a store",
		"config: { store: { url: redis://a } }\nstoreSecret: { name: redis }":               "two stores",
		"config: { rules: postgres://a/b }\nrulesSecret: { name: rules }":                   "two places of rules",
		"config: { rules: postgres://a/b }\nrulesConfigMap: r":                              "the rules lie in a database",
		"rulesSecret: { name: rules }\nrulesConfigMap: r":                                   "the rules lie in a database",
		"config: { rules: /elsewhere }":                                                     "may name a PostgreSQL",
		"rulesSecret: { nane: rules }":                                                      "nane",
		"config: { store: redis://a }\nstoreSecret: { name: redis }":                        "two stores",
		"rules: { default.yaml: null }":                                                     "there is no rule file",
		"tlsSecret: t\nconfig: { tls: { doors: [grpc, admin] } }":                           "leave admin out",
		"config: { drain: 60s }":                                                            "terminationGracePeriodSeconds: 30 s are over before preStopSeconds (5 s) and drain",
		"config: { drain: [15s, 10s] }":                                                     "terminationGracePeriodSeconds: 30 s",
		"config: { drain: '15s,10s' }":                                                      "terminationGracePeriodSeconds: 30 s",
		"env: [{ name: WEIR_DRAIN, value: 25s }]":                                           "terminationGracePeriodSeconds: 30 s",
		"preStopSeconds: 20":                                                                "terminationGracePeriodSeconds: 30 s",
		"terminationGracePeriodSeconds: 15":                                                 "terminationGracePeriodSeconds: 15 s",
		"ports: { grpc: 8080 }":                                                             "have one port, 8080",
		"ports: { admin: 6380 }":                                                            "ports: admin and resp have one port, 6380",
		"ports: { http: 0, grpc: 0, resp: 0 }":                                              "ports: no door is open",
		storeAnd + "autoscaling: { enabled: true, minReplicas: 11 }":                        "minReplicas (11) is above maxReplicas (10)",
		storeAnd + "autoscaling: { enabled: true }\nresources: { requests: { cpu: null } }": "resources.requests.cpu, which is missing",
		storeAnd + "replicas: 3\nstateClaim: state":                                         "stateClaim: several pods",
		"config: { store: 'redis://ada:secret@redis:6379' }":                                "config.store: there is a password in it",
		"config: { store: { url: 'redis://:secret@redis:6379' } }":                          "config.store: there is a password in it",
		"config: { store: 'postgres://ada@db/weir?password=secret' }":                       "config.store: there is a password in it",
		"config: { rules: 'postgres://ada:secret@db/weir' }":                                "config.rules: there is a password in it",
		"config: { region: eu, regions: { stores: { us: 'rediss://a:secret@us:6379' } } }":  "config.regions: there is a password in it",
		"image: { digest: sha256:abc }":                                                     "digest",
		"ingress: { enabled: true, hosts: [a] }":                                            "ingress: it leads to the reverse proxy, which is off",
		"ports: { proxy: 8000 }\ningress: { enabled: true }":                                "ingress: hosts is empty",
		"httpRoute: { enabled: true, parentRefs: [{ name: a }] }":                           "httpRoute: it leads to the reverse proxy, which is off",
		"ports: { proxy: 8000 }\nhttpRoute: { enabled: true }":                              "httpRoute: parentRefs is empty",
		"admin: { ingress: { enabled: true } }":                                             "admin.ingress: hosts is empty",
		"admin: { ingress: { enabled: true, hosts: [a.example] } }":                         "name its controller in networkPolicy.monitoring",
		"monitoring: { serviceMonitor: { enabled: true } }":                                 "name Prometheus in networkPolicy.monitoring",
		"monitoring: { serviceMonitor: { interval: soon } }":                                "interval",
		"probes: { readiness: { httpGet: { path: /x } } }":                                  "httpGet",
		"replica: 2":                           "replica",
		"ports: { admin: 0 }":                  "ports",
		"rules: { .hidden.yaml: 'domain: d' }": "hidden",
		"image: { pullPolicy: Sometimes }":     "pullPolicy",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), ":secret") {
			t.Errorf("%q: %v, want %q", values, err, want)
		}
	}
}
