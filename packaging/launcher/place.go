package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// folders returns where the program may be unpacked, best first.
func folders(own, name string) []string {
	return []string{own, filepath.Join("/var/lib", name), "/run"}
}

// provide returns the folder with the unpacked program, in the first folder that will do.
func provide(content *content, candidates []string) (string, error) {
	var refused []string
	for index, candidate := range candidates {
		root, err := provideIn(content, candidate)
		if errors.Is(err, errDamaged) {
			return "", err
		}
		if err != nil {
			refused = append(refused, fmt.Sprintf("%s: %s", candidate, err))
			continue
		}
		for other, folder := range candidates {
			if other != index && folder != candidate {
				sweepIn(folder, content.Name)
			}
		}
		return root, nil
	}
	return "", fmt.Errorf("no folder to unpack the program into; %s", strings.Join(refused, "; "))
}

func provideIn(content *content, folder string) (string, error) {
	folder, err := usable(folder)
	if err != nil {
		return "", err
	}
	home, err := openHome(folder, content.Name, true)
	if err != nil {
		return "", err
	}
	defer home.close()
	root := filepath.Join(home.path, content.digest)
	if complete(root, content.Files) != nil {
		if err := renew(home.path, root, content); err != nil {
			return "", err
		}
	}
	home.removeOthers(content.digest)
	return root, holdOpen(root)
}

// renew puts a newly unpacked program at root, in the place of whatever is there.
func renew(home, root string, content *content) error {
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	err := unpack(part, content)
	if err == nil {
		err = complete(part, content.Files)
	}
	if err == nil {
		err = setAside(root)
	}
	if err == nil {
		err = os.Rename(part, root)
	}
	if err == nil {
		err = sync(home)
	}
	if err != nil {
		if left := os.RemoveAll(part); left != nil {
			return errors.Join(err, left)
		}
	}
	return err
}

// setAside renames a damaged program, if there is one: a process may still run from it.
func setAside(root string) error {
	for number := 0; ; number++ {
		err := os.Rename(root, fmt.Sprintf("%s.damaged-%d", root, number))
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case errors.Is(err, os.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
			continue
		default:
			return err
		}
	}
}

// usable returns the real path of a folder that nobody else can change and from which programs may be started.
func usable(folder string) (string, error) {
	real, err := filepath.EvalSymlinks(folder)
	if errors.Is(err, os.ErrNotExist) {
		return "", errors.New("does not exist")
	}
	if err != nil {
		return "", err
	}
	for path := real; ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil {
			return "", err
		}
		// In a folder like /tmp others can make entries, but not replace ours.
		above := path != real && info.Mode()&os.ModeSticky != 0
		if err := trusted(info, above); err != nil {
			return "", fmt.Errorf("%s %w", path, err)
		}
		if path == "/" {
			break
		}
	}
	var system syscall.Statfs_t
	if err := syscall.Statfs(real, &system); err != nil {
		return "", err
	}
	const readOnly, noExec = 1, 8 // ST_RDONLY, ST_NOEXEC of statvfs(3)
	if system.Flags&noExec != 0 {
		return "", errors.New("is mounted noexec")
	}
	if system.Flags&readOnly != 0 {
		return "", errors.New("is mounted read-only")
	}
	return real, nil
}

// trusted tells whether a folder belongs to root, or to whoever we are, and can be changed by nobody else.
func trusted(info os.FileInfo, othersMayWrite bool) error {
	if !info.IsDir() {
		return errors.New("is not a folder")
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("belongs to user %d", owner)
	}
	if info.Mode().Perm()&0o022 != 0 && !othersMayWrite {
		return errors.New("can be written by others")
	}
	return nil
}
