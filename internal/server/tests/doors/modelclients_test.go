//go:build unix

package doors

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

const modelRules = `
domain: llm
limits:
  - {name: short, when: {path: /short/**}, per: [header.x-client], allow: 1/40s, algorithm: sliding_log}
  - {name: long, when: {path: /long/**}, per: [header.x-client], allow: 1/day, algorithm: sliding_log}
  - {name: never, when: {path: /never/**}, per: [header.x-client], allow: 0/hour}
`

// modelAnswer is what both makers' clients take for an answer of a model.
const modelAnswer = `{"id": "x", "type": "message", "role": "assistant", "object": "chat.completion", "created": 1, "model": "m",
"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "stop_sequence": null,
"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
"usage": {"input_tokens": 1, "output_tokens": 1, "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}`

const modelPrograms driven = "modelclients"

// modelClients are the commands that run the official clients, by language.
func modelClients(t *testing.T) map[string]func(args ...string) *exec.Cmd {
	t.Helper()
	packages, modules := modelPrograms.python(t), modelPrograms.node(t)
	run := func(env string, command ...string) func(args ...string) *exec.Cmd {
		return func(args ...string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], args...)...)
			cmd.Env = append(servertest.PlainEnvironment(), env)
			return cmd
		}
	}
	return map[string]func(args ...string) *exec.Cmd{
		"Python": run("PYTHONPATH="+packages, "python3", "-B", modelPrograms.file("client.py")),
		"Node":   run("MODULES="+modules, "node", modelPrograms.file("client.mjs")),
	}
}

// The official clients of two model providers, in two languages, come back when a refusal of the
// proxy or the middleware says, to the millisecond, and not at all where that would be too long.
func TestModelClients(t *testing.T) {
	t.Parallel()
	clients := modelClients(t)
	answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/theirs" { // a refusal of the provider's own
			w.Header().Set("Retry-After", "3600")
			w.Header().Set("X-Should-Retry", "true")
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write([]byte(modelAnswer))
	})
	upstream := httptest.NewServer(answers)
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), modelRules)
	p := servertest.Launch(t, servertest.BuiltProgram(t), dir, "serve", "--rules=rules.yaml",
		"--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL)

	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(modelRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	limiter, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	middleware := httptest.NewServer(limit(answers))
	t.Cleanup(middleware.Close)

	paths := []string{"short", "long", "never"}
	if !effort.All() { // each client takes seconds to begin
		paths = []string{"long"}
	}
	for door, url := range map[string]string{"proxy": "http://" + p.Addr("proxy"), "middleware": middleware.URL} {
		resp, err := http.Get(url + "/theirs")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if h := resp.Header; h.Get("Retry-After") != "3600" || h.Get("X-Should-Retry") != "true" ||
			h.Get("Retry-After-Ms") != "" {
			t.Errorf("%s: the provider's refusal came as %v", door, h)
		}
		if door == "middleware" && !effort.All() {
			continue
		}
		for language, command := range clients {
			for _, maker := range []string{"openai", "anthropic"} {
				for _, path := range paths {
					name := strings.Join([]string{door, language, maker, path}, "-")
					checkModelClient(t, name, path == "short",
						func(as string) *exec.Cmd { return command(maker, url+"/"+path, as) })
				}
			}
		}
	}
}

// checkModelClient runs a client that is refused: twice more it comes back, or never.
func checkModelClient(t *testing.T, name string, comesBack bool, client func(as string) *exec.Cmd) {
	t.Helper()
	var got struct {
		Ended string
		Slept []float64 // seconds
	}
	for attempt := 0; ; attempt++ {
		out, err := client(fmt.Sprint(name, attempt)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if !comesBack || got.Ended != "answered" {
			break
		}
		// The machine was so busy that the limit admitted a later request.
	}
	tries := 0
	if comesBack {
		tries = 2
	}
	if got.Ended != "RateLimitError 429" || len(got.Slept) != tries {
		t.Errorf("%s: %s, after it slept for %v", name, got.Ended, got.Slept)
	}
	for _, s := range got.Slept {
		if ms := s * 1000; s <= 0 || s > 40 || math.Abs(ms-math.Round(ms)) > 1e-6 {
			t.Errorf("%s: it slept for %v s, not for whole milliseconds of 40 s", name, s)
		}
	}
}
