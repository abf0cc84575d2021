package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
)

// unpackedTime is the time of every unpacked file: a file with another one was changed by somebody.
var unpackedTime = time.Unix(1, 0)

// Many files are synced at once: the file system then writes its journal once for all of them.
const syncers = 16

// unpack makes a folder with all files, and returns when disk and folder are one.
func unpack(root string, content *content) error {
	if err := makeFolders(root, content.Files); err != nil {
		return err
	}
	files := make(map[string]entry, len(content.Files))
	for _, file := range content.Files {
		files[file.Path] = file
	}
	results := make(chan error)
	for _, part := range content.Layers {
		go func() { results <- unpackLayer(root, content.file, part, files) }()
	}
	var failed error
	for range content.Layers {
		if err := <-results; failed == nil || errors.Is(err, errDamaged) {
			failed = err
		}
	}
	if failed != nil {
		return failed
	}
	return syncAll(root)
}

func makeFolders(root string, files []entry) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file.Path)), 0o755); err != nil {
			return err
		}
	}
	// Whatever the umask.
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}

func unpackLayer(root string, file io.ReaderAt, part layer, files map[string]entry) error {
	sum := sha256.New()
	packed := io.TeeReader(io.NewSectionReader(file, part.Offset, part.Size), sum)
	// Layers are read side by side, each by one thread: nothing reads ahead of the digest.
	decoder, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer decoder.Close()
	problem := writeFiles(root, tar.NewReader(decoder), files)
	if problem != nil && !errors.Is(problem, errDamaged) {
		return problem
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != part.SHA256 {
		return fmt.Errorf("%w: what is in it does not have the digest that it was built with", errDamaged)
	}
	return problem
}

func writeFiles(root string, archive *tar.Reader, files map[string]entry) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		file, known := files[header.Name]
		if !known || header.Typeflag != tar.TypeReg || header.Size != file.Size {
			return fmt.Errorf("%w: %s is not in the index", errDamaged, header.Name)
		}
		if err := writeFile(filepath.Join(root, file.Path), archive, fs.FileMode(file.Mode)); err != nil {
			return err
		}
	}
}

func writeFile(path string, from io.Reader, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := &sourceReader{from: from}
	if _, err := io.Copy(file, reader); err != nil {
		if reader.failed != nil {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		return err
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Chtimes(path, unpackedTime, unpackedTime)
}

// sourceReader remembers that reading failed, so that it can be told from a failure to write.
type sourceReader struct {
	from   io.Reader
	failed error
}

func (r *sourceReader) Read(into []byte) (int, error) {
	count, err := r.from.Read(into)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = err
	}
	return count, err
}

// syncAll brings every file and folder below root to the disk.
func syncAll(root string) error {
	paths, results := make(chan string), make(chan error)
	for range syncers {
		go func() {
			var failed error
			for path := range paths {
				if err := sync(path); err != nil && failed == nil {
					failed = err
				}
			}
			results <- failed
		}()
	}
	failed := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			paths <- path
		}
		return err
	})
	close(paths)
	for range syncers {
		failed = errors.Join(failed, <-results)
	}
	return failed
}

func sync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}
