package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"
)

const repository = "https://github.com/weir-rl/weir"

// statement is an in-toto statement (https://in-toto.io/Statement/v1) with a provenance of SLSA
// (https://slsa.dev/provenance/v1) as its predicate.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType          string            `json:"buildType"`
		ExternalParameters map[string]any    `json:"externalParameters"`
		InternalParameters map[string]string `json:"internalParameters"`
		ResolvedDepends    []subject         `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// writeProvenance says from which commit, with which Go and by which script the files were made.
func (r *release) writeProvenance() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range sums {
		s.Subject = append(s.Subject, subject{Name: f.name, Digest: map[string]string{"sha256": f.sha256}})
	}
	info, err := buildinfo.ReadFile(r.program(r.targets[0]))
	if err != nil {
		return err
	}
	var targets []string
	for _, t := range r.targets {
		targets = append(targets, t.os+"/"+t.arch)
	}
	build := &s.Predicate.BuildDefinition
	build.BuildType = repository + "/blob/main/docs/releasing.md"
	build.ExternalParameters = map[string]any{"version": r.version, "targets": targets}
	build.InternalParameters = map[string]string{"go": info.GoVersion}
	build.ResolvedDepends = []subject{{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.commit}}}
	s.Predicate.RunDetails.Builder.ID = repository + "/blob/main/scripts/release"
	return writeJSON(r.file("provenance.intoto.json"), s)
}

func writeJSON(file string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// writeSums writes SHA256SUMS of all other files and, if there is a key, its signature.
func (r *release) writeSums(keyFile string) error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range sums {
		fmt.Fprintf(&text, "%s  %s\n", f.sha256, f.name)
	}
	file := filepath.Join(r.out, "SHA256SUMS")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil || keyFile == "" {
		return err
	}
	key, err := secretKey(keyFile, os.Getenv("MINISIGN_PASSWORD"))
	if err != nil {
		return fmt.Errorf("the key in %s: %w", keyFile, err)
	}
	// minisign shows the trusted comment once it has verified it.
	comment := fmt.Sprintf("weir %s, commit %s, of %s", r.version, r.commit, r.time.Format("2006-01-02"))
	signature := minisign.SignWithComments(key, []byte(text.String()), comment,
		"signature of SHA256SUMS of weir "+r.version)
	return os.WriteFile(file+".minisig", signature, 0o644)
}

// secretKey reads a key that minisign -G has made, with or without a password.
func secretKey(file, password string) (key minisign.PrivateKey, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return key, err
	}
	if !minisign.IsEncrypted(data) {
		err = key.UnmarshalText(data)
		return key, err
	}
	if password == "" {
		return key, errors.New("it has a password, which is to be in MINISIGN_PASSWORD")
	}
	return minisign.DecryptKey(password, data)
}
