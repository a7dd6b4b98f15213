package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"time"
)

// entry is a file, a link or, without data, a folder of an archive or of a layer.
type entry struct {
	name string
	mode int64
	data []byte
	link string // where a link leads to; "" for none
	user int    // and group
}

// readEntry reads a file for an archive.
func readEntry(file, name string, mode int64) (entry, error) {
	data, err := os.ReadFile(file)
	return entry{name: name, mode: mode, data: data}, err
}

// tarOf is a tar of entries in this order, all with one time and no names of users.
func tarOf(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: at,
			Uid: e.user, Gid: e.user, Format: tar.FormatUSTAR}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.data == nil:
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// writeArchive writes the program with its manual pages, completions and licences, below one
// folder.
func (r *release) writeArchive(t target) error {
	folder := "weir_" + r.version + "_" + t.String() + "/"
	program, err := readEntry(r.program(t), folder+"weir", 0o755)
	if err != nil {
		return err
	}
	entries := []entry{program}
	others, err := filepath.Glob(filepath.Join(r.in, "*", "*")) // manual pages and completions
	if err != nil {
		return err
	}
	for _, file := range append(others, filepath.Join(root, "LICENSE")) {
		name := filepath.Base(file)
		if name != "LICENSE" {
			name = filepath.Base(filepath.Dir(file)) + "/" + name
		}
		e, err := readEntry(file, folder+name, 0o644)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	licences, err := r.thirdParty(t)
	if err != nil {
		return err
	}
	entries = append(entries, entry{name: folder + "THIRD-PARTY", mode: 0o644, data: licences})
	data, err := tarOf(entries, r.time)
	if err != nil {
		return err
	}
	packed, err := gzipped(data, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(t.String()+".tar.gz"), packed, 0o644)
}

// gzipped packs data without a name and a time.
func gzipped(data []byte, level int) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
