package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	readyPatience   = 10 * time.Second
	stopPatience    = 5 * time.Second
	clusterPatience = 10 * time.Second
	poll            = 10 * time.Millisecond
)

// An instance is what one request made: a server, or the servers of a cluster.
type instance struct {
	id, folder string
	servers    []*server
	material   *tlsMaterial
}

type server struct {
	binary, folder string
	env            environment
	tls            *tlsOptions
	process        *exec.Cmd
	ended          chan struct{}
}

func newInstance(binary, folder string, q createRequest, count int) (*instance, error) {
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return nil, err
	}
	id := hex.EncodeToString(raw)
	made := &instance{id: id, folder: filepath.Join(folder, strings.NewReplacer("/", "_", " ", "_").Replace(q.Description)+"-"+id)}
	if err := os.MkdirAll(made.folder, 0o700); err != nil {
		return nil, err
	}
	var files *tlsFiles
	if q.TLS != nil {
		var err error
		if made.material, files, err = issue(made.folder, q.TLS); err != nil {
			return nil, err
		}
	}
	var routes []string
	for i := 1; i <= count; i++ {
		name := fmt.Sprintf("%s-n%d", id[8:], i)
		s := &server{binary: binary, folder: filepath.Join(made.folder, name), tls: q.TLS}
		s.env = environment{
			ServerName: name, ShortID: id[8:], InstanceID: id, ServerIndex: i, Host: "localhost", JetStream: q.JetStream,
			ServerDir: s.folder, StoreDir: s.folder, ClientPort: freePort(), TLS: files, Ports: map[string]int{},
		}
		for _, listener := range []string{"websocket", "leafnode"} {
			if _, asked := q.Snippets[listener]; asked {
				s.env.Ports[listener] = freePort()
			}
		}
		if count > 1 {
			s.env.ClusterName, s.env.ClusterPort = "C"+id[8:], freePort()
			routes = append(routes, fmt.Sprintf("127.0.0.1:%d", s.env.ClusterPort))
		}
		made.servers = append(made.servers, s)
	}
	err := made.start(q, routes)
	if err != nil {
		made.destroy()
	}
	return made, err
}

func (i *instance) start(q createRequest, routes []string) error {
	errs := make(chan error, len(i.servers))
	for _, s := range i.servers {
		s.env.Routes = routes
		if err := os.MkdirAll(s.folder, 0o700); err != nil {
			return err
		}
		if err := s.configure(q.Snippets, q.Template); err != nil {
			return err
		}
		go func() { errs <- s.start() }()
	}
	var first error
	for range i.servers {
		if err := <-errs; first == nil {
			first = err
		}
	}
	if first == nil && len(i.servers) > 1 && (q.TLS == nil || !q.TLS.HandshakeFirst) {
		i.waitForRoutes()
	}
	return first
}

// waitForRoutes returns when every server tells clients of all the others.
func (i *instance) waitForRoutes() {
	for end := time.Now().Add(clusterPatience); time.Now().Before(end); time.Sleep(5 * poll) {
		whole := true
		for _, s := range i.servers {
			whole = whole && s.connectURLs() == len(i.servers)
		}
		if whole {
			return
		}
	}
	log.Printf("%s: the cluster is not whole", i.folder)
}

func (i *instance) destroy() {
	var group sync.WaitGroup
	for _, s := range i.servers {
		group.Go(func() { s.stop(syscall.SIGTERM) })
	}
	group.Wait()
	for _, s := range i.servers {
		if err := os.RemoveAll(filepath.Join(s.folder, "jetstream")); err != nil {
			log.Print(err)
		}
	}
}

func (s *server) start() error {
	if s.process != nil {
		return nil
	}
	before := len(s.log())
	out, err := os.OpenFile(filepath.Join(s.folder, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	process := exec.Command(s.binary, "-c", filepath.Join(s.folder, "server.conf"))
	process.Stdout, process.Stderr = out, out
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	s.process, s.ended = process, ended
	for end := time.Now().Add(readyPatience); time.Now().Before(end); time.Sleep(poll) {
		if strings.Contains(s.log()[before:], "Server is ready") {
			return nil
		}
		select {
		case <-ended:
			s.process = nil
			return fmt.Errorf("server %s ended: %s", s.env.ServerName, s.log()[before:])
		default:
		}
	}
	return fmt.Errorf("server %s is not ready: %s", s.env.ServerName, s.log()[before:])
}

func (s *server) stop(signal syscall.Signal) {
	if s.process == nil {
		return
	}
	process, ended := s.process, s.ended
	s.process = nil
	_ = process.Process.Signal(signal)
	select {
	case <-ended:
	case <-time.After(stopPatience):
		log.Printf("%s does not end: killed", s.env.ServerName)
		_ = process.Process.Kill()
		<-ended
	}
}

func (s *server) reload() error {
	before := len(s.log())
	if s.process == nil {
		return fmt.Errorf("server %s does not run", s.env.ServerName)
	}
	if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	for end := time.Now().Add(stopPatience); time.Now().Before(end); time.Sleep(poll) {
		said := s.log()[before:]
		if strings.Contains(said, "Reloaded server configuration") {
			return nil
		}
		if strings.Contains(said, "[ERR]") {
			return fmt.Errorf("reload: %s", said)
		}
	}
	return fmt.Errorf("nothing is said of the reload: %s", s.log()[before:])
}

func (s *server) log() string {
	said, err := os.ReadFile(filepath.Join(s.folder, "server.log"))
	if err != nil && !os.IsNotExist(err) {
		log.Print(err)
	}
	return string(said)
}

// connectURLs is how many servers INFO names.
func (s *server) connectURLs() int {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.env.ClientPort), time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	var info struct {
		URLs []string `json:"connect_urls"`
	}
	if err != nil || json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info) != nil {
		return 0
	}
	return len(info.URLs)
}

func freePort() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
