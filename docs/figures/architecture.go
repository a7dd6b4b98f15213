package main

import "strings"

// The pictures of docs/architecture.md.

// part is a box of the picture of the wings: folders, and what they do.
type part struct {
	folders string // from the root of the repository, "." for the root itself
	about   string
}

// wings are the rows of the picture. A package imports what is in a row below its own, or in its
// own box: TestWingsDrawn holds that.
var wings = [][]part{
	{{"cmd/weir", "the commands"}},
	{{"internal/server", "settings; wires all parts"}},
	{{"internal/admin", "what operators see and do: API, page, metrics, audit"}},
	{{"internal/lab", "rules on traffic that is not live"}, {"internal/rulesource", "where rules come from"}},
	{{"internal/observe", "what is seen of each decision, bounded"}},
	{{"internal/door httplimit grpclimit overload", "one protocol a folder; middleware"}},
	{{".", "package weir: Limiter.Decide is Match, Charge, Tell"}},
	{{"store/fallback store/lease store/regions", "wrap a store: it is away, units are lent, several regions"}},
	{{"store/memory store/redis", ""}, {"store/postgres store/cassandra store/cas", ""},
		{"internal/limiter", "bans, grants, reservations"}},
	{{"store/internal", "what stores share"}, {"rule/file", "what is written"},
		{"internal/leasing", "pure protocols"}},
	{{"store", "the contract of stores"}, {"internal/wire", "sockets, HTTP"}, {"internal/host", "this machine"}},
	{{"rule", "what is in force: which limits, which keys"}},
	{{"algo", "the arithmetic, pure"}, {"internal/util", "leaves"}},
}

func drawWings() []byte {
	const edge, gap, high, step, top = 12, 8, 38, 46, 40
	d := newDiagram("The packages of Weir in rows: a package imports only what is in rows below its own, or in its own box",
		top+len(wings)*step+4)
	d.text(edge, 25, "quiet", "start", "A package imports only what is in rows below its own, or in its own box.")
	for i, row := range wings {
		y := top + i*step
		wide := (width - 2*edge - (len(row)-1)*gap) / len(row)
		for j, w := range row {
			x := edge + j*(wide+gap)
			box, name, about := "box", "text", "quiet"
			if w.folders == "." {
				box, name, about = "weir", "on", "on"
			}
			d.box(box, x, y, wide, high)
			switch {
			case w.folders == ".":
				d.sized(x+wide/2, y+24, 14, name, "middle", w.about)
			case w.about == "": // many folders: two lines
				first, rest, _ := strings.Cut(w.folders, " ")
				d.text(x+wide/2, y+16, name, "middle", first)
				d.text(x+wide/2, y+31, name, "middle", rest)
			default:
				d.text(x+wide/2, y+16, name, "middle", w.folders)
				d.sized(x+wide/2, y+31, 12, about, "middle", w.about)
			}
		}
	}
	return d.end()
}

// drawDecision draws one decision, from the wire to the wire.
func drawDecision() []byte {
	const high = 218
	d := newDiagram("A door turns bytes into a weir.Request. Match, Charge and Tell make a weir.Decision of it, "+
		"which the door turns into bytes", high)
	step := func(class, text string, x, wide int, name, about string) {
		d.box(class, x, 54, wide, 46)
		d.sized(x+wide/2, 74, 14, text, "middle", name)
		d.sized(x+wide/2, 91, 12, text, "middle", about)
	}
	d.box("box", 178, 14, 444, 194)
	d.text(190, 34, "quiet", "start", "Limiter.Decide")
	step("box", "text", 58, 84, "door", "bytes in")
	step("weir", "on", 190, 120, "Match", "limits and keys")
	step("weir", "on", 340, 120, "Charge", "all or nothing")
	step("weir", "on", 490, 120, "Tell", "its id, and hooks")
	step("box", "text", 658, 84, "door", "bytes out")
	for _, arrow := range [][2]int{{8, 58}, {142, 190}, {310, 340}, {460, 490}, {610, 658}, {742, 792}} {
		d.across("go", "gone", arrow[0], arrow[1], 77)
	}
	d.p(`<path d="M270 54V42H520V46" class="go"/><path d="M520 54l-4 -8h8z" class="gone"/>`)
	d.sized(395, 37, 12, "quiet", "middle", "banned, or no rules")
	d.sized(100, 120, 12, "quiet", "middle", "weir.Request")
	d.sized(700, 120, 12, "quiet", "middle", "weir.Decision")
	for _, asked := range []struct {
		x    int
		what [2][2]string
	}{
		{250, [2][2]string{{"rule.Set", "which apply?"}, {"bans", "is the key banned?"}}},
		{400, [2][2]string{{"grants", "other numbers?"}, {"store.Store", "charges"}}},
		{550, [2][2]string{{"bans", "refusals count"}, {"Hooks", "metrics, logs"}}},
	} {
		d.down("ask", "asked", asked.x, 100, 120)
		d.down("ask", "asked", asked.x, 156, 166)
		for i, what := range asked.what {
			y := 120 + i*46
			d.box("note", asked.x-60, y, 120, 36)
			d.text(asked.x, y+15, "text", "middle", what[0])
			d.sized(asked.x, y+30, 12, "quiet", "middle", what[1])
		}
	}
	return d.end()
}
