package triptych

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles names PEM files. Empty fields mean the defaults.
type TLSFiles struct {
	// RootCertificates are of the authorities that may vouch for the server. The default are those of the system.
	RootCertificates string
	// Certificate and PrivateKey are the client's own, for servers that ask for them (mTLS). Both or neither.
	Certificate, PrivateKey string
	// ServerName is the name in the server's certificate. The default is the host of the address.
	ServerName string
}

// Config reads the files into a configuration for WithTLS.
func (f TLSFiles) Config() (*tls.Config, error) {
	config := &tls.Config{ServerName: f.ServerName, MinVersion: tls.VersionTLS12}
	if f.RootCertificates != "" {
		pem, err := os.ReadFile(f.RootCertificates)
		if err != nil {
			return nil, fmt.Errorf("triptych: root certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("triptych: %s has no certificate in PEM", f.RootCertificates)
		}
	}
	if f.Certificate != "" || f.PrivateKey != "" {
		pair, err := tls.LoadX509KeyPair(f.Certificate, f.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("triptych: certificate and private key of the client: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
