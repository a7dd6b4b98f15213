package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// point is one measured quantity: a measure (such as cpu_ns) of a contestant at a size.
type point struct {
	measure, series string
	at              float64
}

// samples are what rounds found, in the order in which points were first seen.
type samples struct {
	order  []point
	values map[point][]float64
}

func (s *samples) add(measure, series string, at, value float64) {
	p := point{measure, series, at}
	if s.values == nil {
		s.values = map[point][]float64{}
	}
	if _, seen := s.values[p]; !seen {
		s.order = append(s.order, p)
	}
	s.values[p] = append(s.values[p], value)
}

// header describes the origin of a file of results.
type header struct {
	date, commit, machine, others, took string
}

// writeFile writes a row for each point, the points of a series together.
func (s *samples) writeFile(path string, h header) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var b strings.Builder
	for _, line := range [][2]string{
		{"date", h.date}, {"commit", h.commit}, {"machine", h.machine}, {"others", h.others}, {"took", h.took},
	} {
		fmt.Fprintf(&b, "# %s: %s\n", line[0], line[1])
	}
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"measure", "series", "at", "median", "least", "most", "rounds"}) // a builder takes all
	var names [][2]string
	for _, p := range s.order {
		if name := [2]string{p.measure, p.series}; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		for _, p := range s.order {
			if name != [2]string{p.measure, p.series} {
				continue
			}
			values := slices.Sorted(slices.Values(s.values[p]))
			n := len(values)
			_ = w.Write([]string{
				p.measure, p.series, strconv.FormatFloat(p.at, 'f', -1, 64),
				digits((values[(n-1)/2] + values[n/2]) / 2), digits(values[0]), digits(values[n-1]), strconv.Itoa(n),
			})
		}
	}
	w.Flush()
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// digits writes a number to four digits.
func digits(v float64) string {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(math.Round(v*scale)/scale, 'f', -1, 64)
}

// watch follows the load of the whole machine while a part is measured.
type watch struct {
	began     time.Time
	all, idle time.Duration
	own       time.Duration
	known     bool // the machine reports it
}

func startWatch() *watch {
	w := &watch{began: time.Now()}
	w.all, w.idle, w.known = machineTime()
	w.own = ownTime()
	return w
}

// header describes the machine and the software that were measured.
func (w *watch) header(root string) (header, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return header{}, err
	}
	changed, err := git("status", "--porcelain", "--", ".", ":!docs", ":!*.md")
	if err != nil {
		return header{}, err
	}
	if changed != "" {
		commit += " and changes"
	}
	h := header{
		date: w.began.UTC().Format(time.DateOnly), commit: commit, machine: machine(),
		others: "not known", took: time.Since(w.began).Round(time.Second).String(),
	}
	if all, idle, ok := machineTime(); ok && w.known && all > w.all {
		others := float64((all-w.all)-(idle-w.idle)-(ownTime()-w.own)) / float64(all-w.all)
		h.others = fmt.Sprintf("%.0f %%", 100*max(0, others))
	}
	return h, nil
}

// ownTime is the processor time of this process and of those that it has waited for.
func ownTime() (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// machineTime is the time of all processors, and how much of it they were idle; of /proc/stat,
// which counts hundredths of a second.
func machineTime() (all, idle time.Duration, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, false
	}
	for i, field := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		t := time.Duration(n) * 10 * time.Millisecond
		all += t
		if i == 3 || i == 4 {
			idle += t
		}
	}
	return all, idle, true
}

// machine names the processors.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.Version())
}
