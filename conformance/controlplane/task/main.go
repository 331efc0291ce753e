// Command task is what containers of tests run: one small static program that does as its words say.
//
//	task exit CODE            ends with a code
//	task say TEXT...          prints the texts to stdout, one a line
//	task print TEXT           prints the text as it is
//	task complain TEXT...     prints the texts to stderr
//	task die SIGNAL           ends itself by a signal
//	task eat MEBIBYTES        takes memory, and then sleeps
//	task sleep                sleeps until SIGTERM, and ends with 143
//	task polite               sleeps until SIGTERM, and ends with 0
//	task deaf                 sleeps, whatever comes
//	task deafen               hears no SIGTERM from now on
//	task serve PORT [MILLIS]  answers HTTP with 200, after some time with 500
//	task show NAME...         prints variables, as NAME=VALUE
//	task who                  prints its user, group and working directory
//	task read PATH...         prints files
//	task write PATH TEXT      writes a file
//	task await PATH           goes on once there is such a file
//	task exists PATH          ends with 0 if there is such a file
//	task pause                holds a pod's namespaces, and buries what others leave
//
// "then" between two of them runs the second when the first is done.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

func main() {
	words := os.Args[1:]
	for {
		end := slices.Index(words, "then")
		if end < 0 {
			break
		}
		if err := run(words[:end]); err != nil {
			fail(err)
		}
		words = words[end+1:]
	}
	if err := run(words); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "task:", err)
	os.Exit(1)
}

func run(words []string) error {
	if len(words) == 0 {
		return errors.New("say what to do")
	}
	verb, rest := words[0], words[1:]
	switch verb {
	case "exit":
		os.Exit(number(rest, 0))
	case "say":
		for _, text := range rest {
			fmt.Fprintln(os.Stdout, text)
		}
	case "print":
		for _, text := range rest {
			fmt.Fprint(os.Stdout, text)
		}
	case "complain":
		for _, text := range rest {
			fmt.Fprintln(os.Stderr, text)
		}
	case "die":
		return die(syscall.Signal(number(rest, 0)))
	case "eat":
		return eat(number(rest, 0))
	case "sleep":
		await(128 + int(syscall.SIGTERM))
	case "polite":
		await(0)
	case "deafen":
		deafen()
	case "deaf":
		deafen()
		for {
			time.Sleep(time.Hour)
		}
	case "serve":
		return serve(number(rest, 0), time.Duration(number(rest, 1))*time.Millisecond)
	case "pause":
		bury()
	default:
		return files(verb, rest)
	}
	return nil
}

var deaf bool // to SIGTERM

func deafen() {
	deaf = true
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
}

// files are the words that look at what a container finds.
func files(verb string, rest []string) error {
	switch verb {
	case "show":
		for _, name := range rest {
			value, there := os.LookupEnv(name)
			if !there {
				value = "(none)"
			}
			fmt.Fprintf(os.Stdout, "%s=%s\n", name, value)
		}
	case "who":
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "user=%d group=%d dir=%s\n", os.Getuid(), os.Getgid(), dir)
	case "read":
		for _, path := range rest {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stdout, "%s: %s\n", path, raw)
		}
	case "write":
		if len(rest) != 2 {
			return errors.New("write takes a path and a text")
		}
		return os.WriteFile(rest[0], []byte(rest[1]), 0o644) //nolint:gosec // others read it
	case "await":
		for _, err := os.Stat(rest[0]); err != nil; _, err = os.Stat(rest[0]) {
			time.Sleep(10 * time.Millisecond)
		}
	case "exists":
		for _, path := range rest {
			if _, err := os.Stat(path); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("there is no %q", verb)
	}
	return nil
}

// number is the word at a place, 0 if there is none.
func number(words []string, at int) int {
	if at >= len(words) {
		return 0
	}
	n, err := strconv.Atoi(words[at])
	if err != nil {
		fail(err)
	}
	return n
}

// die ends this process by a signal. The first process of a container cannot: the kernel shields it.
func die(s syscall.Signal) error {
	signal.Reset(s)
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		return err
	}
	time.Sleep(time.Second)
	return fmt.Errorf("signal %d had no effect", s)
}

func eat(mebibytes int) error {
	const page = 4096
	var eaten [][]byte
	for range mebibytes {
		piece := make([]byte, 1<<20)
		for at := 0; at < len(piece); at += page {
			piece[at] = 1
		}
		eaten = append(eaten, piece)
	}
	fmt.Fprintf(os.Stdout, "ate %d MiB\n", len(eaten))
	await(0)
	return nil
}

// await sleeps until it is asked to end.
func await(code int) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	<-asked
	os.Exit(code)
}

// serve answers HTTP, well for some time; 0: for ever.
func serve(port int, well time.Duration) error {
	begun := time.Now()
	server := &http.Server{
		Addr: ":" + strconv.Itoa(port), ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if well > 0 && time.Since(begun) > well {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}),
	}
	if !deaf {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, func() { os.Exit(0) })
	}
	return server.ListenAndServe()
}

// bury waits for the end of whatever is left to the first process, until it is asked to end itself.
func bury() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}
