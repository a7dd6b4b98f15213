//go:build unix

package doors

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// startCaddyUpstream starts a Caddy whose matcher `path` ignores the case of letters by Unicode.
func startCaddyUpstream(t *testing.T, port string) {
	servertest.Needs(t, "caddy")
	dir := t.TempDir()
	var text strings.Builder
	fmt.Fprintf(&text,
		"{\n\tadmin off\n\tauto_https off\n}\nhttp://127.0.0.1:%s, http://shop.example:%[1]s {\n\tbind 127.0.0.1\n", port)
	for _, route := range evasionRoutes {
		method, match := route.method, route.path
		if method == "GET" {
			method = "GET HEAD"
		}
		if route.name == "pay" {
			match = "/api/pay/*"
		}
		fmt.Fprintf(&text,
			"\t@%s {\n\t\tmethod %s\n\t\tpath %s\n\t}\n\thandle @%[1]s {\n\t\theader X-Reached %[1]s\n\t\trespond %[1]s 200\n\t}\n", route.name, method, match)
	}
	text.WriteString("\trespond 404\n}\n")
	conf := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(conf, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("caddy", "run", "--adapter=caddyfile", "--config", conf)
	cmd.Env = append(testproc.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	servertest.Begin(t, cmd).Listens("127.0.0.1:" + port)
}

// startServlets starts a server that reads paths as Tomcat does: it takes the parameters off each
// segment, resolves the escapes of the rest, and then the dots; a final slash says nothing to it,
// as to programs with a Spring of before 6.
func startServlets(t *testing.T, port string) {
	serveHere(t, port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, _, _ := strings.Cut(r.RequestURI, "?")
		segments := strings.Split(target, "/")
		for i := range segments {
			segments[i], _, _ = strings.Cut(segments[i], ";")
		}
		bare, err := url.PathUnescape(strings.Join(segments, "/"))
		if err != nil || strings.ContainsAny(bare, "\\\x00") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		bare = strings.TrimSuffix(path.Clean(bare), "/")
		for _, route := range evasionRoutes {
			methods := []string{route.method}
			if route.method == http.MethodGet {
				methods = append(methods, http.MethodHead)
			}
			if slices.Contains(methods, r.Method) && bare == strings.TrimSuffix(route.path, "/") {
				reached(w, route.name)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
}
