// A manager of test servers, as nats.go's tests ask for one at TESTER_NATS_URL: every server it is asked for is a
// process of the executable given. It listens on a NATS server of its own (-hub) to the subjects of orbit.go's
// ntf-client; super-clusters and traces are not served. See docs/client-suites.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"strings"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"
)

type createRequest struct {
	JetStream   bool              `json:"jetstream"`
	Servers     int               `json:"servers"`
	Description string            `json:"description"`
	Snippets    map[string]string `json:"snippets"`
	Template    string            `json:"template"`
	TLS         *tlsOptions       `json:"tls"`
}

type createReply struct {
	ID          string       `json:"id"`
	Description string       `json:"description"`
	Kind        string       `json:"kind"`
	Servers     []wireServer `json:"servers"`
	TLS         *tlsMaterial `json:"tls,omitempty"`
}

type wireServer struct {
	Name    string         `json:"name"`
	Cluster string         `json:"cluster"`
	Port    int            `json:"port"`
	Ports   map[string]int `json:"ports,omitempty"`
	Running bool           `json:"running"`
}

type instanceRequest struct {
	ID string `json:"instance_id"`
}

type serverRequest struct {
	Name       string            `json:"name"`
	Snippets   map[string]string `json:"snippets"`
	Template   string            `json:"template"`
	TLSTimeout *float64          `json:"tls_timeout"`
}

// A manager holds every instance that was asked for and not destroyed.
type manager struct {
	binary, folder string
	mu             sync.Mutex
	instances      map[string]*instance
}

func main() {
	binary := flag.String("server", "nats-server", "the executable under test")
	hub := flag.String("hub", "nats://127.0.0.1:14222", "the server through which tests talk to this program")
	folder := flag.String("dir", "", "configurations, stores and logs are kept here")
	flag.Parse()
	nc, err := nats.Connect(*hub, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	m := &manager{binary: *binary, folder: *folder, instances: map[string]*instance{}}
	serve(nc, "tester.create.server", func(q createRequest) (any, error) { return m.create(q, 1) })
	serve(nc, "tester.create.cluster", func(q createRequest) (any, error) { return m.create(q, q.Servers) })
	serve(nc, "tester.destroy", m.destroy)
	serve(nc, "tester.reset", m.reset)
	serve(nc, "tester.stop.server", m.named(func(s *server, _ serverRequest) (any, error) {
		s.stop(syscall.SIGTERM)
		return map[string]bool{"shutdown": true}, nil
	}))
	serve(nc, "tester.start.server", m.named(func(s *server, _ serverRequest) (any, error) {
		return map[string]bool{"started": true}, s.start()
	}))
	serve(nc, "tester.update.server", m.named(func(s *server, q serverRequest) (any, error) {
		if q.TLSTimeout != nil && s.tls != nil {
			changed := *s.tls
			changed.Timeout = *q.TLSTimeout
			s.tls = &changed
		}
		return map[string]bool{"updated": true}, s.configure(q.Snippets, q.Template)
	}))
	serve(nc, "tester.reload.server", m.named(func(s *server, _ serverRequest) (any, error) {
		return map[string]bool{"reloaded": true}, s.reload()
	}))
	if err := nc.Flush(); err != nil {
		log.Fatal(err)
	}
	log.Print("ready")
	select {}
}

// serve answers requests with what `do` returns, errors in the header that the client looks for.
func serve[Q any](nc *nats.Conn, subject string, do func(Q) (any, error)) {
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		go func() {
			var request Q
			reply := nats.NewMsg(m.Reply)
			var answer any
			err := json.Unmarshal(m.Data, &request)
			if err == nil || len(m.Data) == 0 {
				answer, err = do(request)
			}
			if err != nil {
				log.Printf("%s: %v", subject, err)
				reply.Header.Set("Nats-Service-Error", strings.NewReplacer("\r", "", "\n", " | ").Replace(err.Error()))
			} else if reply.Data, err = json.Marshal(answer); err != nil {
				log.Fatal(err)
			}
			if err := m.RespondMsg(reply); err != nil {
				log.Print(err)
			}
		}()
	})
	if err != nil {
		log.Fatal(err)
	}
}

func (m *manager) create(q createRequest, servers int) (any, error) {
	made, err := newInstance(m.binary, m.folder, q, servers)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.instances[made.id] = made
	m.mu.Unlock()
	log.Printf("%s: %s", q.Description, made.folder)
	reply := createReply{ID: made.id, Description: q.Description, Kind: "server", TLS: made.material}
	if servers > 1 {
		reply.Kind = "cluster"
	}
	for _, s := range made.servers {
		reply.Servers = append(reply.Servers, wireServer{s.env.ServerName, s.env.ClusterName, s.env.ClientPort, s.env.Ports, true})
	}
	return reply, nil
}

func (m *manager) destroy(q instanceRequest) (any, error) {
	m.mu.Lock()
	found := m.instances[q.ID]
	delete(m.instances, q.ID)
	m.mu.Unlock()
	if found != nil {
		found.destroy()
	}
	return map[string]bool{"destroyed": found != nil}, nil
}

func (m *manager) reset(struct{}) (any, error) {
	m.mu.Lock()
	all := m.instances
	m.instances = map[string]*instance{}
	m.mu.Unlock()
	for _, each := range all {
		each.destroy()
	}
	return map[string]bool{"shutdown": true}, nil
}

func (m *manager) named(do func(*server, serverRequest) (any, error)) func(serverRequest) (any, error) {
	return func(q serverRequest) (any, error) {
		if s := m.find(q.Name); s != nil {
			return do(s, q)
		}
		return nil, fmt.Errorf("no server %q", q.Name)
	}
}

func (m *manager) find(name string) *server {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, each := range m.instances {
		for _, s := range each.servers {
			if s.env.ServerName == name {
				return s
			}
		}
	}
	return nil
}
