package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type tlsOptions struct {
	Mode           string   `json:"mode"`
	SANs           []string `json:"sans"`
	HandshakeFirst bool     `json:"handshake_first"`
	Timeout        float64  `json:"timeout"`
}

func (o *tlsOptions) mutual() bool { return o.Mode != "server" }

// tlsMaterial is what the client needs; the server's key stays here.
type tlsMaterial struct {
	CAPEM         string `json:"ca_pem"`
	ClientCertPEM string `json:"client_cert_pem,omitempty"`
	ClientKeyPEM  string `json:"client_key_pem,omitempty"`
}

type tlsFiles struct{ CAFile, CertFile, KeyFile string }

type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         string
}

// issue makes an authority, valid for a day, and what it signs for one instance.
func issue(folder string, o *tlsOptions) (*tlsMaterial, *tlsFiles, error) {
	names := o.SANs
	if len(names) == 0 {
		names = []string{"localhost", "127.0.0.1", "::1"}
	}
	ca, err := newAuthority("authority of " + filepath.Base(folder))
	if err != nil {
		return nil, nil, err
	}
	cert, key, err := ca.sign(2, "localhost", names)
	if err != nil {
		return nil, nil, err
	}
	material := &tlsMaterial{CAPEM: ca.pem}
	if o.mutual() {
		if material.ClientCertPEM, material.ClientKeyPEM, err = ca.sign(3, "client", nil); err != nil {
			return nil, nil, err
		}
	}
	files := &tlsFiles{filepath.Join(folder, "ca.pem"), filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")}
	for path, text := range map[string]string{files.CAFile: ca.pem, files.CertFile: cert, files.KeyFile: key} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, nil, err
		}
	}
	return material, files, nil
}

// newAuthority has a name that no other one has: OpenSSL looks for the issuer by its name.
func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	certificate := dated(1, name)
	certificate.IsCA, certificate.BasicConstraintsValid, certificate.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	return &authority{key, certificate, armoured("CERTIFICATE", der)}, err
}

func (a *authority) sign(serial int64, subject string, names []string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	certificate := dated(serial, subject)
	certificate.KeyUsage = x509.KeyUsageDigitalSignature
	certificate.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			certificate.IPAddresses = append(certificate.IPAddresses, ip)
		} else {
			certificate.DNSNames = append(certificate.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, a.certificate, &private.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	return armoured("CERTIFICATE", der), armoured("PRIVATE KEY", raw), err
}

func dated(serial int64, subject string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: subject},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
}

func armoured(kind string, raw []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}))
}
