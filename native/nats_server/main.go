// The NATS server of a Kerf installation: nats-server as it is published, with the time-outs of its elections as
// settings.
//
// nats-server has them as constants: a stream whose leader's process was killed has no leader for 4 to 9 s, and placement
// binds nothing in that time. Between servers of one Kubernetes cluster much less is enough (etcd waits 1 s). They are
// variables of package server that its own tests set; so does this program. A version that renames one does not link.
//
//	KERF_NATS_HEARTBEAT_MS     a leader tells its followers that it is there (1000)
//	KERF_NATS_ELECTION_MIN_MS  a follower that has heard nothing for a time drawn between these two wants to lead (4000)
//	KERF_NATS_ELECTION_MAX_MS  (9000)
//
// A server without the settings behaves as the published one. All servers of a cluster need the same.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
	_ "unsafe"

	"github.com/nats-io/nats-server/v2/server"
)

//go:linkname heartbeat github.com/nats-io/nats-server/v2/server.hbInterval
var heartbeat time.Duration

//go:linkname electionMin github.com/nats-io/nats-server/v2/server.minElectionTimeout
var electionMin time.Duration

//go:linkname electionMax github.com/nats-io/nats-server/v2/server.maxElectionTimeout
var electionMax time.Duration

const program = "nats-server"

// errHeartbeats says why time-outs cannot be used together.
var errHeartbeats = errors.New("a follower has to miss three heartbeats before it may want to lead: set " +
	"KERF_NATS_ELECTION_MIN_MS to at least three times KERF_NATS_HEARTBEAT_MS")

// errOrder says the same of the two ends of the drawn time.
var errOrder = errors.New("KERF_NATS_ELECTION_MAX_MS has to be above KERF_NATS_ELECTION_MIN_MS")

// setTimeouts reads the settings and changes the server's variables, all or none.
func setTimeouts(setting func(string) string) error {
	values := []struct {
		name   string
		target *time.Duration
		read   time.Duration
	}{
		{"KERF_NATS_HEARTBEAT_MS", &heartbeat, heartbeat},
		{"KERF_NATS_ELECTION_MIN_MS", &electionMin, electionMin},
		{"KERF_NATS_ELECTION_MAX_MS", &electionMax, electionMax},
	}
	for i := range values {
		text := setting(values[i].name)
		if text == "" {
			continue
		}
		ms, err := strconv.Atoi(text)
		if err != nil || ms < 1 {
			return fmt.Errorf("%s is %q; it has to be a whole number of milliseconds, 1 or more", values[i].name, text)
		}
		values[i].read = time.Duration(ms) * time.Millisecond
	}
	if values[1].read < 3*values[0].read {
		return errHeartbeats
	}
	if values[2].read <= values[1].read {
		return errOrder
	}
	for _, value := range values {
		*value.target = value.read
	}
	return nil
}

func fail(err error) {
	server.PrintAndDie(program + ": " + err.Error())
}

func main() {
	if err := setTimeouts(os.Getenv); err != nil {
		fail(err)
	}
	flags := flag.NewFlagSet(program, flag.ExitOnError)
	options, err := server.ConfigureOptions(flags, os.Args[1:], server.PrintServerAndExit, flags.Usage,
		server.PrintTLSHelpAndDie)
	if err != nil {
		fail(err)
	}
	if options.CheckConfig {
		fmt.Fprintf(os.Stderr, "%s: configuration file %s is valid (%s)\n", program, options.ConfigFile,
			options.ConfigDigest())
		return
	}
	server.RedactArgs(os.Args)
	running, err := server.NewServer(options)
	if err != nil {
		fail(err)
	}
	running.ConfigureLogger()
	if err := server.Run(running); err != nil {
		fail(err)
	}
	running.WaitForShutdown()
}
