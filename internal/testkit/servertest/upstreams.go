package servertest

// The servers of testdata/upstreams stand behind the proxy in the tests of paths and of fields:
// each framework has a program for either. What a start function lacks skips the test.

// packageOfUpstream has what they need, and its Debian packages.
var packageOfUpstream = map[string]string{"java": "openjdk-17-jre-headless", "node": "nodejs", "puma": "puma",
	"rails": "ruby-railties"}
