package rego

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// Keys are who may sign bundles. Without any, bundles need no signature.
type Keys struct{ byID map[string]*bundle.KeyConfig }

// ReadKeys reads a directory of public keys: ID.pem is the key that signatures name as ID. Ed25519, ECDSA and RSA keys are taken.
func ReadKeys(dir fs.FS) (Keys, error) {
	keys := Keys{byID: map[string]*bundle.KeyConfig{}}
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return Keys{}, err
	}
	for _, entry := range entries {
		id, isKey := strings.CutSuffix(entry.Name(), ".pem")
		if !isKey || id == "" || entry.IsDir() {
			continue
		}
		raw, err := readBounded(dir, entry.Name())
		if err != nil {
			return Keys{}, err
		}
		algorithm, err := algorithmOf(raw)
		if err != nil {
			return Keys{}, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		keys.byID[id] = &bundle.KeyConfig{Key: string(raw), Algorithm: algorithm}
	}
	if len(keys.byID) == 0 {
		return Keys{}, errors.New("there is no key: put public keys there as ID.pem, or leave the setting out to take bundles without signatures")
	}
	return keys, nil
}

func algorithmOf(raw []byte) (string, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "PUBLIC KEY" || len(strings.TrimSpace(string(rest))) > 0 {
		return "", errors.New("it must hold one PEM block of type PUBLIC KEY, as 'openssl pkey -pubout' writes it")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return "", err
	}
	switch key := key.(type) {
	case ed25519.PublicKey:
		return "EdDSA", nil
	case *rsa.PublicKey:
		return "RS256", nil
	case *ecdsa.PublicKey:
		switch key.Curve.Params().BitSize {
		case 256:
			return "ES256", nil
		case 384:
			return "ES384", nil
		case 521:
			return "ES512", nil
		}
	}
	return "", fmt.Errorf("a key of type %T signs no bundles: use Ed25519, ECDSA or RSA", key)
}
