package check

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// pod is the template of the pods, and its container.
func pod(t *testing.T, o objects) (corev1.PodTemplateSpec, corev1.Container) {
	t.Helper()
	for _, object := range o {
		if d, ok := object.(*appsv1.Deployment); ok {
			return d.Spec.Template, d.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("no Deployment")
	return corev1.PodTemplateSpec{}, corev1.Container{}
}

// variable is what a container has in its environment; "" if there is none.
func variable(c corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// TestChartOddValues: values that somebody has, and that are not the usual ones, do what they say.
func TestChartOddValues(t *testing.T) {
	wants := func(t *testing.T, what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for _, c := range []struct {
		name, values string
		check        func(t *testing.T, o objects)
	}{
		{"a digest", "image: { repository: r/weir, digest: '" + digest + "' }", func(t *testing.T, o objects) {
			p, c := pod(t, o)
			wants(t, "image", c.Image, "r/weir@"+digest)
			wants(t, "version", p.Labels["app.kubernetes.io/version"], "0123456789ab")
		}},
		{"a digest and a tag", "image: { repository: r/weir, tag: v1, digest: '" + digest + "' }", func(t *testing.T, o objects) {
			p, c := pod(t, o)
			wants(t, "image", c.Image, "r/weir:v1@"+digest)
			wants(t, "version", p.Labels["app.kubernetes.io/version"], "v1")
		}},
		{"a digest in the tag", "image: { repository: r/weir, tag: 'v1@" + digest + "' }", func(t *testing.T, o objects) {
			p, c := pod(t, o)
			wants(t, "image", c.Image, "r/weir:v1@"+digest)
			wants(t, "version", p.Labels["app.kubernetes.io/version"], "v1")
		}},
		{"a long tag", "image: { tag: " + strings.Repeat("x", 120) + " }", func(t *testing.T, o objects) {}},
		{"a long name", "nameOverride: " + strings.Repeat("n", 70), func(t *testing.T, o objects) {}},
		{"a long full name", "fullnameOverride: " + strings.Repeat("n", 70), func(t *testing.T, o objects) {}},
		{"OpenShift", "podSecurityContext: { runAsUser: null, runAsGroup: null, fsGroup: null }", func(t *testing.T, o objects) {
			p, _ := pod(t, o)
			if s := p.Spec.SecurityContext; s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil || !*s.RunAsNonRoot {
				t.Errorf("%+v", s)
			}
		}},
		{"another port of operators", "ports: { admin: 9191 }\nnetworkPolicy: { monitoring: [{ podSelector: {} }] }", func(t *testing.T, o objects) {
			p, _ := pod(t, o)
			wants(t, "scrape", p.Annotations["prometheus.io/scrape"], "true")
			wants(t, "port", p.Annotations["prometheus.io/port"], "9191")
		}},
		{"nobody may scrape", "podAnnotations: { a: b }", func(t *testing.T, o objects) {
			p, _ := pod(t, o)
			wants(t, "scrape", p.Annotations["prometheus.io/scrape"], "")
			wants(t, "own", p.Annotations["a"], "b")
		}},
		{"everybody may scrape, and another says where", "networkPolicy: { enabled: false }\npodAnnotations: { prometheus.io/path: /other }", func(t *testing.T, o objects) {
			p, _ := pod(t, o)
			wants(t, "scrape", p.Annotations["prometheus.io/scrape"], "true")
			wants(t, "path", p.Annotations["prometheus.io/path"], "/other")
		}},
		{"a rule file that begins with an indented comment", "rules:\n  a.yaml: \"    # of Ada\\ndomain: default\\nlimits: [{ name: odd, allow: 1/s }]\\n\"", func(t *testing.T, o objects) {
			text := find[*corev1.ConfigMap](t, o, "ConfigMap edge-weir-rules").Data["a.yaml"]
			wants(t, "the file", text, "    # of Ada\ndomain: default\nlimits: [{ name: odd, allow: 1/s }]\n")
			checkConfiguration(t, o)
		}},
		{"memory", "resources: { limits: { memory: 2Gi } }", func(t *testing.T, o objects) {
			_, c := pod(t, o)
			wants(t, "GOMEMLIMIT", variable(c, "GOMEMLIMIT"), "1932735283")
		}},
		{"memory as a number", "resources: { limits: { memory: 1000000000 } }", func(t *testing.T, o objects) {
			_, c := pod(t, o)
			wants(t, "GOMEMLIMIT", variable(c, "GOMEMLIMIT"), "900000000")
		}},
		{"no bound on memory", "resources: { limits: null }", func(t *testing.T, o objects) {
			_, c := pod(t, o)
			wants(t, "GOMEMLIMIT", variable(c, "GOMEMLIMIT"), "")
		}},
		{"its own GOMEMLIMIT", "env: [{ name: GOMEMLIMIT, value: 1GiB }]", func(t *testing.T, o objects) {
			_, c := pod(t, o)
			wants(t, "GOMEMLIMIT", variable(c, "GOMEMLIMIT"), "1GiB")
		}},
		{"a long end", "config: { drain: [10s, 1m] }\nterminationGracePeriodSeconds: 76", func(t *testing.T, o objects) {
			checkConfiguration(t, o)
		}},
		{"no pause before the end", "preStopSeconds: 0\nconfig: { drain: 14.5s }\nterminationGracePeriodSeconds: 15", func(t *testing.T, o objects) {
			if _, c := pod(t, o); c.Lifecycle != nil {
				t.Errorf("%+v", c.Lifecycle)
			}
		}},
		{"probes", "probes: { readiness: { periodSeconds: 7 }, startup: { failureThreshold: 600 } }", func(t *testing.T, o objects) {
			_, c := pod(t, o)
			if r, s := c.ReadinessProbe, c.StartupProbe; r.PeriodSeconds != 7 || r.TimeoutSeconds != 2 ||
				s.FailureThreshold != 600 || s.PeriodSeconds != 1 {
				t.Errorf("%+v %+v", r, s)
			}
		}},
		{"more of a pod", `
envFrom: [{ secretRef: { name: otel } }]
extraVolumes: [{ name: ca, configMap: { name: r } }]
extraVolumeMounts: [{ name: ca, mountPath: /etc/ca, readOnly: true }]
extraContainers: [{ name: beside, image: b }]
initContainers: [{ name: before, image: c }]
`, func(t *testing.T, o objects) {
			checkWiring(t, o)
			p, c := pod(t, o)
			wants(t, "variables", c.EnvFrom[0].SecretRef.Name, "otel")
			wants(t, "beside", p.Spec.Containers[1].Name, "beside")
			wants(t, "before", p.Spec.InitContainers[0].Name, "before")
		}},
		{"labels of all", "commonLabels: { team: edge, app.kubernetes.io/name: other }", func(t *testing.T, o objects) {
			checkWiring(t, o)
			for name, object := range o {
				labels := object.(interface{ GetLabels() map[string]string }).GetLabels()
				wants(t, name, labels["team"], "edge")
				wants(t, name, labels["app.kubernetes.io/name"], "weir")
			}
			p, _ := pod(t, o)
			wants(t, "the pods", p.Labels["team"], "edge")
		}},
		{"a load balancer of a cloud", "service: { type: LoadBalancer, annotations: { cloud/kind: internal }, spec: { loadBalancerClass: c, externalTrafficPolicy: Local } }", func(t *testing.T, o objects) {
			s := find[*corev1.Service](t, o, "Service edge-weir")
			wants(t, "annotation", s.Annotations["cloud/kind"], "internal")
			wants(t, "class", *s.Spec.LoadBalancerClass, "c")
			wants(t, "policy", string(s.Spec.ExternalTrafficPolicy), "Local")
		}},
		{"ingress", "ports: { proxy: 8000 }\nconfig: { proxy: { upstream: 'http://app:3000' } }\ningress: { enabled: true, className: nginx, hosts: [a.example, b.example] }", func(t *testing.T, o objects) {
			i := find[*networkingv1.Ingress](t, o, "Ingress edge-weir").Spec
			wants(t, "class", *i.IngressClassName, "nginx")
			wants(t, "hosts", i.Rules[0].Host+" "+i.Rules[1].Host, "a.example b.example")
		}},
		{"a user without a password", "config: { store: 'postgres://ada@db:5432/weir?passfile=/etc/weir-files/pgpass' }\nfilesSecret: files", func(t *testing.T, o objects) {}},
		{"one pod at most", "autoscaling: { enabled: true, minReplicas: 1, maxReplicas: 1 }\nstateClaim: state", func(t *testing.T, o objects) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := render(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			checkNames(t, o)
			c.check(t, o)
		})
	}
}

// checkNames: Kubernetes takes the names and the labels of all objects.
func checkNames(t *testing.T, o objects) {
	t.Helper()
	labels := func(name string, labels map[string]string) {
		t.Helper()
		for key, value := range labels {
			for _, wrong := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)) {
				t.Errorf("%s: %s=%s: %s", name, key, value, wrong)
			}
		}
	}
	for name, object := range o {
		meta := object.(metav1.Object)
		for _, wrong := range validation.IsDNS1123Label(meta.GetName()) {
			t.Errorf("%s: %s", name, wrong)
		}
		labels(name, meta.GetLabels())
	}
	p, _ := pod(t, o)
	labels("the pods", p.Labels)
}

// cluster is one of which Helm asks for objects.
type cluster struct{ *fake.FakeDynamicClient }

func (c cluster) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c.Resource(secretsOf), true, nil
}

var secretsOf = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// TestChartSecrets: after a change of a Secret that pods read when they start, an upgrade restarts
// them; and the token is made once.
func TestChartSecrets(t *testing.T) {
	const values = "storeSecret: { name: redis }\nenvFrom: [{ secretRef: { name: otel } }]\nenv: [{ name: A, valueFrom: { secretKeyRef: { name: own, key: a } } }]"
	secret := func(name, value string) *corev1.Secret {
		return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gate"}, Data: map[string][]byte{"tokens": []byte(value)}}
	}
	digestOf := func(secrets ...*corev1.Secret) string {
		t.Helper()
		objects := make([]runtime.Object, len(secrets))
		for i, s := range secrets {
			objects[i] = s
		}
		o, err := renderIn(t, values, cluster{fake.NewSimpleDynamicClient(scheme.Scheme, objects...)})
		if err != nil {
			t.Fatal(err)
		}
		if len(secrets) > 3 {
			if got := string(find[*corev1.Secret](t, o, "Secret edge-weir-tokens").Data["tokens"]); got != "kept" {
				t.Errorf("the token that is there becomes %q", got)
			}
		}
		p, _ := pod(t, o)
		return p.Annotations["checksum/secrets"]
	}
	all := func(redis, otel, own, token string) string {
		t.Helper()
		return digestOf(secret("redis", redis), secret("otel", otel), secret("own", own), secret("edge-weir-tokens", token))
	}
	before := all("a", "b", "c", "kept")
	if before == "" || before != all("a", "b", "c", "kept") {
		t.Errorf("without a change: %q", before)
	}
	for what, after := range map[string]string{"the store": all("x", "b", "c", "kept"),
		"variables": all("a", "x", "c", "kept"), "a variable": all("a", "b", "x", "kept"), "none": digestOf()} {
		if after == before {
			t.Errorf("pods go on with what %s was", what)
		}
	}
}
