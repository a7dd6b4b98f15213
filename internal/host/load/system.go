package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// system reads Linux's figures for this machine and for this program's control group (cgroup v2).
type system struct{ root fs.FS }

// mostRead bounds the bytes read of a file.
const mostRead = 64 << 10

func (s system) read(name string) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostRead))
}

// groups returns the folders of this program's control group and its parents, from the inside out;
// none without cgroup v2.
func (s system) groups() []string {
	base := ""
	for _, candidate := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		if _, err := fs.Stat(s.root, candidate+"/cgroup.controllers"); err == nil {
			base = candidate
			break
		}
	}
	if base == "" {
		return nil
	}
	data, err := s.read("proc/self/cgroup")
	if err != nil {
		return []string{base}
	}
	own := parseCgroup(data)
	var out []string
	for {
		out = append(out, path.Join(base, own))
		if own == "/" {
			return out
		}
		own = path.Dir(own)
	}
}

// parseCgroup finds the path of the cgroup v2 in /proc/self/cgroup, absolute and clean; "/" if
// there is none.
func parseCgroup(data []byte) string {
	for line := range strings.Lines(string(data)) {
		if own, ok := strings.CutPrefix(line, "0::"); ok {
			return path.Clean("/" + strings.TrimRight(own, "\n"))
		}
	}
	return "/"
}

// cpu measures how much of the processors is used: of the quotas of the control groups, the one
// that is used most; without a quota of the whole machine.
type cpu struct {
	system
	at     time.Time
	usage  map[string]uint64 // µs, by control group
	jiffie jiffies
}

func (c *cpu) sample(now time.Time) (percent float64, ok bool, err error) {
	passed := float64(now.Sub(c.at).Microseconds())
	usage, limited := map[string]uint64{}, false
	for _, g := range c.groups() {
		limit, err := c.read(g + "/cpu.max")
		if err != nil {
			continue
		}
		cpus, has, err := parseCPUMax(limit)
		if err != nil || !has {
			continue
		}
		data, err := c.read(g + "/cpu.stat")
		if err != nil {
			continue
		}
		used, found := parseKeyed(data, "usage_usec")
		if !found {
			continue
		}
		limited = true
		usage[g] = used
		if before, known := c.usage[g]; known && passed > 0 && used >= before {
			percent, ok = max(percent, 100*float64(used-before)/(passed*cpus)), true
		}
	}
	c.usage, c.at = usage, now
	if limited {
		c.jiffie = jiffies{}
		return percent, ok, nil
	}
	data, err := c.read("proc/stat")
	if err != nil {
		return 0, false, fmt.Errorf("cpu: %w", err)
	}
	j, err := parseStat(data)
	if err != nil {
		return 0, false, fmt.Errorf("cpu: /proc/stat: %w", err)
	}
	before := c.jiffie
	c.jiffie = j
	if before.total == 0 || j.total <= before.total {
		return 0, false, nil
	}
	total, idle := j.total-before.total, uint64(0)
	if j.idle > before.idle { // the time of waiting for disks may run backwards
		idle = min(j.idle-before.idle, total)
	}
	return 100 * float64(total-idle) / float64(total), true, nil
}

// jiffies are times of all processors together.
type jiffies struct{ idle, total uint64 }

// parseStat reads the first line of /proc/stat. Time that went to other machines on the same host
// (steal) is not idle; guests' time is already part of the user's.
func parseStat(data []byte) (j jiffies, err error) {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return j, errors.New("its first line does not tell of all processors")
	}
	for i, f := range fields[1:min(len(fields), 9)] {
		v, err := strconv.ParseUint(f, 10, 62)
		if err != nil {
			return jiffies{}, fmt.Errorf("%q is no number", f)
		}
		if j.total+v < j.total {
			return jiffies{}, errors.New("its times are too large")
		}
		j.total += v
		if i == 3 || i == 4 { // idle, iowait
			j.idle += v
		}
	}
	return j, nil
}

// parseCPUMax reads cpu.max: "max 100000" or "200000 100000", in µs.
func parseCPUMax(data []byte) (cpus float64, limited bool, err error) {
	fields := strings.Fields(string(data))
	if len(fields) != 2 {
		return 0, false, errors.New("cpu.max has not two fields")
	}
	period, err := strconv.ParseUint(fields[1], 10, 62)
	if err != nil || period == 0 {
		return 0, false, fmt.Errorf("cpu.max: %q is no period", fields[1])
	}
	if fields[0] == "max" {
		return 0, false, nil
	}
	quota, err := strconv.ParseUint(fields[0], 10, 62)
	if err != nil || quota == 0 {
		return 0, false, fmt.Errorf("cpu.max: %q is no quota", fields[0])
	}
	return float64(quota) / float64(period), true, nil
}

// parseKeyed finds a number in a file of lines "key number".
func parseKeyed(data []byte, key string) (value uint64, found bool) {
	for line := range strings.Lines(string(data)) {
		if name, rest, _ := strings.Cut(line, " "); name == key {
			v, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}

// memory measures the used share of memory: of the memory limits of the control groups, the one
// most used; without any limit, the machine's memory. Cached file contents that were not touched
// lately do not count as used.
func (s system) memory(time.Time) (percent float64, ok bool, err error) {
	for _, g := range s.groups() {
		limit, limited, err := s.number(g + "/memory.max")
		if err != nil || !limited || limit == 0 {
			continue
		}
		current, known, err := s.number(g + "/memory.current")
		if err != nil || !known {
			continue
		}
		if data, err := s.read(g + "/memory.stat"); err == nil {
			cached, _ := parseKeyed(data, "inactive_file")
			current -= min(cached, current)
		}
		percent, ok = max(percent, 100*float64(current)/float64(limit)), true
	}
	if ok {
		return percent, true, nil
	}
	data, err := s.read("proc/meminfo")
	if err != nil {
		return 0, false, fmt.Errorf("memory: %w", err)
	}
	total, available, err := parseMeminfo(data)
	if err != nil {
		return 0, false, fmt.Errorf("memory: /proc/meminfo: %w", err)
	}
	return 100 * float64(total-available) / float64(total), true, nil
}

// number reads a file that holds a number or "max", for which ok is false.
func (s system) number(name string) (n uint64, ok bool, err error) {
	data, err := s.read(name)
	if err != nil {
		return 0, false, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return 0, false, nil
	}
	n, err = strconv.ParseUint(text, 10, 64)
	return n, err == nil, err
}

// parseMeminfo reads MemTotal and MemAvailable of /proc/meminfo, in KiB. The total is above 0, and
// available no more than that.
func parseMeminfo(data []byte) (total, available uint64, err error) {
	found := 0
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		var to *uint64
		switch name {
		case "MemTotal":
			to = &total
		case "MemAvailable":
			to = &available
		default:
			continue
		}
		text, unit, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseUint(text, 10, 54)
		if err != nil || unit != "kB" {
			return 0, 0, fmt.Errorf("%s is %q, and not in kB", name, strings.TrimSpace(rest))
		}
		*to = v
		found++
	}
	if found != 2 || total == 0 || available > total {
		return 0, 0, errors.New("it does not tell MemTotal and MemAvailable")
	}
	return total, available, nil
}

// pressure measures the share of time in which some task waits for a processor, for memory or for a
// disk (PSI), and takes the largest: in this program's control group if the system measures that,
// else in the whole machine.
type pressure struct {
	system
	at    time.Time
	total map[string]uint64 // µs, by file
}

func (p *pressure) sample(now time.Time) (percent float64, ok bool, err error) {
	passed := float64(now.Sub(p.at).Microseconds())
	before := p.total
	p.total, p.at = map[string]uint64{}, now
	names := []string{"proc/pressure/cpu", "proc/pressure/memory", "proc/pressure/io"}
	if groups := p.groups(); len(groups) > 1 { // the root's group is the machine's
		own := []string{groups[0] + "/cpu.pressure", groups[0] + "/memory.pressure", groups[0] + "/io.pressure"}
		if _, err := p.read(own[0]); err == nil {
			names = own
		}
	}
	var failed error
	for _, name := range names {
		data, err := p.read(name)
		if err != nil {
			failed = err
			continue
		}
		average, total, err := parsePressure(data)
		if err != nil {
			failed = fmt.Errorf("%s: %w", name, err)
			continue
		}
		p.total[name] = total
		share := average // of ten seconds, while there is no sample before
		if last, known := before[name]; known && passed > 0 && total >= last {
			share = 100 * float64(total-last) / passed
		}
		percent, ok = max(percent, share), true
	}
	if !ok {
		return 0, false, fmt.Errorf(
			"pressure: this system does not tell it (Linux does with CONFIG_PSI, and psi=1 where it is off by default): %w", failed)
	}
	return min(percent, 100), true, nil
}

// parsePressure reads avg10, in percent, and total, in µs, of the line "some" of a PSI file.
func parsePressure(data []byte) (average float64, total uint64, err error) {
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		found := 0
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			switch key {
			case "avg10":
				if average, err = strconv.ParseFloat(value, 64); err != nil || !(average >= 0 && average <= 100) {
					return 0, 0, fmt.Errorf("avg10 is %q", value)
				}
				found++
			case "total":
				if total, err = strconv.ParseUint(value, 10, 63); err != nil {
					return 0, 0, fmt.Errorf("total is %q", value)
				}
				found++
			}
		}
		if found == 2 {
			return average, total, nil
		}
	}
	return 0, 0, errors.New(`it has no line "some" with avg10 and total`)
}
