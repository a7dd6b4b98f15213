package main

// The pictures of decisions over a store: who says what to whom, from above to below.

// message is one arrow between two of a sequence's columns; from == to is a note at a column.
type message struct {
	from, to int
	words    string
	answer   bool // an answer, which is dashed
}

// wideNote is the from and to of a note across the last two columns.
const wideNote = -1

func drawSequence(title string, columns []string, messages []message) []byte {
	const edge, top, high, step = 12, 12, 34, 34
	d := newDiagram(title, top+high+len(messages)*step+20)
	at := func(i int) int { return 110 + i*(width-220)/(len(columns)-1) }
	for i, name := range columns {
		d.p(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="life"/>`, at(i), top+high, at(i),
			top+high+len(messages)*step+10)
		class, text := "box", "text"
		if i == 1 {
			class, text = "weir", "on"
		}
		d.box(class, at(i)-98, top, 196, high)
		d.text(at(i), top+22, text, "middle", name)
	}
	for i, m := range messages {
		y := top + high + 26 + i*step
		if m.from == m.to {
			left, right := edge+180, width-edge
			if m.from != wideNote {
				left, right = at(m.from)-240, at(m.from)+240
			}
			d.box("note", left, y-17, right-left, 24)
			d.sized((left+right)/2, y, 12, "text", "middle", m.words)
			continue
		}
		line, head := "go", "gone"
		if m.answer {
			line, head = "ask", "asked"
		}
		d.across(line, head, at(m.from), at(m.to), y)
		d.sized((at(m.from)+at(m.to))/2, y-6, 12, "quiet", "middle", m.words)
	}
	return d.end()
}

func drawOverRedis() []byte {
	return drawSequence("One call to a partition of Redis is in flight at a time, and carries all decisions that "+
		"arrived meanwhile",
		[]string{"requests A, B, C", "partition, in this node", "Redis (weir.lua)"}, []message{
			{0, 1, "A", false},
			{1, 2, "FCALL: decide A", false},
			{0, 1, "B and C, while A is in flight", false},
			{1, 1, "equal calls become one, with their number", false},
			{wideNote, wideNote, "Redis decides by its own clock, in one step", false},
			{2, 1, "the states before A; what was charged", true},
			{1, 1, "algo computes A's answer from the same states, and compares the verdict", false},
			{1, 0, "the decision on A", true},
			{1, 2, "FCALL: decide B and C", false},
			{2, 1, "states; what was charged", true},
			{1, 0, "the decisions on B and C", true},
		})
}

func drawOverDatabase() []byte {
	return drawSequence("The node decides, and the database keeps it only if it was decided on what is there",
		[]string{"requests A, B on one key", "store/cas, in this node", "database"}, []message{
			{0, 1, "A and B", false},
			{1, 1, "last seen of the key: version 7. algo decides A, then B on what A left", false},
			{1, 2, "Swap: if the version is 7, write 8", false},
			{wideNote, wideNote, "either nobody else was quicker:", false},
			{2, 1, "done; the clock", true},
			{1, 0, "the decisions", true},
			{wideNote, wideNote, "or another node has written version 9:", false},
			{2, 1, "not done: version 9, its states, the clock", true},
			{1, 1, "algo decides A and B anew, on these", false},
			{1, 2, "Swap: if the version is 9, …", false},
			{2, 1, "done", true},
			{1, 0, "the decisions", true},
		})
}
