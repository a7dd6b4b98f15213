package main

// The picture of docs/how-it-works/consistency.md: what happens in each failure. Every line is a
// statement of the page that it comes from.

// broken is a failure: the cross stands at one of the stations of failures, or between it and the
// next one.
type broken struct {
	at      int
	between bool
	what    string
	then    [2]string
}

var failures = []broken{
	{1, false, "Weir is away", [2]string{
		"the caller decides: nginx and Traefik answer 500, Caddy 502, unless nginx or Caddy",
		"is told to pass; Envoy does what failure_mode_deny says"}},
	{1, false, "one node of several dies", [2]string{
		"what it decided stays counted; its slots become free after their time-out,",
		"and the others give its reservations back after theirs"}},
	{1, false, "new rules are wrong", [2]string{
		"the last good rules stay in force, and the page, the log and an alert say so;",
		"a server that starts with them does not start"}},
	{1, true, "Redis is slow", [2]string{
		"decisions take as long, and are exact, up to the deadline (20 ms to 1 s);",
		"then each node decides on its share"}},
	{1, true, "connections are cut", [2]string{
		"and new ones can be made: the calls are sent again,",
		"decisions take as long as connecting takes, and are exact"}},
	{2, false, "Redis is away", [2]string{
		"each node decides on its share of the limit, N / nodes, or as on_store_error says;",
		"at worst about 2 N in one window. Redis is charged when it is back"}},
	{2, false, "Redis restarts empty", [2]string{
		"without persistence windows begin afresh;",
		"GET /api/v1/outages says that the counters were lost"}},
	{2, false, "one master of a Cluster dies", [2]string{
		"its keys are limited by share until a replica takes over;",
		"all others are decided exactly"}},
}

func drawFailures() []byte {
	const edge, top, step, high, wide = 12, 12, 58, 30, 58
	stations := []string{"caller", "Weir", "Redis"}
	d := newDiagram("What happens when Weir, Redis or the way between them fails", top+len(failures)*step+4)
	for i, f := range failures {
		y := top + i*step
		middle := y + high/2 + 8
		at := func(station int) int { return edge + station*(wide+20) }
		for s, name := range stations {
			class, text := "box", "text"
			if s == 1 {
				class, text = "weir", "on"
			}
			d.box(class, at(s), middle-high/2, wide, high)
			d.sized(at(s)+wide/2, middle+4, 12, text, "middle", name)
			if s > 0 {
				d.across("go", "gone", at(s-1)+wide, at(s), middle)
			}
		}
		x, half := at(f.at)+wide/2, 16
		if f.between {
			x, half = at(f.at)+wide+8, 8
		}
		d.p(`<path d="M%d %dl%d %dm0 -%dl-%d %d" class="bad"/>`, x-half, middle-half, 2*half, 2*half, 2*half, 2*half,
			2*half)
		left := at(len(stations)) + 6
		d.p(`<text x="%d" y="%d" class="text" font-weight="600">%s</text>`, left, y+14, f.what)
		d.sized(left, y+31, 13, "quiet", "start", f.then[0])
		d.sized(left, y+47, 13, "quiet", "start", f.then[1])
	}
	return d.end()
}
