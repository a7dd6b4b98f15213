//go:build !linux

package cassandratest

func checkMount(string) error { return nil }
