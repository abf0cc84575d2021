package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// The file, from its end: a trailer of 64 bytes (where the index is, its length, its SHA-256, a mark), the index in JSON, and
// before it the layers, each a tar archive in one zstd frame. packaging/onefile/container.py writes it.
const (
	trailerSize = 64
	mark        = "gardener-onefile"
	mostIndex   = 16 << 20
)

// content is what the index says.
type content struct {
	Name      string   `json:"name"`
	Root      string   `json:"root"` // where it is unpacked already, as in an image; empty for a program that brings its layers
	Program   string   `json:"program"`
	Arguments []string `json:"arguments"`
	Layers    []layer  `json:"layers"`
	Files     []entry  `json:"files"`

	digest string // of the index, and thereby of everything; names the folder
	file   io.ReaderAt
}

type layer struct {
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// entry is one file: its path below the folder, length and permissions.
type entry struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"`
}

// errDamaged marks what only a damaged file brings about.
var errDamaged = errors.New("is damaged")

func readContent(file *os.File) (*content, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	trailer := make([]byte, trailerSize)
	if info.Size() < trailerSize {
		return nil, fmt.Errorf("%w: it is too short", errDamaged)
	}
	if _, err := file.ReadAt(trailer, info.Size()-trailerSize); err != nil {
		return nil, err
	}
	if string(trailer[48:]) != mark {
		return nil, fmt.Errorf("%w: its end is missing", errDamaged)
	}
	offset, length := binary.LittleEndian.Uint64(trailer[:8]), binary.LittleEndian.Uint64(trailer[8:16])
	if length > mostIndex || offset != uint64(info.Size())-trailerSize-length {
		return nil, fmt.Errorf("%w: its end is not what was built", errDamaged)
	}
	index := make([]byte, length)
	if _, err := file.ReadAt(index, int64(offset)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(index)
	if !bytes.Equal(sum[:], trailer[16:48]) {
		return nil, fmt.Errorf("%w: its index is not what was built", errDamaged)
	}
	found := content{digest: hex.EncodeToString(sum[:16]), file: file}
	if err := json.Unmarshal(index, &found); err != nil {
		return nil, fmt.Errorf("%w: its index: %w", errDamaged, err)
	}
	return &found, nil
}
