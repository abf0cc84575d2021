// Command launcher is the first part of a one-file program. What comes after it in the file, an interpreter and modules, it
// unpacks once into a folder that only root can change, and then becomes that interpreter: there is one process, the one that
// was started.
//
// Written in Go because a static program needs nothing of the machine. It starts in 2 ms; where the program is unpacked
// already it only looks at each file's size, mode, owner and time.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	err := run()
	fmt.Fprintf(os.Stderr, "error: %s: %s\n", filepath.Base(os.Args[0]), err)
	os.Exit(1)
}

// run returns only if the program could not be started.
func run() error {
	file, path, err := openSelf()
	if err != nil {
		return err
	}
	content, err := readContent(file)
	if err != nil {
		return fmt.Errorf("%s %w; install it again", path, err)
	}
	root := content.Root
	if root == "" {
		root, err = provide(content, folders(filepath.Dir(path), content.Name))
	}
	if errors.Is(err, errDamaged) {
		return fmt.Errorf("%s %w; install it again", path, err)
	}
	if err != nil {
		return err
	}
	arguments := []string{filepath.Join(root, content.Program)}
	for _, argument := range content.Arguments {
		arguments = append(arguments, strings.ReplaceAll(argument, "{root}", root))
	}
	arguments = append(arguments, os.Args[1:]...)
	err = syscall.Exec(arguments[0], arguments, environment(os.Environ()))
	if _, missing := os.Stat(arguments[0]); errors.Is(err, syscall.ENOENT) && missing == nil {
		return errors.New("this machine has no glibc: /lib64/ld-linux-x86-64.so.2 is missing")
	}
	return fmt.Errorf("%s cannot be started: %w", arguments[0], err)
}

// openSelf returns this very file, also if another one has taken its name since, and its path. Without /proc the name by
// which it was called has to do.
func openSelf() (*os.File, string, error) {
	const self = "/proc/self/exe"
	if file, err := os.Open(self); err == nil {
		if path, err := os.Readlink(self); err == nil {
			return file, strings.TrimSuffix(path, " (deleted)"), nil
		}
		file.Close()
	}
	path := os.Args[0]
	if !strings.Contains(path, "/") {
		for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
			if info, err := os.Stat(filepath.Join(folder, path)); err == nil && info.Mode().IsRegular() {
				path = filepath.Join(folder, path)
				break
			}
		}
	}
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, "", fmt.Errorf("own file not found without /proc: %w", err)
	}
	file, err := os.Open(path)
	return file, path, err
}

// environment returns the variables without those that would have the loader, the C library or the interpreter take code or
// data from elsewhere. Programs that are started later do not get them either.
func environment(all []string) []string {
	kept := make([]string, 0, len(all))
	for _, variable := range all {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "LD_"), strings.HasPrefix(name, "PYTHON"):
		case name == "GCONV_PATH", name == "LOCPATH", name == "GLIBC_TUNABLES":
		default:
			kept = append(kept, variable)
		}
	}
	return kept
}
