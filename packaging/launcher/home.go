package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	lockName    = "lock"
	lockWait    = 2 * time.Minute
	lockRetry   = 20 * time.Millisecond
	homeMode    = 0o755
	nameOfHomes = ".%s.unpacked"
)

// home is the one folder of ours in a folder that is usable: a lock, and a folder for each version. It is locked while
// somebody looks or changes something in it. Locks are numbers, not files of package os: those are closed, and thereby
// unlocked, whenever the collector finds that nobody uses them any more.
type home struct {
	path string
	lock int
}

// openHome locks the home in a folder; it is created if that is wanted.
func openHome(folder, name string, create bool) (*home, error) {
	path := filepath.Join(folder, fmt.Sprintf(nameOfHomes, name))
	deadline := time.Now().Add(lockWait)
	for {
		if create {
			if err := os.Mkdir(path, homeMode); err == nil {
				err = os.Chmod(path, homeMode) // whatever the umask
				if err != nil {
					return nil, err
				}
			} else if !errors.Is(err, os.ErrExist) {
				return nil, err
			}
		}
		info, err := os.Lstat(path)
		if create && errors.Is(err, os.ErrNotExist) {
			continue // whoever locked it before had no use for it
		}
		if err != nil {
			return nil, err
		}
		if err := trusted(info, false); err != nil {
			return nil, fmt.Errorf("%s was prepared by somebody else: it %w", path, err)
		}
		lock, err := lockIn(path, deadline)
		if err == nil {
			return &home{path, lock}, nil
		}
		if !errors.Is(err, errGone) {
			return nil, err
		}
	}
}

var errGone = errors.New("the lock was removed")

// lockIn opens and locks the lock file of a home; errGone if it was removed by whoever had it locked.
func lockIn(path string, deadline time.Time) (int, error) {
	name := filepath.Join(path, lockName)
	lock, err := syscall.Open(name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return 0, errGone
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	for {
		err = syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			syscall.Close(lock)
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		if time.Now().After(deadline) {
			syscall.Close(lock)
			return 0, fmt.Errorf("%s is held by another start for more than %s", name, lockWait)
		}
		time.Sleep(lockRetry)
	}
	var ours, there syscall.Stat_t
	if syscall.Fstat(lock, &ours) != nil || syscall.Lstat(name, &there) != nil || ours.Ino != there.Ino || ours.Dev != there.Dev {
		syscall.Close(lock)
		return 0, errGone
	}
	return lock, nil
}

// close unlocks the home, and removes it if nothing is in it.
func (h *home) close() {
	if entries, err := os.ReadDir(h.path); err == nil && len(entries) == 1 {
		os.Remove(filepath.Join(h.path, lockName))
		os.Remove(h.path)
	}
	syscall.Close(h.lock)
}

// removeOthers removes all but one version, apart from those that a process still runs from: it may load more modules.
// What cannot be removed is left to the next start.
func (h *home) removeOthers(digest string) {
	entries, err := os.ReadDir(h.path)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if path := filepath.Join(h.path, entry.Name()); entry.Name() != digest && entry.Name() != lockName && !inUse(path) {
			os.RemoveAll(path)
		}
	}
}

// sweepIn removes what earlier starts left in a folder that is not the chosen one.
func sweepIn(folder, name string) {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return
	}
	if home, err := openHome(folder, name, false); err == nil {
		home.removeOthers("")
		home.close()
	}
}

// holdOpen keeps a version from being removed as long as this process lives: the descriptor goes on to the interpreter,
// but not to the programs that the interpreter starts.
func holdOpen(root string) error {
	held, err := syscall.Open(root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", root, err)
	}
	return syscall.Flock(held, syscall.LOCK_SH|syscall.LOCK_NB)
}

func inUse(root string) bool {
	folder, err := syscall.Open(root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(folder)
	return errors.Is(syscall.Flock(folder, syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// complete tells what a folder lacks to be exactly the files that were unpacked, untouched since.
func complete(root string, files []entry) error {
	expected := make(map[string]entry, len(files))
	for _, file := range files {
		expected[file.Path] = file
	}
	err := filepath.WalkDir(root, func(path string, found fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := found.Info()
		if err != nil {
			return err
		}
		if info.IsDir() {
			return trusted(info, false)
		}
		name, _ := filepath.Rel(root, path)
		file, known := expected[name]
		owner := info.Sys().(*syscall.Stat_t).Uid
		if !known || info.Mode() != fs.FileMode(file.Mode) || info.Size() != file.Size ||
			!info.ModTime().Equal(unpackedTime) || (owner != 0 && int(owner) != os.Geteuid()) {
			return fmt.Errorf("%s is not as it was unpacked", path)
		}
		delete(expected, name)
		return nil
	})
	if err == nil && len(expected) != 0 {
		err = fmt.Errorf("%d files are missing", len(expected))
	}
	return err
}
