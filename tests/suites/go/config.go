package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// environment is what snippets and templates may use.
type environment struct {
	ServerName, ShortID, InstanceID, ServerDir, StoreDir, Host, AdvertiseHost, ClusterName string

	ServerIndex, ClientPort, ClusterPort int
	JetStream                            bool
	Routes                               []string
	Gateways                             map[string][]string
	Ports                                map[string]int
	Snippets                             map[string]string
	TLS                                  *tlsFiles
}

const (
	jetStreamLimits = "  max_mem_store: 256MB\n  max_file_store: 10GB\n"
	tlsPatience     = 2
)

// configure writes server.conf and the snippets beside it; the running server is not told.
func (s *server) configure(snippets map[string]string, whole string) error {
	rendered := map[string]string{}
	s.env.Snippets = map[string]string{}
	for name, body := range snippets {
		text, err := s.render(body)
		if err != nil {
			return err
		}
		rendered[name], s.env.Snippets[name] = text, name+".conf"
		if err := s.write(name+".conf", text); err != nil {
			return err
		}
	}
	text := s.built(rendered)
	if whole != "" {
		var err error
		if text, err = s.render(whole); err != nil {
			return err
		}
	}
	return s.write("server.conf", text)
}

func (s *server) write(name, text string) error {
	return os.WriteFile(filepath.Join(s.folder, name), []byte(text), 0o600)
}

func (s *server) render(body string) (string, error) {
	parsed, err := template.New("").Parse(body)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, s.env)
	return out.String(), err
}

// built is the configuration where no template was given: each part may have been replaced by a snippet.
func (s *server) built(snippets map[string]string) string {
	var out strings.Builder
	part := func(name, usual string) {
		if given, ok := snippets[name]; ok {
			usual = given
		}
		out.WriteString(usual + "\n")
	}
	env := &s.env
	part("top", "")
	fmt.Fprintf(&out, "server_name: %q\nhost: 127.0.0.1\nport: %d\n", env.ServerName, env.ClientPort)
	part("accounts", s.accounts())
	part("system_account", `system_account: "$SYS"`)
	part("authorization", "no_auth_user: user1")
	if env.JetStream {
		fmt.Fprintf(&out, "jetstream {\n  enabled: true\n  store_dir: %q\n%s%s\n}\n", env.StoreDir, jetStreamLimits, snippets["jetstream"])
	}
	if env.ClusterName != "" {
		fmt.Fprintf(&out, "client_advertise: \"localhost:%d\"\n", env.ClientPort)
		fmt.Fprintf(&out, "cluster {\n  name: %s\n  listen: 127.0.0.1:%d\n  routes: [\n", env.ClusterName, env.ClusterPort)
		for _, route := range env.Routes {
			fmt.Fprintf(&out, "    nats://%s\n", route)
		}
		out.WriteString("  ]\n}\n")
	}
	part("tls", s.tlsBlock())
	part("websocket", "")
	part("leafnode", "")
	return out.String()
}

func (s *server) accounts() string {
	jetStream := ""
	if s.env.JetStream {
		jetStream = "jetstream: enabled, "
	}
	out := "accounts {\n"
	for i := 1; i <= 5; i++ {
		out += fmt.Sprintf("  USERS%d { %susers: [ { user: user%d, password: password } ] }\n", i, jetStream, i)
	}
	return out + "  $SYS { users: [ { user: system, password: password } ] }\n}"
}

func (s *server) tlsBlock() string {
	if s.tls == nil {
		return ""
	}
	timeout := s.tls.Timeout
	if timeout == 0 {
		timeout = tlsPatience
	}
	files := s.env.TLS
	out := fmt.Sprintf("tls {\n  cert_file: %q\n  key_file: %q\n  ca_file: %q\n  timeout: %g\n", files.CertFile, files.KeyFile, files.CAFile, timeout)
	if s.tls.mutual() {
		out += "  verify: true\n"
	}
	if s.tls.HandshakeFirst {
		out += "  handshake_first: true\n"
	}
	return out + "}"
}
