package spoe

import "strings"

// hello is the content of a HAPROXY-HELLO.
type hello struct {
	frameSize   int    // what both sides can take
	asked       uint64 // what HAProxy can take
	pipelining  bool
	healthCheck bool
}

// parseHello reads the payload of a HAPROXY-HELLO; s is statusOK, or its fault. most is the largest
// frame that we take.
func parseHello(payload string, most int) (h hello, s status) {
	var versions, sizes, capabilities bool
	var size uint64
	supported := false
	for rest := payload; rest != ""; {
		var name string
		var v value
		var ok bool
		if name, rest, ok = cutText(rest); !ok || name == "" {
			return h, statusInvalid
		}
		if v, rest, ok = cutValue(rest); !ok {
			return h, statusInvalid
		}
		switch name {
		case "supported-versions":
			if v.kind != typeString {
				return h, statusInvalid
			}
			versions, supported = true, supports(v.text)
		case "max-frame-size":
			n, ok := v.integer()
			if !ok {
				return h, statusInvalid
			}
			sizes, size = true, uint64(max(n, 0))
		case "capabilities":
			if v.kind != typeString {
				return h, statusInvalid
			}
			capabilities, h.pipelining = true, lists(v.text, "pipelining")
		case "healthcheck":
			if v.kind != typeBool {
				return h, statusInvalid
			}
			h.healthCheck = v.truth
		}
	}
	switch {
	case !versions:
		return h, statusNoVersion
	case !sizes:
		return h, statusNoFrameSize
	case !capabilities:
		return h, statusNoCapability
	case !supported:
		return h, statusBadVersion
	case size < minFrameLimit:
		return h, statusBadFrameSize
	}
	h.asked, h.frameSize = size, int(min(size, uint64(most)))
	return h, statusOK
}

// supports reports whether a list of versions, such as "2.0, 1.5", holds ours: a peer that speaks
// 2.1 speaks 2.0 too.
func supports(versions string) bool {
	for version := range strings.SplitSeq(versions, ",") {
		major, minor, ok := strings.Cut(strings.TrimSpace(version), ".")
		if ok && major == "2" && minor != "" && strings.Trim(minor, "0123456789") == "" {
			return true
		}
	}
	return false
}

// lists reports whether a comma-separated list holds item.
func lists(list, item string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(s) == item {
			return true
		}
	}
	return false
}

// appendHello appends the AGENT-HELLO that answers h.
func appendHello(b []byte, h hello) []byte {
	start := len(b)
	b = beginFrame(b, frameAgentHello, 0, 0)
	b = appendText(append(appendText(b, "version"), typeString), "2.0")
	b = appendVarint(append(appendText(b, "max-frame-size"), typeUint32), uint64(h.frameSize))
	capabilities := ""
	if h.pipelining {
		capabilities = "pipelining"
	}
	b = appendText(append(appendText(b, "capabilities"), typeString), capabilities)
	return endFrame(b, start)
}

// parseDisconnect reads the payload of a HAPROXY-DISCONNECT, as far as it can be read.
func parseDisconnect(payload string) (s status, message string) {
	s = 99
	for rest := payload; rest != ""; {
		var name string
		var v value
		var ok bool
		if name, rest, ok = cutText(rest); !ok {
			break
		}
		if v, rest, ok = cutValue(rest); !ok {
			break
		}
		switch n, number := v.integer(); {
		case name == "status-code" && number:
			s = status(min(max(n, 0), 1<<31))
		case name == "message" && v.kind == typeString:
			message = v.text
		}
	}
	return s, message
}
