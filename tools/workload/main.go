// The only program in the sandbox's images: it says what its container was given, and waits.
//
//	workload              one line of JSON on stdout, then waits for SIGTERM
//	workload stubborn     the same, and ignores SIGTERM, as a process that must be killed does
//	workload once         the same, and ends at once with status 0
//	workload pause        says nothing, waits, and reaps what is left to it: the first process of a pod
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type seen struct {
	Environment map[string]string `json:"environment"`
	Devices     []string          `json:"devices"`
	// All below /usr, which the image has not: what was mounted for the container.
	Files []string `json:"files"`
}

func look() seen {
	found := seen{Environment: map[string]string{}, Devices: []string{}, Files: []string{}}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		found.Environment[name] = value
	}
	for _, pattern := range []string{"/dev/nvidia*", "/dev/nvidia-caps/*"} {
		paths, _ := filepath.Glob(pattern) // the only error is a bad pattern
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeDevice != 0 {
				found.Devices = append(found.Devices, path)
			}
		}
	}
	_ = filepath.WalkDir("/usr", func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found.Files = append(found.Files, path)
		}
		return nil
	})
	return found
}

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	if mode != "pause" {
		if err := json.NewEncoder(os.Stdout).Encode(look()); err != nil {
			os.Exit(1)
		}
	}
	if mode == "once" {
		return
	}
	for received := range signals {
		if received == syscall.SIGCHLD {
			for pid := 1; pid > 0; {
				pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		} else if mode != "stubborn" {
			return
		}
	}
}
