package main

import (
	"bytes"
	"fmt"
	"html"
)

// diagram is a picture of boxes and arrows in the making. It follows the reader's colours, and has
// a background of its own, so that it can be read on any page.
type diagram struct{ b bytes.Buffer }

const diagramStyle = `<style>
.page{fill:#ffffff}.box{fill:#f2f6fa;stroke:#9fb2c4}.weir{fill:#1f5fa8}.text{fill:#16324f}.quiet{fill:#4d5d6c}
.on{fill:#ffffff}.go{stroke:#2f7d4f;stroke-width:2;fill:none}.gone{fill:#2f7d4f}
.ask{stroke:#1f5fa8;stroke-width:1.6;stroke-dasharray:4 3;fill:none}.asked{fill:#1f5fa8}
.life{stroke:#9fb2c4;stroke-dasharray:2 4}.note{fill:#fff6dd;stroke:#c9a94a}.bad{stroke:#c62f3b;stroke-width:3;fill:none}
@media (prefers-color-scheme:dark){
.page{fill:#0f1720}.box{fill:#1b2733;stroke:#4b6075}.weir{fill:#2b6cb8}.text{fill:#e3ebf3}.quiet{fill:#a9b8c6}
.go{stroke:#5cc48a}.gone{fill:#5cc48a}.ask{stroke:#7db4f0}.asked{fill:#7db4f0}
.life{stroke:#4b6075}.note{fill:#33301f;stroke:#8a7a3d}.bad{stroke:#ff6b76}}
</style>`

// newDiagram begins a picture of that height. The title is what a screen reader says.
func newDiagram(title string, height int) *diagram {
	d := &diagram{}
	d.p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" `+
		`role="img">`, width, height)
	d.p(`<title>%s</title>`, html.EscapeString(title))
	d.p(diagramStyle)
	d.p(`<rect width="%d" height="%d" rx="6" class="page"/>`, width, height)
	return d
}

func (d *diagram) end() []byte {
	d.p(`</svg>`)
	return d.b.Bytes()
}

func (d *diagram) p(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

func (d *diagram) box(class string, x, y, wide, high int) {
	d.p(`<rect x="%d" y="%d" width="%d" height="%d" rx="6" class="%s"/>`, x, y, wide, high, class)
}

// text writes a line of words; the anchor is start, middle or end.
func (d *diagram) text(x, y int, class, anchor, words string) {
	d.sized(x, y, 13, class, anchor, words)
}

func (d *diagram) sized(x, y, size int, class, anchor, words string) {
	d.p(`<text x="%d" y="%d" class="%s" text-anchor="%s" font-size="%d">%s</text>`, x, y, class, anchor, size,
		html.EscapeString(words))
}

// across draws an arrow from x1 to x2; what is asked is dashed.
func (d *diagram) across(line, head string, x1, x2, y int) {
	tail := 8
	if x2 < x1 {
		tail = -8
	}
	d.p(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="%s"/>`, x1, y, x2-tail, y, line)
	d.p(`<path d="M%d %dl%d -4v8z" class="%s"/>`, x2, y, -tail, head)
}

// down draws an arrow that ends at y2.
func (d *diagram) down(line, head string, x, y1, y2 int) {
	d.p(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="%s"/>`, x, y1, x, y2-6, line)
	d.p(`<path d="M%d %dl-4 -8h8z" class="%s"/>`, x, y2, head)
}
