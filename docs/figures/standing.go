package main

import (
	"bytes"
	"fmt"
)

// The picture of README.md: where Weir stands, and who asks it. It follows the reader's colours,
// and has a background of its own, so that it can be read on any page.

// asker is one way in which requests come to Weir.
type asker struct {
	name [2]string // who asks, in one or two lines
	how  [2]string // how it asks
}

var askers = []asker{
	{[2]string{"nginx, Caddy,", "Traefik"}, [2]string{"forward auth", ""}},
	{[2]string{"HAProxy", ""}, [2]string{"SPOE", ""}},
	{[2]string{"Envoy", ""}, [2]string{"RLS, RLQS", ""}},
	{[2]string{"your program,", "any language"}, [2]string{"HTTP, gRPC,", "Redis protocol"}},
	{[2]string{"your program", "in Go"}, [2]string{"library, in", "the process"}},
	{}, // nobody: Weir is the reverse proxy
}

func drawStanding() []byte {
	const (
		edge, gap                = 12, 8
		clientsTop, clientsUnder = 34, 64
		askersTop, askersUnder   = 96, 142
		weirTop, weirUnder       = 212, 272
		servedTop, servedUnder   = 306, 338
		under                    = 350
	)
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(x, y int, class, anchor, more, words string) {
		p(`<text x="%d" y="%d" class="%s" text-anchor="%s"%s>%s</text>`, x, y, class, anchor, more, words)
	}
	box := func(class string, x, y, wide, under int) {
		p(`<rect x="%d" y="%d" width="%d" height="%d" rx="6" class="%s"/>`, x, y, wide, under-y, class)
	}
	// down draws an arrow that ends at under.
	down := func(line, head string, x, y, under int) {
		p(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="%s"/>`, x, y, x, under-6, line)
		p(`<path d="M%d %dl-4 -8h8z" class="%s"/>`, x, under, head)
	}
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" `+
		`role="img">`, width, under)
	p(`<title>Clients send requests to a proxy or a program, which asks Weir by its own protocol and then passes ` +
		`the request on; or Weir is the proxy itself</title>`)
	p(diagramStyle)
	p(`<rect width="%d" height="%d" rx="6" class="page"/>`, width, under)
	p(`<line x1="%d" y1="18" x2="%d" y2="18" class="go"/>`, edge, edge+26)
	text(edge+32, 22, "quiet", "start", "", "a request")
	p(`<line x1="%d" y1="18" x2="%d" y2="18" class="ask"/>`, edge+110, edge+136)
	text(edge+142, 22, "quiet", "start", "", "the question whether it may pass")

	all := width - 2*edge
	box("box", edge, clientsTop, all, clientsUnder)
	text(width/2, clientsTop+20, "text", "middle", "", "clients")
	wide := (all - (len(askers)-1)*gap) / len(askers)
	for i, a := range askers {
		x := edge + i*(wide+gap)
		if a.name[0] == "" {
			x -= 18 // its name stands beside the arrow
			down("go", "gone", x+wide/2, clientsUnder, weirTop)
			text(x+wide/2+8, askersTop+20, "text", "start", "", "nobody:")
			text(x+wide/2+8, askersTop+36, "text", "start", "", "Weir is")
			text(x+wide/2+8, askersTop+52, "text", "start", "", "the proxy")
			down("go", "gone", x+wide/2, weirUnder, servedTop)
			continue
		}
		through := x + 14 // where requests go on, past Weir
		down("go", "gone", x+wide/2, clientsUnder, askersTop)
		down("go", "gone", through, askersUnder, servedTop)
		box("box", x, askersTop, wide, askersUnder)
		y := askersTop + 28
		if a.name[1] != "" {
			y -= 8
			text(x+wide/2, y+17, "text", "middle", "", a.name[1])
		}
		text(x+wide/2, y, "text", "middle", "", a.name[0])
		ask := through + 14
		down("ask", "asked", ask, askersUnder, weirTop)
		y = (askersUnder+weirTop)/2 + 4
		if a.how[1] != "" {
			y -= 8
			text(ask+7, y+16, "quiet", "start", ` font-size="12"`, a.how[1])
		}
		text(ask+7, y, "quiet", "start", ` font-size="12"`, a.how[0])
	}
	box("weir", edge, weirTop, all, weirUnder)
	text(width/2, weirTop+25, "on", "middle", ` font-size="16" font-weight="600"`,
		"Weir: one set of rules, the same decision for all of them")
	text(width/2, weirTop+46, "on", "middle", "",
		"counts in its own memory, or with its other nodes in Redis, PostgreSQL or Cassandra")
	box("box", edge, servedTop, all, servedUnder)
	text(width/2, servedTop+21, "text", "middle", "",
		"what it protects: your API, your login, your paid tiers, a third party&#8217;s metered service")
	p(`</svg>`)
	return b.Bytes()
}
