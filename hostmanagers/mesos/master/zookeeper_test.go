package master_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paceline-sched/paceline/conformance/freeport"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// debianZooKeeper is where Debian's package puts what a server needs.
const debianZooKeeper = "/usr/share/java/zookeeper.jar"

// unknownName is what masters call themselves; their IP address has to do.
const unknownName = "no-such-name.invalid"

// zkTick is ZooKeeper's measure of time: it grants sessions of 2 to 20 of them. None is to run out on a machine that stands still, or the masters' nodes would go with it.
const zkTick = 6 * time.Second

// freePort returns a port on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// zooKeeper starts a real server, and returns its address and a client.
func zooKeeper(t *testing.T) (address string, client *zk.Conn, kill func()) {
	t.Helper()
	java, err := exec.LookPath("java")
	if _, missing := os.Stat(debianZooKeeper); err != nil || missing != nil {
		t.Skip("no ZooKeeper is installed (apt-get install zookeeper)")
	}
	port := freePort(t)
	server := exec.CommandContext(t.Context(), java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", debianZooKeeper, "-Dzookeeper.admin.enableServer=false",
		"org.apache.zookeeper.server.ZooKeeperServerMain", port, t.TempDir(), strconv.FormatInt(zkTick.Milliseconds(), 10))
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = server.Process.Kill() // it may have ended
			_ = server.Wait()         // by the signal
		}
	}
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	address = "127.0.0.1:" + port
	eventually(t, "ZooKeeper does not start", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // a server that has just begun to listen may say nothing
		_, _ = io.WriteString(conn, "srvr")
		answer, _ := io.ReadAll(conn)
		return bytes.Contains(answer, []byte("Mode: standalone"))
	})
	client, _, err = zk.Connect([]string{address}, 20*zkTick, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	eventually(t, "ZooKeeper gives no session", func() bool { return client.State() == zk.StateHasSession })
	return address, client, kill
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// member starts an emulated master over a real socket and registers it as one does; the last registered leads last.
func member(t *testing.T, client *zk.Conn, id string) (address, node string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, emulator.Config{Cluster: cluster.Config{MasterID: id}}, l)
	host, port, _ := net.SplitHostPort(l.Addr().String())
	number, _ := strconv.Atoi(port)
	info := fmt.Sprintf(`{"address":{"hostname":%q,"ip":%q,"port":%d},"id":%q,"port":%d}`, unknownName, host, number, id, number)
	node, err = client.Create("/mesos/json.info_", []byte(info), zk.FlagEphemeral|zk.FlagSequence, zk.DigestACL(zk.PermAll, "paceline", "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), node
}

// TestZooKeeper follows the leader as a real ZooKeeper tells it, with nodes that only who has a password may read.
func TestZooKeeper(t *testing.T) {
	t.Parallel()
	servers, client, kill := zooKeeper(t)
	f := start(t, master.Config{
		Masters: []string{"zk://paceline:hunter2@" + servers + ",127.0.0.1:1/mesos"}, LongestWait: 50 * time.Millisecond, Timeout: time.Minute,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, unknownName) {
				return nil, &net.DNSError{Err: "no such host", Name: unknownName, IsNotFound: true} // asking for it can take long
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	eventually(t, "it is not told that nobody leads", func() bool {
		err := f.Status().Err
		return err != nil && strings.Contains(err.Error(), "no Mesos master leads") && !strings.Contains(err.Error(), "hunter2")
	})
	if err := client.AddAuth("digest", []byte("paceline:hunter2")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create("/mesos", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create("/mesos/log_replicas", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	first, node := member(t, client, "first")
	second, _ := member(t, client, "second")
	eventually(t, "not subscribed to the first master", func() bool { return f.Status().Subscribed && f.Leader() == "http://"+first })
	if err := client.Delete(node, -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not subscribed to the second master", func() bool { return f.Status().Subscribed && f.Leader() == "http://"+second })
	if err := f.lastLost(); err == nil || !strings.Contains(err.Error(), "leads no more") {
		t.Errorf("the first was left for %v", err)
	}
	kill()
	if err := f.Call(t.Context(), revive()); err != nil {
		t.Errorf("without ZooKeeper a call returned %v", err)
	}
	if begun, over := f.subscriptions(); begun != 2 || over != 1 {
		t.Errorf("%d subscriptions began, %d ended", begun, over)
	}
}

// TestZooKeeperIsDead tells so, and ends when asked to.
func TestZooKeeperIsDead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // which takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, servers := range []string{"127.0.0.1:1", l.Addr().String()} {
		f := start(t, master.Config{Masters: []string{"zk://" + servers + "/mesos"}, Timeout: 50 * time.Millisecond, LongestWait: time.Millisecond})
		eventually(t, "it is not told", func() bool {
			err := f.Status().Err
			return err != nil && strings.Contains(err.Error(), "zk://"+servers+"/mesos")
		})
		f.cancel()
		<-f.ended
	}
}

// TestZooKeeperAddresses are judged without printing what may be a password.
func TestZooKeeperAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"zk://h/mesos":                            "",
		"zk://h1,h2:2181,[::1]:2182,[::2]/a/b":    "",
		"zk://me:hunter2:@@h/mesos":               "",
		"zk://h":                                  "needs a path",
		"zk://h/":                                 "needs a path",
		"zk:///mesos":                             "not one such as",
		"zk://h:port/mesos":                       "not one such as",
		"zk://hunter2@h/mesos":                    "without a password",
		"zk://me:hunter2@h:99999/mesos":           "not one such as",
		"zk://" + strings.Repeat("h,", 64) + "h/": "needs a path",
	} {
		_, err := master.New(master.Config{Framework: info(), Identity: &framework{}, Masters: []string{address}})
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	_, err := master.New(master.Config{Framework: info(), Identity: &framework{}, Masters: []string{"zk://h/mesos", "zk://i/mesos"}})
	if err == nil || !strings.Contains(err.Error(), "the only one") || errors.Is(err, master.ErrNotSubscribed) {
		t.Errorf("two ensembles: %v", err)
	}
}
