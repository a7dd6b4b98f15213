package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var manFolder = flag.String("man", "", "write the manual pages into this folder")

// TestManPages: each command has a manual page, made from its help. scripts/release writes them:
// go test ./cmd/weir -run TestManPages -man FOLDER.
func TestManPages(t *testing.T) {
	dir := *manFolder
	if dir == "" {
		dir = t.TempDir()
	}
	root := newRootCommand(nil)
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // the same pages from the same commands
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "weir", Manual: "Weir", Date: &day}, dir); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		name := filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1")
		page, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			return
		}
		pages++
		for _, part := range []string{".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"} {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s has no %s", name, part)
			}
		}
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
				look(sub)
			}
		}
	}
	look(root)
	if files, err := filepath.Glob(filepath.Join(dir, "*.1")); err != nil || len(files) < pages || pages < 30 {
		t.Errorf("%d commands, %d pages, %v", pages, len(files), err)
	}
}
