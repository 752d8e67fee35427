package main

import (
	"errors"
	"testing"
	"time"
)

func reset() { heartbeat, electionMin, electionMax = time.Second, 4*time.Second, 9*time.Second }

func settings(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

// The variables are the server's own: its defaults are read through them.
func TestWithoutSettingsTheServersOwnTimeoutsStay(t *testing.T) {
	if err := setTimeouts(settings(nil)); err != nil {
		t.Fatal(err)
	}
	if heartbeat != time.Second || electionMin != 4*time.Second || electionMax != 9*time.Second {
		t.Fatalf("%v, %v to %v", heartbeat, electionMin, electionMax)
	}
}

func TestSettingsAreMilliseconds(t *testing.T) {
	defer reset()
	err := setTimeouts(settings(map[string]string{
		"KERF_NATS_HEARTBEAT_MS": "300", "KERF_NATS_ELECTION_MIN_MS": "1500", "KERF_NATS_ELECTION_MAX_MS": "3000",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if heartbeat != 300*time.Millisecond || electionMin != 1500*time.Millisecond || electionMax != 3*time.Second {
		t.Fatalf("%v, %v to %v", heartbeat, electionMin, electionMax)
	}
}

func TestSettingsThatCannotWorkChangeNothing(t *testing.T) {
	defer reset()
	for name, refused := range map[string]struct {
		values map[string]string
		err    error
	}{
		"not a number":           {map[string]string{"KERF_NATS_HEARTBEAT_MS": "1s"}, nil},
		"below 1":                {map[string]string{"KERF_NATS_ELECTION_MAX_MS": "0"}, nil},
		"below three heartbeats": {map[string]string{"KERF_NATS_ELECTION_MIN_MS": "2999"}, errHeartbeats},
		"longest below shortest": {map[string]string{"KERF_NATS_ELECTION_MAX_MS": "4000"}, errOrder},
	} {
		err := setTimeouts(settings(refused.values))
		if err == nil || refused.err != nil && !errors.Is(err, refused.err) {
			t.Fatalf("%s: %v", name, err)
		}
		if heartbeat != time.Second || electionMin != 4*time.Second || electionMax != 9*time.Second {
			t.Fatalf("%s changed the time-outs", name)
		}
	}
}
